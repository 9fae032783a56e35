"""Fixtures of these tests: the main job and the loop, run as a user does; and a browser that opens pages."""

import signal

from open_page import browser, heard, show  # noqa: F401 - fixtures
from recorded_frames import make_recorder, planted  # noqa: F401 - fixtures
from user_fixtures import profile, realtime, tune  # noqa: F401 - fixtures

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Inherited from a shell that started the tests in the background; tests that interrupt a process would hang.
    signal.signal(signal.SIGINT, signal.default_int_handler)
