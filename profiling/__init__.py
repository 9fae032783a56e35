"""Profiling harness for real-time generative models."""

import sys

if sys.argv[:1] == ["-m"]:  # `python -m profiling.X` imports this first; the imports that follow take up to a second
    import os
    import signal

    def _exit_at_once(_signal: int, _frame: object) -> None:
        os.write(2, b"interrupted\n")
        os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_at_once)
