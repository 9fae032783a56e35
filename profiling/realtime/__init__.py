"""Times the loop of a real-time application and compares each frame with its deadline."""
