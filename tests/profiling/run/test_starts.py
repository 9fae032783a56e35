"""Starts of a cell: which processes run, with which cache, and what a real one takes."""

from dataclasses import replace
from pathlib import Path
from time import perf_counter

import pytest
import torch
from as_user import OUTSIDE
from make_job import make_config, make_job

from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError
from profiling.results.explanations import Package, RecipeStep
from profiling.results.measured import Start
from profiling.run.cell import prepare_phases
from profiling.run.compile_caches import CompileCaches, cache_variables
from profiling.run.events import Started
from profiling.run.forward import ForwardCell
from profiling.run.session import Limits, ProcessEnd
from profiling.run.starts import measure_starts
from profiling.run.task import Cell

COMPILER = {"_target_": "profiling.variants.inductor.Inductor", "mode": "default"}
NET = ComponentSpec(
    name="net", module={"_target_": "outside_net.Net"}, inputs={"x": {"shape": [2, 8]}, "gain": {"shape": [1]}}
)


def job(variant="compile", **options):
    return make_job(variant, component=NET, settings=Settings(device="cpu", dtype="float32", scale="full"), **options)


class Processes:
    """Processes that start by plan: `graphs` of each, and those that die."""

    def __init__(self, graphs=1, artifacts=b"saved", deaths=None):
        self.graphs, self.artifacts, self.deaths = graphs, artifacts, deaths or {}
        self.ran = []  # kind of start, cache folder, artifacts that it loads

    def __call__(self, task, files, limits, on_event, variables):
        assert limits == Limits(60.0)
        assert "TORCH_TRACE" not in variables
        kind = files.name.split(".")[-1].removesuffix("_start")
        loaded = None if task.load is None else Path(task.load).read_bytes()
        cache = Path(variables["TORCHINDUCTOR_CACHE_DIR"])
        was_empty = not cache.exists() or not list(cache.iterdir())
        (cache / "code").mkdir(parents=True, exist_ok=True)
        (cache / "plain").touch()
        self.ran.append((kind, cache, was_empty, loaded))
        if kind in self.deaths:
            return ProcessEnd(self.deaths[kind])
        if task.save is not None and self.artifacts:
            Path(task.save).write_bytes(self.artifacts)
        on_event(Started(Start(seconds=9.0, phases={"inductor": 7.0}, graphs=self.graphs)))
        return ProcessEnd()
        yield  # a generator


def measured(tmp_path, processes, leased, variant="compile"):
    task = Cell(job=job(variant, compiler=COMPILER))
    starts, notes = measure_starts(task, leased, tmp_path, Limits(60.0), processes)
    assert not notes
    return starts


def test_cold_warm_and_portable_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_TRACE", str(tmp_path))
    caches, processes = CompileCaches(), Processes()
    with caches.lease(Cell(job=job(compiler=COMPILER))) as leased:
        starts = measured(tmp_path, processes, leased)
        assert not leased.is_fillable  # the cell starts from what its cold start left
    (_, cold, cold_empty, _), (_, warm, warm_empty, _), (_, portable, portable_empty, loaded) = processes.ran
    assert [each[0] for each in processes.ran] == ["cold", "warm", "portable"]
    assert cold == warm == Path(leased.variables["TORCHINDUCTOR_CACHE_DIR"]) != portable
    assert (cold_empty, warm_empty, portable_empty, loaded) == (True, False, True, b"saved")
    assert starts.artifact_bytes == len(b"saved")
    assert starts.cold.unaccounted == 2.0
    with caches.lease(Cell(job=job("graph", compiler=COMPILER))) as second:
        measured(tmp_path, processes, second, "graph")
    assert processes.ran[3][2]  # its cold start is cold as well, although the cell itself is not
    caches.clear()


@pytest.mark.parametrize(
    ("processes", "ran"),
    [(Processes(graphs=0), ["cold"]), (Processes(artifacts=b""), ["cold", "warm"])],
    ids=["without a compiler", "without artifacts to take along"],
)
def test_starts_that_would_show_nothing_are_left_out(tmp_path, processes, ran):
    with CompileCaches("shared").lease(Cell(job=job())) as leased:
        starts = measured(tmp_path, processes, leased)
    assert [each[0] for each in processes.ran] == ran
    assert starts.portable is None
    assert (starts.warm is not None) == ("warm" in ran)


