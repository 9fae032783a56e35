"""The loop that a real-time application runs, frame by frame against a deadline."""
