from published import published, server  # noqa: F401 - fixtures
