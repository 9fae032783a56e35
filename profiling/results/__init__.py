"""The record and everything that is read from a run folder. Never imports torch."""
