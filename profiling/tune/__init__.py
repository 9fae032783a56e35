"""Searches for the fastest correct recipe of a component: `python -m profiling.tune`."""
