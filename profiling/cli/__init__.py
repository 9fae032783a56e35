"""The Hydra edge: command line and config to a typed run, exit codes, errors in one line."""
