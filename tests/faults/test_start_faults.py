"""Starts that end before the first output."""

import os
import re
import sys

import pytest
from make_job import make_job
from table import promise

from profiling.components.spec import ComponentSpec
from profiling.run.child import Limits
from profiling.run.compile_caches import CompileCaches
from profiling.run.starts import measure_starts
from profiling.run.task import Cell


@promise("hangs")
@pytest.mark.parametrize(
    ("limit", "note"),
    [
        (0.5, r'took longer than prepare_timeout=0\.5 s: killed at File .*slow_start\.py", line 3 in slow'),
        (300.0, None),
    ],
)
def test_the_prepare_timeout_holds_for_starts(tmp_path, monkeypatch, limit, note):
    (tmp_path / "slow_start.py").write_text("import time\ndef slow(module):\n    time.sleep(1)\n    return module\n")
    net = ComponentSpec("net", {"_target_": "torch.nn.Identity"}, {"input": {"shape": [1]}})
    cell = Cell(job=make_job("slow", component=net, transforms=[{"_target_": "slow_start.slow", "_partial_": True}]))

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    (tmp_path / "cells").mkdir()
    with CompileCaches("shared").lease(cell) as leased:
        starts, notes = measure_starts(cell, leased, tmp_path, Limits(120.0, limit))
    if note is None:
        assert starts.cold.seconds > 1
    else:
        assert starts is None
        assert re.search(note, notes[0])


@promise("dies")
def test_a_crash_while_a_package_is_loaded(profile):
    outcome = profile("component=[caches]", "variant=[baseline,load_crashes]")
    records = {variant: record for (_, variant), record in outcome.records.items()}
    assert outcome.code == 1
    assert records["baseline"].status == "ok"
    crashed = records["load_crashes"]
    assert crashed.status == "failed"
    assert "killed by signal 11 (SIGSEGV)" in crashed.reason
    assert "loading kernels/caches.load_crashes/Caches.pt2" in crashed.reason
    assert (outcome.folder / "kernels" / "caches.load_crashes" / "Caches.pt2").is_file()
