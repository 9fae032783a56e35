"""The roofline of a call on this device: its least time, measured ceilings, and what bounds it."""
