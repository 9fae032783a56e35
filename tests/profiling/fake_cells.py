"""Cells without processes: they take turns on a fake clock, and each is as fast, or fails, as its plan says."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from make_job import SETTINGS, make_config, make_job
from make_record import record

from profiling.metrics.sampling import Ready, Sample, Turn, WindowSamples, collect_window, summaries
from profiling.results.environment import Environment
from profiling.results.jsonl import read_records
from profiling.results.measured import LatencyConditions, Metrics, Parity, Prepare
from profiling.results.record import encode_sections
from profiling.run import runner
from profiling.run.cell_records import LiveCell
from profiling.run.checkouts import Checkout
from profiling.run.compile_caches import CompileCaches
from profiling.run.events import End, Probed, Sections, Waiting
from profiling.run.process import Isolated
from profiling.run.session import Limits, ProcessEnd
from profiling.run.task import Probe

GB = 10**9

#: A window of a cell that takes no turns.
ALONE = Turn(seconds=1.0, calls=100)


@dataclass
class Plan:
    """How a cell behaves: its call in ms at a number of seconds, memory, and what happens at a step.

    Steps are `ready`, a window's number from 1 on, and `finish`; what happens is called.
    """

    call_ms: float = 10.0
    noise: float = 0.002
    drift: float = 0.0  # share by which a call gets slower in a minute
    prepare_s: float = 0.0  # seconds until it is ready
    warm_s: float = 0.0  # seconds before its first window
    phases: dict = field(default_factory=dict)  # of these seconds
    rel_l2: float = 1e-6  # its error, of which 1e-4 is accepted
    used: int = GB
    lost: Callable[[float], float] = lambda seconds: 0.0  # share of the CPU that others take at that time
    limits: dict = field(default_factory=dict)
    happens: dict = field(default_factory=dict)  # step → function that raises, or returns how the process ended
    control_ms: float | None = None  # its call in a second process, if that takes another time
    control_happens: dict = field(default_factory=dict)


@dataclass
class FakeCells(Isolated):
    """Performs cells by plan; `log` tells in which order they were active."""

    plans: dict[str, Plan]
    memory: float = 1e15  # bytes of the host
    seconds: float = 0.0
    log: list[tuple[str, object]] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    not_run: dict = field(default_factory=dict)  # variants that cannot run here, with their ends
    limits: Limits = field(default_factory=lambda: Limits(1800.0))
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    caches: CompileCaches = field(default_factory=CompileCaches)

    def alone(self, task, name, on_event):
        """Perform the probe, or a cell that is alone."""
        if isinstance(task, Probe):
            on_event(Probed(settings=SETTINGS, environment=Environment(), not_run=self.not_run))
            return ProcessEnd()
        variant = name.partition(".")[2]
        self.log.append((variant, "alone"))
        on_event(Sections(encode_sections(parameters=1, metrics=self.measured([self.window(self.plans[variant])]))))
        on_event(End("ok"))
        return ProcessEnd()

    def session(self, task, name, on_event, *, turns=True):
        """Perform a cell that takes turns, or its control, a second process, whose steps are not in the log."""
        if not turns:
            return self.alone(task, name, on_event)
        variant, windows = name.partition(".")[2].replace(".control", ""), []
        plan = self.plans[variant]
        is_control = name.partition(" of ")[0].endswith(".control")
        if is_control:
            plan = replace(plan, call_ms=plan.control_ms or plan.call_ms, happens=plan.control_happens)

        def step(at):
            if not is_control:
                self.log.append((variant, at))
            happens = plan.happens.get(at)
            return None if happens is None else happens(on_event)

        try:
            self.held[name] = plan.used
            self.seconds += min(plan.prepare_s, self.limits.seconds)
            if plan.prepare_s > self.limits.seconds:
                return ProcessEnd("took longer than cell_timeout and was killed")
            wrong = plan.rel_l2 > 1e-4
            parity = Parity(reference="fp32 eager", passed=not wrong, rel_l2=plan.rel_l2, tolerance=1e-4)
            prepare = Prepare(seconds=plan.prepare_s, phases=plan.phases)
            on_event(Sections(encode_sections(parameters=1, parity=parity, prepare=prepare)))
            if (ended := step("ready")) is not None:
                return ended
            limits = {"min_iterations": 20, "max_iterations": 2000, "max_seconds": 10.0}
            free = int(self.memory - sum(self.held.values()))
            used = {"host": plan.used}
            ready = Ready(used=used, free={"host": free}, **{**limits, **plan.limits})
            turn = yield Waiting(ready=ready)
            while turn.seconds > 0:
                if (ended := step(len(windows) + 1)) is not None:
                    return ended
                self.seconds += 0.0 if windows else plan.warm_s
                windows.append(self.window(plan, turn))
                turn = yield Waiting(window=windows[-1])
            if (ended := step("finish")) is not None:
                return ended
            windows = windows or [self.window(plan)]
            on_event(Sections(encode_sections(metrics=self.measured(windows))))
            on_event(End("failed", f"parity: relative L2 error {plan.rel_l2:.2g}") if wrong else End("ok"))
            return ProcessEnd()
        finally:
            self.held.pop(name, None)

    def window(self, plan, turn=ALONE):
        """Return the samples of a window, whose time passes."""
        start = self.seconds

        def sample():
            drifted = plan.call_ms * (1 + plan.drift * self.seconds / 60) / (1 - plan.lost(start))
            taken = Sample(drifted * (1 + plan.noise * abs(self.rng.gauss(0, 1))))
            self.seconds += taken.wall / 1e3
            return taken

        wall_ms = tuple(each.wall for each in collect_window(sample, turn, lambda: self.seconds))
        return WindowSamples(start_s=start, wall_ms=wall_ms, cpu_lost_share=plan.lost(start))

    def measured(self, windows):
        """Return the metrics that a cell sends."""
        lost = sum(window.cpu_lost_share * sum(window.wall_ms) for window in windows)
        lost /= sum(sum(window.wall_ms) for window in windows)
        warm = {"cold": False, "warmup_seconds": 0.1, "settled": True}
        return Metrics(**summaries(windows, None), latency=LatencyConditions(**warm, cpu_lost_share=lost))


class Silent(SimpleNamespace):
    """A progress display that shows nothing, and keeps what was said."""

    def __init__(self):
        super().__init__(said=[])

    def __getattr__(self, name):
        return self.said.append if name == "say" else lambda *_, **__: None


def watched() -> LiveCell:
    """Return a cell without a process, which events may be sent to."""
    base = record(variant="tried").with_status("skipped", "not run")
    records: Any = SimpleNamespace(base_record=lambda job: base, progress=Silent())
    return LiveCell(records, FakeCells({}), make_job("tried"))


def run_of(folder, cells, **options):
    """Return a run of one component under the variants that `cells` has plans for, which take turns."""
    config = make_config({name: {} for name in cells.plans}, **options)
    folder.mkdir(exist_ok=True)
    return runner.Run("generic_forward", config, folder, Silent(), "", performs=cells)


def rows(folder):
    """Return the records of a run, by variant."""
    return {record.variant: record for record in read_records(folder).records}


@dataclass
class Side(Isolated):
    """Performs the cells of one of two runs, which share a clock and the memory."""

    cells: FakeCells
    name: str
    log: list = field(default_factory=list)
    caches: CompileCaches = field(default_factory=CompileCaches)

    def session(self, task, name, on_event, *, turns=True):
        return self.cells.session(task, f"{name} of {self.name}", on_event, turns=turns)


def two_runs(folder, a, b, **options):
    """Two runs of the variants that `a` and `b` have plans for, and their cells."""
    plans = {f"{name} of {side}": plan for side, each in (("A", a), ("B", b)) for name, plan in each.items()}
    cells = FakeCells(plans, **options)
    runs = []
    for side, each in (("A", a), ("B", b)):
        run = run_of(folder / side, FakeCells(each))
        checkout = Checkout(side, str(folder), str(folder), ())
        runs.append(type(run)(run.target, run.config, run.folder, Silent(), "", checkout, Side(cells, side)))
    return runs, cells


def ends(status="failed", reason="planted", **options):
    """Return what happens where a cell's own code raises."""

    def happen(on_event):
        on_event(End(status, reason, **options))
        return ProcessEnd()

    return happen


def dies(on_event):
    """A cell whose process crashes."""
    return ProcessEnd("killed by signal 11 (SIGSEGV)")


def interrupts(on_event):
    """The user presses Ctrl-C while the cell is active."""
    raise KeyboardInterrupt
