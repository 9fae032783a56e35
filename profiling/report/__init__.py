"""A run's records as console text, `report.md` and `report.html`. Reads `results/` only, never torch."""
