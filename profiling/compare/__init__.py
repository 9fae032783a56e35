"""Compares two runs: which cells became faster or slower, and what differs between the runs. Needs no torch."""
