"""A run: its jobs, one process a cell, the cell's procedure, progress and resume."""
