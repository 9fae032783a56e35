"""Looking inside a cell: spans, profiler traces, compile logs."""
