"""Which cells are prepared side by side: of the component, of later ones, and second processes of both."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_cells import Silent
from make_job import NET, SETTINGS, make_job

from profiling.metrics.sampling import Ready
from profiling.results.measured import Prepare
from profiling.results.record import Record, encode_sections
from profiling.run import in_turns
from profiling.run.cell import metrics_of
from profiling.run.cell_records import LiveCell
from profiling.run.compile_caches import CompileCaches, shares_code
from profiling.run.events import End, Sections, Waiting
from profiling.run.in_turns import CellsInTurns, most_concurrent
from profiling.run.job import FORWARD, LATENCY
from profiling.run.process import Isolated
from profiling.run.session import Pending, ProcessEnd

INDUCTOR = "profiling.variants.inductor.Inductor"
COMPILE = {"_target_": INDUCTOR, "mode": "default"}
STEPS = 4
#: A cell that ends with its traces.
BRIEF = "net.brief"
GB = 10**9


class Processes(Isolated):
    """A fake executor: a cell is ready after it was resumed `STEPS` times, half of them before it prepares.

    `log` has each begin and end, in order.
    """

    def __init__(self, memory=10**12, lacking=(), dying=(), compile_steps=STEPS // 2):
        self.compile_steps, self.dying = compile_steps, dying
        self.compiled, self.loads, self.caches = set(), {}, CompileCaches()
        self.begun = self.most_begun = 0  # and not ready
        self.log, self.active, self.most, self.memory, self.lacking = [], set(), 0, memory, list(lacking)
        self.alive = 0

    def session(self, task, name, on_event, *, turns=True):
        self.log.append(f"begin {name}")
        self.loads[name] = task.loads
        self.begun += 1
        self.most_begun = max(self.most_begun, self.begun)
        compiles = task.job.compiles and shares_code(task.job)
        code = f"{task.job.component.name} {task.job.variant_options['compiler']}" if compiles else name
        self.active.add(name)
        self.most = max(self.most, len(self.active))
        for _ in range(STEPS // 2):
            yield Pending((), 0.0)
        if task.job.parts:  # they have been compiled
            self.caches.add_code(task.job)
            self.compiled.add(code)
        if task.job.compiles:
            self.active.discard(name)
            yield Waiting(ready=Ready(used={}, free={}, takes_windows=False, prepared=False))
            self.active.add(name)
            if name in self.dying:
                self.active.discard(name)
                self.begun -= 1
                return ProcessEnd("was killed by SIGKILL")
            self.log.append(f"{'loads' if code in self.compiled else 'compiles'} {name}")
        for _ in range(self.compile_steps if task.job.compiles else STEPS // 2):
            yield Pending((), 0.0)
        self.active.discard(name)
        self.begun -= 1
        if name in self.lacking:
            self.lacking.remove(name)
            self.log.append(f"lacking {name}")
            on_event(End("failed", "out of memory", out_of_memory=True))
            return ProcessEnd()
        if task.job.compiles:
            self.compiled.add(code)
            on_event(Sections(encode_sections(prepare=Prepare(seconds=1.0, phases={}, graphs=1))))
        self.log.append(f"ready {name}")
        self.alive += 1
        try:
            limits = {"min_iterations": 1, "max_iterations": 9, "max_seconds": 1.0}
            free = {"device": self.memory - self.alive * GB}
            ready = Ready(used={"device": GB}, free=free, **limits)
            yield Waiting(ready=ready)
            self.log.append(f"trace {name}")
            if name == BRIEF:
                return ProcessEnd()
            yield Waiting(ready=ready)
            for part in range(STEPS):
                self.log.append(f"analyse {part} {name}")
                yield Pending((), 0.0)
            return ProcessEnd()
        finally:
            self.alive -= 1


class Records(SimpleNamespace):
    """The records of cells that nobody reads."""

    def __init__(self, folder="run"):
        super().__init__(label="", progress=Silent(), total=0, ended=[], folder=folder)

    def show(self, cell, *, again=False):
        pass

    def base_record(self, job):
        return Record(target="t", component=job.component.name, variant=job.variant, status="ok")

    def begin(self, cell):
        cell.number = 1
        return True

    def end(self, cell, note=""):
        self.ended.append(cell)


def due(processes, variant, compiler=None, capture=None, component="net", run="run", **settings):
    options = {"compiler": compiler, "capture": capture, "settings": replace(SETTINGS, **settings)}
    spec, metrics = replace(NET, name=component), {"latency": {"_target_": LATENCY}}
    return LiveCell(Records(run), processes, make_job(variant, component=spec, metrics=metrics, **options))


def prepared(turns, *cells, most=8, later=()):
    left = turns.prepare_all(cells, later, most)
    waiting = [each for each in turns.waiting if each in cells]
    assert waiting == [each for each in cells if each in waiting], "they take turns in the order of the caller"
    return [each.job.variant for each in left]


@pytest.mark.parametrize("most", [1, 2])
def test_cells_trace_one_by_one_and_analyse_side_by_side_where_there_is_room(monkeypatch, most):
    monkeypatch.setattr(in_turns, "most_processes", lambda: most)
    processes, turns = Processes(), CellsInTurns()
    cells = [due(processes, "a"), due(processes, "b")]
    prepared(turns, *cells, most=1)
    processes.log.clear()
    turns.finish(cells)
    analyses = [[f"analyse {part} net.{name}" for part in range(STEPS)] for name in "ab"]
    if most == 1:
        assert processes.log == ["trace net.a", *analyses[0], "trace net.b", *analyses[1]]
    else:
        assert processes.log == ["trace net.a", "trace net.b", *(each for both in zip(*analyses) for each in both)]  # noqa: B905
    assert [each.session for each in cells] == [None, None]
    assert cells[0].records.ended == [cells[0]]


def test_the_record_of_a_cell_is_kept_as_soon_as_it_ends(monkeypatch):
    monkeypatch.setattr(in_turns, "most_processes", lambda: 3)
    processes, turns = Processes(), CellsInTurns()
    cells = [due(processes, "brief"), due(processes, "a"), due(processes, "b")]
    for cell in cells:
        cell.records.end = lambda cell, note="": processes.log.append(f"kept net.{cell.job.variant}")
    prepared(turns, *cells, most=1)
    processes.log.clear()
    turns.finish(cells)
    assert processes.log[:3] == ["trace net.brief", "kept net.brief", "trace net.a"]
    assert processes.log[-2:] == ["kept net.a", "kept net.b"]
    assert turns.waiting == []


@pytest.mark.parametrize("option", ["counters", "memory_snapshot"])
def test_what_measures_after_the_traces_goes_one_by_one(monkeypatch, option):
    monkeypatch.setattr(in_turns, "most_processes", lambda: 2)
    processes, turns = Processes(), CellsInTurns()
    cells = [due(processes, name, **{option: True}) for name in "ab"]
    prepared(turns, *cells, most=1)
    processes.log.clear()
    turns.finish(cells)
    assert processes.log.index("trace net.b") == 1 + STEPS


def begun(processes):
    return [line.removeprefix("begin ") for line in processes.log if line.startswith("begin")]


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_than_so_many_are_prepared_at_a_time(most):
    processes = Processes()
    cells = [due(processes, "a"), due(processes, "b"), due(processes, "c", COMPILE), due(processes, "d")]
    assert prepared(CellsInTurns(), *cells, most=most, later=[due(processes, "a", component="two")]) == []
    assert processes.most == most
    if most == 1:  # in order, and nothing that may not be needed
        assert begun(processes) == ["net.a", "net.b", "net.c", "net.d"]


@pytest.mark.parametrize("compiler", [COMPILE, {"_target_": "my.Compiler"}])
def test_cells_with_the_same_code_begin_while_one_of_them_compiles_and_load_what_that_has_compiled(compiler):
    processes = Processes(compile_steps=10 * STEPS)
    cells = due(processes, "baseline"), due(processes, "compile", compiler), due(processes, "both", compiler, {"c": 1})
    prepared(CellsInTurns(), *cells)
    log = processes.log
    at = log.index("ready net.compile")
    for other in ("net.both", "net.both.control"):
        assert log.index("compiles net.compile") < log.index(f"begin {other}") < at < log.index(f"loads {other}")
    with_workers = [name for name, loads in processes.loads.items() if not loads]
    assert with_workers == ["net.baseline", "net.compile", "net.baseline.control"]


@pytest.mark.parametrize("options", [{"lacking": ["net.compile"]}, {}])
def test_a_cell_whose_code_no_other_has_compiled_compiles_it(options):
    """The other ended before it had, or the caches are not shared."""
    processes = Processes(**options)
    cold = {} if options else {"compile_cache": "cold"}
    cells = [
        due(processes, *each, **cold) for each in (["baseline"], ["compile", COMPILE], ["both", COMPILE, {"c": 1}])
    ]
    prepared(CellsInTurns(again=[]), *cells)
    log, ended = processes.log, f"{'lacking' if options else 'ready'} net.compile"
    assert log.index("compiles net.compile") < log.index(ended) < log.index("compiles net.both")
    if options:
        assert "loads net.both.control" in log, "it does not compile before the cell whose row says what that takes"


def test_cells_that_die_while_they_are_held_end_and_so_do_their_controls():
    processes = Processes(dying=["net.both"], compile_steps=10 * STEPS)
    cells = [due(processes, *each) for each in (["baseline"], ["compile", COMPILE], ["both", COMPILE, {"c": 1}])]
    turns = CellsInTurns()
    prepared(turns, *cells)
    assert "begin net.both.control" in processes.log
    assert [each.job.variant for each in turns.waiting] == ["baseline", "compile"]


def test_a_compiler_that_keeps_its_kernels_apart_shares_nothing():
    processes, keeping = Processes(), COMPILE | {"keep_kernels": True}
    prepared(CellsInTurns(), due(processes, "baseline"), due(processes, "a", keeping), due(processes, "b", keeping))
    log = processes.log
    assert log.index("ready net.a") < log.index("compiles net.b")
    assert "begin net.a.control" not in log, "it would write into the same folder"


def test_the_steps_of_a_variant_that_is_no_recipe_are_not_counted():
    job = due(None, "mine", COMPILE, {"c": 1}).job
    assert job.steps == 2
    assert replace(job, variant_options={"_target_": "my.Variant", "transforms": 3}).steps == 0


def test_cells_that_wait_for_code_take_no_place_of_others():
    processes = Processes(compile_steps=3 * STEPS)
    same = [due(processes, f"same{number}", COMPILE, {"c": number}) for number in range(3)]
    prepared(CellsInTurns(), due(processes, "baseline"), *same, most=2)
    assert processes.log.index("begin net.same2") < processes.log.index("ready net.same0")
    assert processes.most == 2
    processes = Processes(lacking=["net.baseline"], compile_steps=100)
    same = [due(processes, f"same{number}", COMPILE, {"c": number}) for number in range(30)]
    prepared(CellsInTurns(), due(processes, "baseline"), *same, most=2)
    assert processes.most_begun == in_turns.MOST_ALIVE * 2, "how much memory one needs is not known"


def test_a_cell_whose_code_is_compiled_before_its_process_starts_begins_when_that_is_known(monkeypatch):
    """The stages of a loop are compiled one by one: a second loop of the same code would compile them, too."""
    monkeypatch.setattr("profiling.run.compile_caches.most_processes", lambda: 8)
    processes = Processes()
    compiled = [due(processes, *each) for each in (["compile", COMPILE], ["both", COMPILE, {"c": 1}])]
    for each in compiled:
        each.job = replace(each.job, parts=(due(None, "one", COMPILE).job, due(None, "two", COMPILE).job))
    prepared(CellsInTurns(), due(processes, "baseline"), *compiled, due(processes, "other"))
    log = processes.log
    assert log.index("begin net.other") < log.index("loads net.compile") < log.index("begin net.both")


def runs_with_a_shared_folder(folder, free=10**12, **options):
    """Prepare four cells, whose caches are in a folder that outlives the run; return the log without controls."""
    processes = Processes(**options)
    processes.caches = CompileCaches("shared", folder)
    recipes = ["baseline"], ["graph", None, {"c": 1}], ["compile", COMPILE], ["both", COMPILE, {"c": 1}]
    cells = [due(processes, *each, compile_cache="shared") for each in recipes]
    turns = CellsInTurns(again=[], free={"device": free})
    assert prepared(turns, *cells) == []
    assert [each.job.variant for each in turns.again] == [name.removeprefix("net.") for name in options["lacking"]]
    return [line for line in processes.log if not line.endswith(".control")]


def test_what_an_earlier_run_compiled_into_a_shared_folder_is_neither_waited_for_nor_begun_alone(tmp_path):
    first, again = (runs_with_a_shared_folder(tmp_path, lacking=()) for _ in range(2))
    assert first[:2] == ["begin net.baseline", "ready net.baseline"], "what a cell needs is not known"
    assert first.index("ready net.compile") < first.index("loads net.both")
    begun = [line for line in again if line.startswith("begin")]
    assert begun == [f"begin net.{name}" for name in ("baseline", "graph", "compile", "both")]
    assert again.index("compiles net.both") < again.index("ready net.compile"), "none waits for the other"
    assert runs_with_a_shared_folder(None, lacking=()) == runs_with_a_shared_folder(None, lacking=()) == first


def test_what_an_earlier_run_needed_may_not_fit_now_or_may_be_wrong(tmp_path):
    runs_with_a_shared_folder(tmp_path, lacking=())
    little = runs_with_a_shared_folder(tmp_path, free=2.5 * GB, lacking=())
    assert little[:3] == ["begin net.baseline", "begin net.graph", "ready net.baseline"], "two have room at a time"
    wrong = runs_with_a_shared_folder(tmp_path, lacking=["net.compile"])
    assert "lacking net.compile" in wrong, "it is run again, alone, though none was ready when it ended"


def test_a_cell_that_runs_out_of_memory_is_not_trusted_by_the_next_run(tmp_path):
    runs_with_a_shared_folder(tmp_path, lacking=())
    runs_with_a_shared_folder(tmp_path, lacking=["net.compile"])
    job = due(Processes(), "compile", COMPILE, compile_cache="shared").job
    assert not CompileCaches("shared", tmp_path).memory_of(job), "it took more than was kept"


def test_a_cell_that_runs_out_of_memory_beside_its_own_control_runs_again(tmp_path):
    for lacking in ([], ["net.baseline"]):
        processes, turns = Processes(lacking=lacking), CellsInTurns(again=[])
        processes.caches = CompileCaches("shared", tmp_path)
        cell = due(processes, "baseline", compile_cache="shared")
        assert prepared(turns, cell) == []
    assert processes.log[:2] == ["begin net.baseline", "begin net.baseline.control"]
    assert turns.again == [cell]


def test_two_revisions_begin_alike_although_they_keep_what_they_need_in_the_same_file(tmp_path):
    cells = []
    for run in "AB":
        processes = Processes()
        processes.caches = CompileCaches("shared", tmp_path)
        cells.append(due(processes, "compile", COMPILE, run=run, compile_cache="shared"))
    prepared(CellsInTurns(), *cells)
    assert [each.executor.loads["net.compile"] for each in cells] == [False, False]


def test_two_runs_do_not_share_what_they_have_compiled():
    """Two revisions are compared: the caches of one hold no code of the other."""
    processes = Processes()
    a, b = (due(processes, "compile", COMPILE, run=run) for run in "AB")
    prepared(CellsInTurns(), due(processes, "baseline"), a, b)
    first, second = (place for place, line in enumerate(processes.log) if line == "begin net.compile")
    assert "ready net.compile" not in processes.log[first:second], "they are compiled side by side"


def test_controls_that_the_turns_will_need_are_prepared_beside_the_cells():
    """That of the baseline, and that of the recipe with the most steps, which is probably the fastest."""
    processes = Processes(compile_steps=10 * STEPS)
    recipes = ["baseline"], ["graph", None, {"c": 1}], ["compile", COMPILE], ["both", COMPILE, {"c": 1}]
    prepared(CellsInTurns(), *(due(processes, *each) for each in recipes), most=2)
    controls = [each for each in begun(processes) if each.endswith(".control")]
    assert controls == ["net.baseline.control", "net.both.control"]
    assert processes.log.index("begin net.baseline.control") < processes.log.index("ready net.compile")


def test_with_cold_caches_a_second_process_that_compiles_waits_until_it_is_needed():
    processes = Processes()
    prepared(CellsInTurns(), *(due(processes, *each, compile_cache="cold") for each in (["baseline"], ["b", COMPILE])))
    assert begun(processes) == ["net.baseline", "net.b", "net.baseline.control"]


@pytest.mark.parametrize("option", [{"mode": "max-autotune"}, {"options": {"coordinate_descent_tuning": True}}])
def test_a_compiler_that_compares_times_goes_alone(option):
    processes = Processes()
    first, *others = (due(processes, name) for name in ("baseline", "a", "b"))
    prepared(CellsInTurns(), first, due(processes, "tuned", COMPILE | option), *others)
    at = processes.log.index("begin net.tuned")
    assert processes.log[at + 1 : at + 3] == ["compiles net.tuned", "ready net.tuned"]
    assert processes.most > 1, "of the others"


def test_the_first_cell_goes_alone_then_what_compiles_also_of_later_components_and_the_others_meanwhile():
    processes, turns = Processes(compile_steps=10 * STEPS), CellsInTurns()
    later = [due(processes, *recipe, component=name) for name in ("two", "three") for recipe in (["a"], ["b", COMPILE])]
    first = [due(processes, "baseline"), due(processes, "compile", COMPILE)]
    assert prepared(turns, *first, later=later) == []
    log = [line for line in processes.log if not line.endswith(".control")]
    assert log[1:5] == ["ready net.baseline", "begin net.compile", "begin two.b", "begin three.b"]
    assert log.index("compiles three.b") < log.index("begin two.a") < log.index("ready net.compile")
    assert not processes.active, "nothing compiles when timing begins"
    before = len(processes.log)
    assert prepared(turns, *later[:2], later=later[2:]) == []
    assert len(processes.log) == before, "they are ready"


def test_cells_without_memory_are_left():
    processes = Processes(memory=4 * GB)  # room for three, with a margin
    cells = [due(processes, name) for name in ("baseline", "a", "b", "c")]
    assert prepared(CellsInTurns(), *cells) == ["c"]
    assert processes.most == 2, "what is prepared needs memory, too"


def test_cells_of_later_components_make_room_for_those_that_are_due():
    """They are prepared early beside a cell that takes long, and begin once more in their own turn."""
    processes, turns, alone = Processes(memory=5 * GB), CellsInTurns(), {"mode": "max-autotune"}
    cells = due(processes, "baseline"), due(processes, "compile", COMPILE), due(processes, "tuned", COMPILE | alone)
    later = [due(processes, name, component="two") for name in "ab"]
    assert prepared(turns, *cells, later=later) == []
    assert [each for each in turns.waiting if each in cells] == list(cells)
    given_up = [each for each in later if each not in turns.waiting]
    begins_again = [(each.number, each.placement, each.records.total) for each in given_up]
    assert begins_again == [(0, None, 1)] * len(given_up) != [], "progress counts it once more"


@pytest.mark.parametrize("is_due", [True, False])
def test_a_cell_that_runs_out_of_memory_beside_others_is_run_once_more(is_due):
    processes, again = Processes(lacking=["two.a"]), []
    turns = CellsInTurns(again=again)
    big = due(processes, "a", component="two")
    first = due(processes, "baseline"), due(processes, "b")
    prepared(turns, *first, *([big] if is_due else []), later=[] if is_due else [big])
    assert again == ([big] if is_due else [])
    assert big not in turns.waiting
    assert not big.records.ended
    if not is_due:
        assert big.concurrent == 0, "what was prepared at the time of its first try does not lengthen the next one"
        assert prepared(turns, big) == []
        assert big in turns.waiting


@pytest.mark.parametrize(
    ("procedure", "metrics", "settings", "side_by_side"),
    [
        ({}, {"latency": {}}, {}, True),
        ({"_target_": "profiling.realtime.cell.RealtimeCell"}, {"latency": {}}, {}, False),
        ({}, {"calls": {"_target_": "profiling.metrics.calls.Calls"}}, {}, False),
        *(({}, {"latency": {}}, {option: True}, False) for option in ("trace", "starts", "check")),
    ],
)
def test_only_cells_that_are_not_measured_before_their_turn_are_prepared_side_by_side(
    monkeypatch, procedure, metrics, settings, side_by_side
):
    """A loop, or a metric without turns, would be timed while others compile."""
    monkeypatch.setattr("profiling.run.in_turns.most_processes", lambda: 8)
    metrics = {name: {"_target_": "profiling.metrics.latency.Latency"} | node for name, node in metrics.items()}
    cell = due(None, "baseline", **settings)
    cell.job = replace(cell.job, procedure={**FORWARD, **procedure}, metrics=metrics)
    assert (most_concurrent([cell]) > 1) == side_by_side


def test_what_waits_for_its_turns_is_measured_before_any_other_time():
    metrics = {name: f"profiling.metrics.{name}.{name.title()}" for name in ("calls", "memory", "latency", "parity")}
    job = replace(due(None, "baseline").job, metrics={name: {"_target_": path} for name, path in metrics.items()})
    assert list(metrics_of(job)) == ["parity", "latency", "calls", "memory"]
