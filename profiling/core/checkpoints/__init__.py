"""Checkpoint files: which are published, how they get here whole, and how they get into a module.

Import the modules themselves: `loader` alone needs torch, and nothing here may bring it in for the others.
"""
