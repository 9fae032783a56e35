"""Fixtures of these tests: the main job and the loop, run as a user does, and files to download."""

from published import published, server  # noqa: F401 - fixtures
from recorded_frames import make_recorder, planted  # noqa: F401 - fixtures
from user_fixtures import profile, realtime  # noqa: F401 - fixtures
