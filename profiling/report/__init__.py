"""A run's records as console text, `report.md`, `report.html` and `classic.txt`. Reads `results/` only, never torch."""
