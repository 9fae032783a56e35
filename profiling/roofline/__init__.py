"""What a call must do at least on this device, and what bounds it."""
