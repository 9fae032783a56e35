"""The networks under test: a world model, an image VAE and an audio VAE, and how their weights and inputs are made.

This package knows nothing of the harness: it imports torch and numpy alone, so a network can be read, tested and
profiled by itself.
"""
