"""What the device could do at best, what a call must do at least, and which of the two explains its time."""
