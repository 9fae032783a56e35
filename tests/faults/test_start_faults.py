"""Compiling and starting.

What a cell leaves in the compiler's cache that dies in it, and starts that end before the first output.
"""

import json
from pathlib import Path

import msgspec
import pytest

from profiling.components.spec import ComponentSpec, Settings
from profiling.results.record import Prepare, encode_sections
from profiling.run.compile_caches import CompileCaches
from profiling.run.events import Sections
from profiling.run.job import FORWARD, Job, as_recipe
from profiling.run.starts import Order, StartPass


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
