"""Fixtures of these tests: the main job and the loop, run as a user does."""

from recorded_frames import make_recorder, planted  # noqa: F401 - fixtures
from user_fixtures import profile, realtime  # noqa: F401 - fixtures
