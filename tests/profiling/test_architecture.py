"""The way of a cell is the one that docs/architecture.md draws."""

import re
import sys
from pathlib import Path

import pytest
from as_user import OUTSIDE, QUICK, ROOT

import profiling.generic_forward
from profiling.cli.app import launch

PACKAGE = ROOT / "profiling"


def drawn():
    """Return {hop: (file, function)} of the page."""
    section = (ROOT / "docs/architecture.md").read_text().split("\n## How a cell is run\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \| `(\w+)` \|", section, re.MULTILINE)
    return {int(hop): (str(PACKAGE / file), function) for hop, file, function in rows}


def calls_of(wanted, run):
    """Return the calls of these functions by `run`, in their order."""
    called = []

    def note(frame, event, _):
        key = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and key in wanted:
            called.append(key)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_a_cell_takes_the_hops_of_the_page_in_their_order(isolation, tmp_path, monkeypatch):
    hops = drawn()
    assert list(hops) == list(range(1, len(hops) + 1))
    assert len(hops) <= 12
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(OUTSIDE))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{OUTSIDE}")
    given = (
        "component=[net]",
        "variant=[baseline,again]",
        f"isolation={isolation}",
        f"hydra.run.dir={tmp_path / 'run'}",
    )
    monkeypatch.setattr(sys, "argv", ["-", f"--config-dir={OUTSIDE}", *QUICK, *given])
    codes = []
    called = iter(
        calls_of({*hops.values()}, lambda: codes.append(launch("generic_forward", profiling.generic_forward.run)))
    )
    assert codes == [0]
    for hop, at in hops.items():  # the probe takes some of them before
        if hop not in ((9, 10) if isolation == "process" else (5, 6, 7, 8)):
            assert at in called, f"hop {hop} follows the one before it"
    assert Path(tmp_path / "run" / "results.jsonl").is_file()
