"""Measures the cost of a kernel launch on this machine."""
