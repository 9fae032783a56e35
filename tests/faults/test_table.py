"""docs/reliability.md lists the faults that the suite plants."""

import subprocess
import sys

from table import PAGE, ROOT


def test_the_page_is_what_the_tests_say():
    done = subprocess.run([sys.executable, ROOT / "tests" / "faults" / "table.py", "--check"], capture_output=True)
    assert done.returncode == 0, "run: python tests/faults/table.py"


def test_there_are_enough_faults():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "planted fault" not in line]
    assert len(rows) >= 120
