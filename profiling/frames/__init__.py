"""What a series of frames says: who was late and why, what grows, and what comes back. Needs no torch."""
