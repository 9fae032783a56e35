"""A whole training step: eager against compiled against captured."""
