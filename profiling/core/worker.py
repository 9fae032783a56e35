"""The process of a cell: reads its task from a file, tells its events through a pipe.

    python -m profiling.core.worker TASK_FILE EVENT_FD

Its standard input is a pipe that the parent holds open: when the parent dies, however it dies, the pipe closes and this
process ends instead of living on with the device's memory.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from profiling.core.tasks import perform


def main() -> None:
    """Perform the task of the command line."""
    task, descriptor = sys.argv[1:]
    os.set_inheritable(int(descriptor), False)  # a compile worker that outlives us must not hold the pipe open
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with os.fdopen(int(descriptor), "w", buffering=1) as pipe:

        def emit(event: Any) -> None:
            pipe.write(json.dumps(event) + "\n")

        perform(json.loads(Path(task).read_text()), emit)


def _die_with_parent() -> None:
    os.read(0, 1)  # blocks until the other end closes; a buffered read would hold a lock that the exit needs
    os._exit(1)


if __name__ == "__main__":
    main()
