"""What is promised where something goes wrong: the rows of the tables of docs/reliability.md, by their first column.

    python tests/faults/table.py    rewrites the last column of the tables: the test files that hold each promise

A test that plants a fault has the mark `@promise(NAME)` of the promise that it holds.
"""

from __future__ import annotations

import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
#: A row of a table: the promise's name, what the page says of it, and the test files.
ROW = re.compile(r"^\| (?!promise )(\w[\w ]*) \| (.* \|) ([\w, ]*) \|$", re.MULTILINE)
PROMISES = [name for name, *_ in ROW.findall(PAGE.read_text(encoding="utf-8"))]


def promise(name: str) -> pytest.MarkDecorator:
    """Mark a test of the promise `name`."""
    assert name in PROMISES, f"{name} is no promise of {PAGE}"
    return pytest.mark.promise(name)


def rows(*faults: tuple[Any, ...]) -> list[Any]:
    """Return parameters, one for each (values, what goes wrong)."""
    return [pytest.param(*values, id=planted) for *values, planted in faults]


def bounded(examples: int) -> Any:
    """Return the settings of a test by hypothesis: the same examples in each run, no deadline on a shared machine."""
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )


class _Collector:
    """A pytest plugin that lists the test files of each promise."""

    def __init__(self) -> None:
        self.files: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("promise"):
                files = self.files.setdefault(mark.args[0], [])
                if item.path.stem not in files:
                    files.append(item.path.stem)


def collect() -> dict[str, list[str]]:
    """Return the test files of each promise."""
    collector = _Collector()
    options = ["--collect-only", "-m", "", "-p", "no:cacheprovider", "-n", "0"]
    with redirect_stdout(StringIO()) as output:
        code = pytest.main([*options, f"--rootdir={ROOT}", str(ROOT / "tests" / "faults")], [collector])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest could not collect tests/faults:\n{output.getvalue()}")
    return collector.files


def page_of(files: dict[str, list[str]]) -> str:
    """Return the text of the page with the test files of each promise."""

    def row(found: re.Match[str]) -> str:
        held_by = ", ".join(stem.removeprefix("test_") for stem in files.get(found[1], ()))
        return f"| {found[1]} | {found[2]} {held_by} |"

    return ROW.sub(row, PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # before `tests`, which has a folder `profiling` too
    PAGE.write_text(page_of(collect()), encoding="utf-8")
