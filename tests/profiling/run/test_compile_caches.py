"""Which cells share a compiler's cache, what the record says of it, and that what they share is right."""

from dataclasses import replace
from pathlib import Path

import pytest
from make_job import NET, SETTINGS, make_job

from profiling.results.measured import Prepare
from profiling.results.record import decode_section, encode_sections
from profiling.run import process
from profiling.run.compile_caches import CompileCaches, shared_folder
from profiling.run.events import Phase, Sections
from profiling.run.process import Isolated
from profiling.run.session import Limits, Pending, ProcessEnd, to_its_end
from profiling.run.task import Cell, Probe

COMPILER = {"_target_": "profiling.variants.inductor.Inductor", "mode": "default"}
GRAPH = {"_target_": "profiling.variants.cuda_graph.CudaGraph", "warmup": 3}
COLD = Prepare(seconds=40.0, graphs=1, cache_hits=0, phases={"dynamo": 5.0, "inductor": 30.0, "autotune": 2.0})
WARM = Prepare(seconds=9.0, graphs=1, cache_hits=1, phases={"dynamo": 5.0, "inductor": 1.0, "capture": 2.0})


def task(variant, component="net", **options):
    return Cell(job=make_job(variant, component=replace(NET, name=component), **options))


def prepared(leased, prepare, variant="compile"):
    """Return the section as the record gets it."""
    event = leased.describe(Sections(encode_sections(prepare=prepare)), variant)
    assert isinstance(event, Sections)
    return decode_section("prepare", event.sections["prepare"])


def folder(leased):
    inductor = leased.variables["TORCHINDUCTOR_CACHE_DIR"]
    assert leased.variables["TRITON_CACHE_DIR"] == str(Path(inductor) / "triton")
    return Path(inductor)


def test_a_cell_with_the_same_compiler_starts_from_what_the_first_one_left():
    caches = CompileCaches()
    with caches.lease(task("compile", compiler=COMPILER, capture=None, tolerance=None)) as first:
        cold = prepared(first, COLD)
        with caches.lease(task("graph", compiler=COMPILER, capture=GRAPH, tolerance=0.1)) as second:
            warm = prepared(second, WARM)
            assert first.variables == second.variables
            packages = Path(first.variables["PROFILING_PACKAGES"])
            assert packages.parent == Path("run", "kernels"), "on the file system of the packages"
            assert folder(first) == folder(second)
    assert (cold.cache, cold.cold_s, cold.is_warm, cold.from_cold) == ("cold", None, False, 40.0)
    assert (warm.cache, warm.is_warm) == ("from compile", True)
    assert warm.from_cold == warm.cold_s == 9.0 + (30.0 - 1.0) + 2.0  # inductor and autotuning of the first one
    assert folder(first).is_dir()
    caches.clear()
    assert not folder(first).exists()


def test_a_cell_that_dies_while_it_compiles_leaves_nothing():
    caches = CompileCaches()
    with caches.lease(task("compile", compiler=COMPILER)) as first:
        (folder(first) / "half").touch()
    assert not folder(first).exists()
    with caches.lease(task("graph", compiler=COMPILER)) as second:
        assert prepared(second, COLD).cache == "cold"
    caches.clear()


@pytest.mark.parametrize("fills", [True, False])
def test_a_cell_that_waits_for_the_code_of_another_has_its_cache(fills):
    caches = CompileCaches()
    first, second = (caches.lease(task(name, compiler=COMPILER)) for name in ("compile", "again"))
    with second as waiting:
        with first as compiling:
            assert folder(compiling) == folder(waiting)
            if fills:
                prepared(compiling, COLD)
        assert folder(waiting).exists(), "the other has not ended"
        assert prepared(waiting, WARM if fills else COLD).cache == ("from compile" if fills else "cold")
    caches.clear()
    assert not folder(waiting).exists()


@pytest.mark.parametrize("prepared", [False, True])
def test_a_cell_that_fails_while_it_compiles_leaves_nothing_to_those_that_wait(tmp_path, monkeypatch, prepared):
    def perform(task, files, limits, on_event, environment, **_):
        on_event(Phase("prepare"))
        Path(environment["TORCHINDUCTOR_CACHE_DIR"], "code").touch()
        if prepared:
            on_event(Sections(encode_sections(prepare=COLD)))
        yield Pending((), 0.0)
        return ProcessEnd("was killed by SIGKILL")

    monkeypatch.setattr(process, "open_session", perform)
    caches = CompileCaches()
    executor = Isolated(tmp_path, Limits(60.0), caches=caches)
    with caches.lease(task("again", compiler=COMPILER)) as waiting:
        to_its_end(executor.session(task("compile", compiler=COMPILER), "net.compile", lambda event: None))
        assert [each.name for each in folder(waiting).iterdir()] == ["code"] * prepared
    caches.clear()


