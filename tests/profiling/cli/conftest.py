"""Fixtures of these tests."""

from swept import begin_sweep, start_sweep

__all__ = ["begin_sweep", "start_sweep"]
