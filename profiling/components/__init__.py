"""A component: one network under test, built, loaded and given inputs."""
