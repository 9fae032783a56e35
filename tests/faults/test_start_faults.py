"""Compiling and starting.

What a cell leaves in the compiler's cache that dies in it, and starts that end before the first output.
"""

import json
import os
import sys
from pathlib import Path

import msgspec
import pytest

from profiling.components.spec import ComponentSpec, Settings
from profiling.results.measured import Prepare
from profiling.results.record import encode_sections
from profiling.run.compile_caches import CompileCaches, lease
from profiling.run.events import Sections
from profiling.run.job import FORWARD, Job, as_recipe
from profiling.run.process_groups import run_guarded
from profiling.run.starts import NoStartError, Order, StartPass


def task(variant):
    spec = ComponentSpec(name="net", module={"_target_": "n"}, inputs={"x": {"shape": [1]}})
    options = as_recipe({"compiler": {"_target_": "profiling.variants.inductor.Inductor"}})
    return {"cell": Job("t", spec, variant, options, {}, Settings(), "run", FORWARD).to_json()}


@pytest.mark.fault(
    "the first of two cells with the same compiler dies while it compiles",
    happens="the second one starts from an empty cache, not from half of one: its preparation is a cold start",
    kept="the run",
)
def test_a_cell_that_prepared_nothing_leaves_nothing():
    caches = CompileCaches()
    with caches.lease(task("compile")) as first:
        half = Path(first.variables["TORCHINDUCTOR_CACHE_DIR"]) / "half"
        half.touch()
    assert not half.parent.exists()
    with caches.lease(task("graph")) as second:
        sections = Sections(encode_sections(prepare=Prepare(seconds=1.0, graphs=1, cache_hits=0)))
        event = second.describe(sections)
        assert isinstance(event, Sections)
        assert event.sections["prepare"]["cache"] == "cold"
    caches.clear()


@pytest.mark.parametrize(
    ("dies", "left"),
    [
        pytest.param(
            "warm",
            {"cold"},
            marks=pytest.mark.fault(
                "the warm start of a cell dies (starts=true)",
                happens="a note names the log of that start",
                kept="the cold start, and the cell",
            ),
        ),
        ("portable", {"cold", "warm"}),
    ],
)
def test_a_later_start_that_dies_costs_only_itself(tmp_path, dies, left):
    def execute(command, log, timeout, variables):
        kind = log.name.split(".")[-2].removesuffix("_start")
        order = msgspec.json.decode(Path(command[-2]).read_bytes(), type=Order)
        if kind == dies:
            return -11
        if order.save is not None:
            Path(order.save).write_bytes(b"saved")
        Path(order.result).write_text(json.dumps({"seconds": 9.0, "phases": {}, "graphs": 1}))
        return 0

    caches, cell = CompileCaches(), task("compile")
    with caches.lease(cell) as leased:
        starts, (note,) = StartPass(tmp_path, 60.0, execute).measure(cell, leased)
    assert {kind for kind in ("cold", "warm", "portable") if getattr(starts, kind) is not None} == left
    assert note == (
        f"starts are incomplete: the {dies} start ended with exit code -11; see cells/net.compile.{dies}_start.log"
    )
    caches.clear()


@pytest.mark.parametrize(
    ("limit", "note"),
    [
        pytest.param(
            0.5,
            "preparing took longer than the prepare_timeout: killed; see cells/net.slow.cold_start.log",
            marks=pytest.mark.fault(
                "preparing takes longer than prepare_timeout in a start (starts=true)",
                happens="that start is killed, and a note names its log, which ends with the stack",
                kept="the cell",
            ),
        ),
        (300.0, None),
    ],
)
def test_the_prepare_timeout_holds_for_starts(tmp_path, limit, note):
    (tmp_path / "slow_start.py").write_text("import time\ndef slow(module):\n    time.sleep(3)\n    return module\n")
    spec = ComponentSpec(name="net", module={"_target_": "torch.nn.Identity"}, inputs={"input": {"shape": [1]}})
    options = as_recipe({"transforms": [{"_target_": "slow_start.slow", "_partial_": True}]})
    settings = Settings(device="cpu", dtype="float32", scale="full")
    cell = {"cell": Job("t", spec, "slow", options, {}, settings, "run", FORWARD).to_json()}

    def execute(command, log, timeout, variables):
        path = os.pathsep.join([str(tmp_path), *sys.path])
        return run_guarded(command, log, timeout, {**variables, "PYTHONPATH": path}, set())

    (tmp_path / "cells").mkdir()
    starts = StartPass(tmp_path, 120.0, execute, limit)
    with lease(None, cell) as leased:
        if note is None:
            assert starts.measure(cell, leased)[0].cold.seconds > 3
            return
        with pytest.raises(NoStartError, match=note):
            starts.measure(cell, leased)
    assert 'slow_start.py", line 3 in slow' in (tmp_path / "cells" / "net.slow.cold_start.log").read_text()
