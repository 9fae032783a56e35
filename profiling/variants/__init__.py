"""Ways to execute a component, one file each."""
