"""Compares a whole training step run eagerly, compiled, and captured in a CUDA graph."""
