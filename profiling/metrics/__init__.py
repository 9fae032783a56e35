"""Metrics (latency, parity, memory, calls, drift), one file each."""
