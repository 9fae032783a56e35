"""A whole training step as one thing that variants execute: forward, loss, backward, optimizer."""
