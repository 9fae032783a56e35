"""Fixtures of these tests: the main job and the loop, run as a user does."""

from user_fixtures import profile, realtime  # noqa: F401 - fixtures
