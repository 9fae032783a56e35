"""Inside a cell: what a profiler trace says about one call of its step."""
