"""What this machine is and can do: driver facts, memory counters, measured ceilings."""
