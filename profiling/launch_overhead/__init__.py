"""What a kernel launch costs on this machine."""
