"""Profiling harness for real-time generative models."""
