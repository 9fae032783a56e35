"""The command line: turns Hydra's config into a typed run; exit codes, errors in one line."""