@pytest.mark.parametrize(
    ("dies", "left", "said"),
    [
        ("cold", set(), "no starts"),
        ("warm", {"cold"}, "starts are incomplete"),
        ("portable", {"cold", "warm"}, "starts are incomplete"),
    ],
)
def test_a_start_that_dies_costs_only_itself_and_what_needs_it(tmp_path, dies, left, said):
    """Where the cold one dies, there is no warm one, and the cell finds an empty cache."""
    caches, cell = CompileCaches(), Cell(job=job(compiler=COMPILER))
    processes = Processes(deaths={dies: "exited with code 7"})
    with caches.lease(cell) as leased:
        starts, notes = measure_starts(cell, leased, tmp_path, Limits(60.0), processes)
        assert leased.is_fillable == (dies == "cold")
        assert bool(list(Path(leased.variables["TORCHINDUCTOR_CACHE_DIR"]).iterdir())) == (dies != "cold")
    assert {kind for kind in ("cold", "warm", "portable") if getattr(starts, kind, None) is not None} == left
    log = f"cells/net.compile.{dies}_start.log"
    assert notes == (f"{said}: the {dies} start exited with code 7; see {log}",)
    caches.clear()


@pytest.mark.parametrize(
    ("target", "modules"),
    [
        ("profiling.variants.inductor.Inductor", ("torch._inductor.compile_fx", "profiling.variants.inductor")),
        ("mine.MyCompiler", ()),
        (None, ()),
    ],
)
def test_the_compiler_of_this_tool_is_imported_before_a_cell_is_forked(target, modules):
    compiler = None if target is None else {"_target_": target}
    on_cpu = job(compiler=compiler)
    on_gpu = replace(on_cpu, settings=replace(on_cpu.settings, device="cuda:0"))
    assert on_gpu.imports == modules
    found = ("profiling.variants.inductor:find_vector_instructions",) if modules else ()
    assert on_cpu.imports == (*modules[:1], *found, *modules[1:]), "what takes longest first, so that others share it"


@pytest.mark.parametrize("compiler", ["inductor", {"mode": "default"}, {"_target_": 5}])
def test_a_compiler_that_is_none_is_left_to_the_check_of_all_options(compiler):
    assert job(compiler=compiler).imports == ()


def test_starts_need_processes():
    with pytest.raises(InputError, match="isolation=none"):
        make_config({"baseline": {}}, settings=Settings(starts=True), isolation="none")


def test_the_phases_of_a_start_add_up(monkeypatch, tmp_path):
    """Called in this process, with a clock that began 5 s ago: those are the import."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    for name, value in cache_variables(str(tmp_path)).items():
        monkeypatch.setenv(name, value)
    torch._dynamo.reset()
    began = perf_counter() - 5.0
    start = ForwardCell(job=job(compiler=COMPILER), emit=lambda _: None).start(began)
    assert start.graphs == 1
    assert start.phases["import"] > 5.0
    assert {"load", "dynamo", "inductor", "call"} < set(start.phases)
    assert sum(start.phases.values()) <= start.seconds
    assert start.seconds == pytest.approx(perf_counter() - began, rel=0.2)


def test_making_and_loading_a_package_are_phases(monkeypatch):
    """A strict export is counted by Dynamo, too, and timing candidates by the phase autotune."""
    counted = {"dynamo": 1.0, "inductor": 0.5, "autotune": 2.0}
    monkeypatch.setattr("profiling.run.cell.seconds_since", lambda before: dict(counted))
    package = Package(file="a.pt2", bytes=1, export_s=4.0, compile_s=30.0, load_s=0.5)
    steps = (RecipeStep(kind="compiler", name="AOTInductor", seconds=36.0, packages=(package, package)),)
    assert prepare_phases({}, steps) == {**counted, "export": 7.0, "package": 57.5, "load package": 1.0}
    assert prepare_phases({}, ()) == counted


@pytest.mark.slow  # four processes that import torch, and two compiles
def test_a_run_with_starts(profile):
    outcome = profile("component=[net]", "variant=[compile]", "metric=[parity,latency]", "starts=true")
    assert outcome.code == 0, outcome.err
    record = outcome.records["net", "compile"]
    starts = record.starts
    assert starts.cold.graphs == starts.warm.graphs == 1
    assert (starts.cold.cache_hits, starts.warm.cache_hits > 0) == (0, True)
    assert starts.warm.phases["inductor"] < starts.cold.phases["inductor"]
    assert record.prepare.cache == "from the cold start of compile"
    for start in (starts.cold, starts.warm, starts.portable):
        assert start.unaccounted < 0.3 * start.seconds


@pytest.mark.slow  # three processes that import torch, and a package
def test_a_run_with_starts_of_a_package(profile):
    outcome = profile("component=[nested]", "variant=[aot_inductor]", "metric=[parity,latency]", "starts=true")
    assert outcome.code == 0, outcome.err
    record = outcome.records["nested", "aot_inductor"]
    cold, warm = record.starts.cold, record.starts.warm
    assert (cold.graphs, cold.cache_hits, warm.graphs, warm.cache_hits) == (1, 0, 1, 1)
    assert warm.phases["package"] < cold.phases["package"]
    assert record.starts.portable is None, "a package is itself what an application takes along"
    assert record.prepare.cache == "from the cold start of aot_inductor"
