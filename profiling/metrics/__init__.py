"""Measurements, one file each."""
