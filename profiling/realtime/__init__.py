"""The frame loop of a real-time application, each frame against its deadline."""
