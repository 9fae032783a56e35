"""Compiling and starting.

What a cell leaves in the compiler's cache that dies in it, and starts that end before the first output.
"""

import os
import sys
from pathlib import Path

import pytest
from table import promise

from profiling.components.spec import ComponentSpec, Settings
from profiling.results.measured import Prepare, Start
from profiling.results.record import encode_sections
from profiling.run.child import Limits, ProcessEnd
from profiling.run.compile_caches import CompileCaches
from profiling.run.events import Sections, Started
from profiling.run.job import FORWARD, Job, as_recipe
from profiling.run.starts import NoStartError, measure_starts
from profiling.run.task import Cell


def task(variant):
    spec = ComponentSpec(name="net", module={"_target_": "n"}, inputs={"x": {"shape": [1]}})
    options = as_recipe({"compiler": {"_target_": "profiling.variants.inductor.Inductor"}})
    return Cell(job=Job("t", spec, variant, options, {}, Settings(), "run", FORWARD))


@promise("dies")
def test_a_cell_that_prepared_nothing_leaves_nothing():
    caches = CompileCaches()
    with caches.lease(task("compile")) as first:
        half = Path(first.variables["TORCHINDUCTOR_CACHE_DIR"]) / "half"
        half.touch()
    assert not half.parent.exists()
    with caches.lease(task("graph")) as second:
        sections = Sections(encode_sections(prepare=Prepare(seconds=1.0, graphs=1, cache_hits=0)))
        event = second.describe(sections, "graph")
        assert isinstance(event, Sections)
        assert event.sections["prepare"]["cache"] == "cold"
    caches.clear()


@promise("dies")
@pytest.mark.parametrize(("dies", "left"), [("warm", {"cold"}), ("portable", {"cold", "warm"})])
def test_a_later_start_that_dies_costs_only_itself(tmp_path, dies, left):
    def perform(task, files, limits, on_event, variables, own):
        kind = files.name.split(".")[-1].removesuffix("_start")
        if kind == dies:
            return ProcessEnd("exited with code 7")
        if task.save is not None:
            Path(task.save).write_bytes(b"saved")
        on_event(Started(Start(seconds=9.0, phases={}, graphs=1)))
        return ProcessEnd()
        yield  # a generator

    caches, cell = CompileCaches(), task("compile")
    with caches.lease(cell) as leased:
        starts, (note,) = measure_starts(cell, leased, tmp_path, Limits(60.0), set(), perform)
    assert {kind for kind in ("cold", "warm", "portable") if getattr(starts, kind) is not None} == left
    assert note == (
        f"starts are incomplete: the {dies} start exited with code 7; see cells/net.compile.{dies}_start.log"
    )
    caches.clear()


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
    spec = ComponentSpec(name="net", module={"_target_": "torch.nn.Identity"}, inputs={"input": {"shape": [1]}})
    options = as_recipe({"transforms": [{"_target_": "slow_start.slow", "_partial_": True}]})
    settings = Settings(device="cpu", dtype="float32", scale="full")
    cell = Cell(job=Job("t", spec, "slow", options, {}, settings, "run", FORWARD))

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    (tmp_path / "cells").mkdir()
    where = tmp_path, Limits(120.0, limit), set()
    with CompileCaches("shared").lease(cell) as leased:
        if note is None:
            assert measure_starts(cell, leased, *where)[0].cold.seconds > 1
            return
        with pytest.raises(NoStartError, match=note):
            measure_starts(cell, leased, *where)


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
