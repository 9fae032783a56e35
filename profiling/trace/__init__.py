"""Profiler traces and compile logs: recording them, and analysing one call in them."""