def test_cells_without_a_compiler_do_not_share_what_is_not_filled():
    """Their Triton kernels are compiled in their calls: two at a time would each seem to be cold."""
    caches = CompileCaches()
    with caches.lease(task("a", transforms=["t"])) as first, caches.lease(task("b", transforms=["t"])) as second:
        assert folder(first) != folder(second)
    assert not folder(second).exists()


@pytest.mark.parametrize(
    "other",
    [
        task("other", compiler={**COMPILER, "options": {"freezing": True}}),
        task("other", compiler=COMPILER, transforms=[{"_target_": "my.transform"}]),
        task("other", component="another", compiler=COMPILER),
        task("other", _target_="my.Variant", compiler=COMPILER),
        Probe(jobs=()),
    ],
    ids=["other options", "a transform", "another component", "a variant that is no recipe", "no cell"],
)
def test_what_may_compile_other_code_gets_an_empty_cache(other):
    caches = CompileCaches()
    with caches.lease(task("compile", compiler=COMPILER)) as first, caches.lease(other) as second:
        prepared(first, COLD)
        assert folder(first) != folder(second)
        assert prepared(second, COLD).cache == "cold"
    caches.clear()


def test_each_cell_gets_an_empty_cache_where_that_is_asked_for():
    caches = CompileCaches("cold")
    folders = []
    for variant in ("compile", "graph"):
        with caches.lease(task(variant, compiler=COMPILER)) as leased:
            folders.append(folder(leased))
            assert "PROFILING_PACKAGES" not in leased.variables
            assert prepared(leased, COLD).cache == "cold"
        assert not folders[-1].exists()
    assert folders[0] != folders[1]


def test_inductors_own_cache_is_neither():
    with CompileCaches("shared").lease(task("compile", compiler=COMPILER)) as leased:
        assert not leased.variables
        assert prepared(leased, COLD) == COLD
        assert prepared(leased, WARM).is_warm


def test_a_cell_that_compiles_nothing_says_nothing():
    caches = CompileCaches()
    with caches.lease(task("baseline")) as leased:
        eager = Prepare(seconds=0.1, graphs=0, cache_hits=0)
        assert prepared(leased, eager) == eager
        assert leased.describe(Phase("load"), "baseline") == Phase("load")
        damaged = Sections({"prepare": {"seconds": "many"}})
        assert leased.describe(damaged, "baseline") == damaged  # the record says what is wrong


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 4242"), OSError("no user name")])
def test_the_folder_that_outlives_a_run_is_that_of_torch_also_for_a_user_without_a_name(monkeypatch, error):
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert str(shared_folder()) == default_cache_dir()

    def no_name():
        raise error

    monkeypatch.setattr("getpass.getuser", no_name)
    assert str(shared_folder()) == default_cache_dir()
    monkeypatch.setattr("getpass.getuser", lambda: "DOMAIN/me")
    assert str(shared_folder()) == default_cache_dir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert shared_folder() == Path("/elsewhere")


def test_what_a_cell_needs_is_kept_in_the_shared_folder_until_something_else_is_built_there(tmp_path):
    job = task("compile", compiler=COMPILER, settings=replace(SETTINGS, compile_cache="shared")).job
    before = CompileCaches("shared", tmp_path)
    assert not before.has_code(job)
    before.keep_memory(job, {"device": 2, "host": 3})
    assert not before.has_code(job), "what was read stays as it was before the run"
    after = CompileCaches("shared", tmp_path)
    assert after.memory_of(job) == {"device": 2, "host": 3}
    assert after.has_code(job)
    others = (
        replace(job, variant="other", variant_options=job.variant_options | {"capture": GRAPH}),
        replace(job, variant="half", settings=replace(job.settings, dtype="float16")),
        replace(job, variant="wider", component=replace(job.component, module={"_target_": "a.Net", "width": 2})),
    )
    assert [after.memory_of(each) for each in others] == [{}, {}, {}]
    edited = CompileCaches("shared", tmp_path)
    edited.setup = "the network's code has changed"
    assert not edited.has_code(job)
    damaged = next((tmp_path / "profiling").iterdir())
    damaged.write_text("[1")
    for caches in (CompileCaches("shared", tmp_path), CompileCaches("shared"), CompileCaches("fresh", tmp_path)):
        assert not caches.memory_of(job)
    after.add_code(others[0])
    assert after.has_code(replace(others[0], variant="again")), "another cell of this run has compiled it"
