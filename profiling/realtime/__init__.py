"""The loop of a real-time application, frame by frame against its deadlines."""
