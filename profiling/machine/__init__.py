"""Facts about the machine: driver facts, memory counters, run-queue waits, GC policy, cached ceilings."""
