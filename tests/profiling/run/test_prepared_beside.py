"""Which cells are prepared side by side, and what is compiled ahead meanwhile."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_cells import SETTINGS

from profiling.components.spec import ComponentSpec
from profiling.metrics.sampling import Ready
from profiling.results.record import Record
from profiling.run.cell import metrics_of
from profiling.run.cell_records import CellInProgress
from profiling.run.child import Pending, Performed
from profiling.run.events import Waiting
from profiling.run.in_turns import CellsInTurns, DueCell, most_beside
from profiling.run.job import FORWARD, RECIPE, Job

INDUCTOR = "profiling.variants.inductor.Inductor"
STEPS = 4


class Processes:
    """An executor whose cells take some steps to become ready; `log` has who began and who became ready, in order."""

    def __init__(self, free=10**12):
        self.log, self.active, self.most, self.free = [], set(), 0, free

    def session(self, task, name, on_event):
        yield from self._steps(name)
        limits = {"min_iterations": 1, "max_iterations": 9, "max_seconds": 1.0}
        yield Waiting(ready=Ready(call_s=0.1, used={"device": 10**9}, free={"device": self.free}, **limits))

    def compile_ahead(self, job):
        yield from self._steps(f"ahead {job.name}")
        return Performed()

    def _steps(self, name):
        self.log.append(f"begin {name}")
        self.active.add(name)
        self.most = max(self.most, len(self.active))
        for _ in range(STEPS):
            yield Pending((), 0.0)
        self.active.remove(name)
        self.log.append(f"ready {name}")


class Records:
    """The records of cells that nobody reads."""

    label, show = "", staticmethod(lambda cell, *, again=False: None)

    def begin(self, job, round_):
        measured = Record(target="t", component=job.component.name, variant=job.variant, status="ok")
        events = SimpleNamespace(receive=None, measured=measured)
        return CellInProgress(self, job, 1, events, [], 1)


def due(processes, variant, compiler=None, capture=None, component="net"):
    spec = ComponentSpec(component, {"_target_": "torch.nn.Identity"}, {"x": {"shape": [1]}})
    options = {"_target_": RECIPE, "compiler": compiler, "capture": capture}
    return DueCell(Records(), processes, Job("t", spec, variant, options, {}, SETTINGS, "run", {"_target_": "c"}))


def prepared(processes, *cells, most=8, ahead=()):
    turns = CellsInTurns()
    left = turns.prepare_all(cells, ahead, most)
    assert [each.due.job.variant for each in turns.waiting] == [
        each.job.variant for each in cells if each not in left
    ], "they take turns in the order in which they were given, the baseline first"
    return [each.job.variant for each in left]


COMPILE = {"_target_": INDUCTOR, "mode": "default"}


def test_the_first_cell_goes_alone_and_the_others_side_by_side():
    processes = Processes()
    cells = [due(processes, name, {**COMPILE, "name": name}) for name in ("baseline", "a", "b", "c")]
    assert prepared(processes, *cells) == []
    assert processes.log[:2] == ["begin net.baseline", "ready net.baseline"]
    assert processes.log[2:5] == ["begin net.a", "begin net.b", "begin net.c"]
    assert processes.most == 3


def test_no_more_than_so_many_are_prepared_at_a_time():
    processes = Processes()
    cells = [due(processes, name) for name in "abcdef"]
    assert prepared(processes, *cells, most=2) == []
    assert processes.most == 2


def test_cells_that_compile_the_same_code_follow_each_other():
    processes = Processes()
    cells = due(processes, "baseline"), due(processes, "compile", COMPILE), due(processes, "both", COMPILE, {"c": 1})
    prepared(processes, *cells)
    assert processes.log.index("ready net.compile") < processes.log.index("begin net.both")
    assert processes.most == 1


@pytest.mark.parametrize("option", [{"mode": "max-autotune"}, {"options": {"coordinate_descent_tuning": True}}])
def test_a_compiler_that_compares_times_goes_alone(option):
    processes = Processes()
    cells = [
        due(processes, "baseline"),
        due(processes, "tuned", COMPILE | option),
        due(processes, "a"),
        due(processes, "b"),
    ]
    prepared(processes, *cells)
    at = processes.log.index("begin net.tuned")
    assert processes.log[at + 1] == "ready net.tuned"
    assert processes.most == 2, "of the others"


def test_code_of_later_components_is_compiled_ahead_once_memory_is_known():
    processes = Processes()
    later = [due(processes, "compile", COMPILE, component=name) for name in ("two", "three")]
    prepared(processes, due(processes, "baseline"), due(processes, "compile", COMPILE), ahead=later)
    assert processes.log[1:5] == ["ready net.baseline", "begin net.compile", *processes.log[3:5]]
    assert {*processes.log[3:5]} == {"begin ahead two.compile", "begin ahead three.compile"}
    assert not processes.active, "nothing compiles when timing begins"


@pytest.mark.parametrize(
    ("procedure", "metrics", "settings", "beside"),
    [
        ({}, {"latency": {}}, {}, True),
        ({"_target_": "profiling.realtime.cell.RealtimeCell"}, {"latency": {}}, {}, False),
        ({}, {"calls": {"_target_": "profiling.metrics.calls.Calls"}}, {}, False),
        ({}, {"latency": {}}, {"trace": True}, False),
        ({}, {"latency": {}}, {"starts": True}, False),
        ({}, {"latency": {}}, {"check": True}, False),
    ],
)
def test_only_cells_that_are_not_measured_before_their_turn_are_prepared_side_by_side(
    monkeypatch, procedure, metrics, settings, beside
):
    """A loop, or a metric without turns, would be timed while others compile."""
    monkeypatch.setattr("profiling.run.in_turns.beside", lambda: 8)
    metrics = {name: {"_target_": "profiling.metrics.latency.Latency"} | node for name, node in metrics.items()}
    job = due(None, "baseline").job
    job = replace(
        job,
        procedure={**FORWARD, **procedure},
        metrics=metrics,
        settings=replace(job.settings, **settings),
    )
    assert (most_beside([DueCell(Records(), None, job)]) > 1) == beside


def test_what_waits_for_its_turns_is_measured_before_any_other_time():
    metrics = {name: f"profiling.metrics.{name}.{name.title()}" for name in ("calls", "memory", "latency", "parity")}
    job = replace(due(None, "baseline").job, metrics={name: {"_target_": path} for name, path in metrics.items()})
    assert list(metrics_of(job)) == ["parity", "latency", "calls", "memory"]


def test_cells_without_memory_are_left():
    processes = Processes(free=3 * 10**9)  # room for two more, with a margin
    cells = [due(processes, name) for name in ("baseline", "a", "b", "c")]
    turns = CellsInTurns()
    turns.prepare_all(cells, (), 8)
    assert processes.most == 2, "what is prepared needs memory, too"
    processes.free = 10**9
    processes.log.clear()
    assert prepared(processes, *cells) == ["a", "b", "c"]
