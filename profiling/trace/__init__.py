"""Profiler traces and compile logs: recording them, and what they say about one call."""
