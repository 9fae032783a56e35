"""A whole training step (forward, loss, backward, optimizer) under variants."""
