"""Compiling and starting.

What a cell leaves in the compiler's cache that dies in it, and starts that end before the first output.
"""

from pathlib import Path

import pytest

from profiling.components.spec import ComponentSpec, Settings
from profiling.results.record import Prepare, encode_sections
from profiling.run.compile_caches import CompileCaches
from profiling.run.events import Sections
from profiling.run.job import FORWARD, Job, as_recipe


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
