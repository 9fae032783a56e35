"""Fixtures of these tests: sweeps of planted jobs."""

from sweep_fixtures import begin_sweep, start_sweep  # noqa: F401 - fixtures
