"""The table of planted faults in docs/reliability.md, made from the tests that plant them.

    python tests/faults/table.py    rewrites the table

A test of a fault has the mark `@pytest.mark.fault("what goes wrong", happens="what the user sees", kept="what stays")`.
The first line of a test module's docstring is the title of its section.
"""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- faults: made by tests/faults/table.py -->\n", "<!-- end of faults -->"
#: Sections in the order of the page; a module that is missing here comes last.
ORDER = (
    *("test_run_folder", "test_cells", "test_parity", "test_names_and_text"),
    *("test_downloads", "test_wrong_input", "test_fuzz", "test_gpu"),
)


@dataclass(frozen=True)
class Fault:
    """A planted fault: its section's title, what goes wrong, what happens, what is kept, and where it is tested."""

    module: str
    section: str
    planted: str
    happens: str
    kept: str
    runs: str  # "" in every run of the suite; "gpu" or "slow" otherwise


class _Collector:
    """A pytest plugin that lists the faults of the tests that pytest collected."""

    def __init__(self) -> None:
        self.faults: dict[tuple[str, str], Fault] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("fault"):
                assert isinstance(item, pytest.Function)
                runs = next((name for name in ("gpu", "slow") if item.get_closest_marker(name)), "")
                section = (item.module.__doc__ or item.module.__name__).strip().splitlines()[0].rstrip(".")
                happens, kept = mark.kwargs["happens"], mark.kwargs.get("kept", "")
                fault = Fault(item.module.__name__, section, mark.args[0], happens, kept, runs)
                self.faults.setdefault((fault.module, fault.planted), fault)


def collect() -> list[Fault]:
    """Return the faults of all tests in this folder, in the order of the page."""
    collector = _Collector()
    options = ["--collect-only", "-m", "", "-p", "no:cacheprovider", "-n", "0"]
    with redirect_stdout(StringIO()) as output:
        code = pytest.main([*options, f"--rootdir={ROOT}", str(ROOT / "tests" / "faults")], [collector])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest could not collect tests/faults:\n{output.getvalue()}")
    order = {module: place for place, module in enumerate(ORDER)}
    return sorted(collector.faults.values(), key=lambda fault: order.get(fault.module, len(ORDER)))


def render(faults: list[Fault]) -> str:
    """Return the Markdown tables, one for each section."""
    where = {"": "", "gpu": " (GPU)", "slow": " (slow suite)"}
    lines = [f"{len(faults)} faults are planted."]
    for section in dict.fromkeys(fault.section for fault in faults):
        lines += ["", f"### {section}", "", "| planted fault | what happens | what is kept |", "|---|---|---|"]
        lines += [
            f"| {_cell(fault.planted)}{where[fault.runs]} | {_cell(fault.happens)} | {_cell(fault.kept)} |"
            for fault in faults
            if fault.section == section
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def page_with(table: str) -> str:
    """Return the text of the page with `table` in place of the one it has."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page_with(render(collect())), encoding="utf-8")
