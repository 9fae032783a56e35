"""Variants that take turns."""

import sys
import time
from types import SimpleNamespace

import pytest
from as_user import OUTSIDE
from fake_cells import SETTINGS, FakeCells, Plan, Silent, dies, ends, interrupts, run_of
from table import promise

from profiling.components.spec import ComponentSpec
from profiling.metrics.sampling import Turn
from profiling.results.jsonl import read_records
from profiling.results.record import NOT_ENDED
from profiling.results.verdicts import compare_records
from profiling.run import child
from profiling.run.child import Performed
from profiling.run.job import FORWARD, Job, RunConfig
from profiling.run.process import Isolated
from profiling.run.runner import Run
from profiling.run.task import Cell


def three(**plans):
    return FakeCells({name: plans.get(name, Plan()) for name in ("baseline", "v", "w")})


def rows(run):
    return {record.variant: record for record in read_records(run.folder).records}


@promise("dies")
def test_a_resident_dies(tmp_path):
    run = run_of(tmp_path / "run", three(v=Plan(happens={3: dies})))
    assert run.execute() == 1
    records = rows(run)
    assert [record.status for record in records.values()] == ["ok", "failed", "ok"]
    assert "SIGSEGV" in records["v"].reason
    assert len(records["v"].turns.windows) == 2
    assert records["v"].metrics.wall_ms.n == sum(window.n for window in records["v"].turns.windows)
    assert records["w"].speedup is not None


@promise("dies")
@pytest.mark.parametrize("step", [1, 2, 3])
def test_all_residents_die(tmp_path, step):
    dying = FakeCells({name: Plan(happens={step: dies}) for name in ("baseline", "v", "w")})
    run = run_of(tmp_path / "run", dying)
    assert run.execute() == 1
    for record in rows(run).values():
        assert "SIGSEGV" in record.reason
        assert len(record.turns.windows if record.turns else ()) == step - 1


@promise("dies")
def test_a_cell_that_is_never_ready(tmp_path):
    run = run_of(tmp_path / "run", three(v=Plan(happens={"ready": dies})))
    assert run.execute() == 1
    records = rows(run)
    assert (records["v"].status, records["v"].turns) == ("failed", None)
    assert records["w"].turns.beside == ("baseline",)


@promise("dies")
def test_the_last_one_is_timed_alone(tmp_path):
    run = run_of(tmp_path / "run", three(v=Plan(happens={"ready": dies}), w=Plan(happens={"ready": dies})))
    assert run.execute() == 1
    baseline = rows(run)["baseline"]
    assert (baseline.status, baseline.turns.beside, baseline.turns.stopped_by) == ("ok", (), "decided")


@promise("interrupt")
@pytest.mark.parametrize(
    ("step", "windows"), [("ready", (0, 0)), (3, (2, 2))], ids=["while a variant is prepared", "between windows"]
)
def test_an_interrupt(tmp_path, step, windows):
    cells = three(v=Plan(happens={step: interrupts}))
    run = run_of(tmp_path / "run", cells)
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    assert cells.held == {}, "no process is left"
    records = rows(run)
    assert NOT_ENDED not in {record.reason for record in records.values()}
    for variant, count in zip(("baseline", "v"), windows, strict=True):
        record = records[variant]
        assert (record.status, "interrupted" in record.reason) == ("failed", True)
        assert count <= len(record.turns.windows if record.turns else ()) <= count + 1
        assert (record.metrics.wall_ms is not None) == bool(count)
    resumed = run_of(run.folder, three(), resume=str(run.folder))
    assert resumed.execute() == 0
    assert {record.status for record in rows(resumed).values()} == {"ok"}


@promise("interrupt")
def test_an_interrupt_at_the_end(tmp_path):
    run = run_of(tmp_path / "run", three(v=Plan(happens={"finish": interrupts})))
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    assert [record.status for record in rows(run).values()] == ["ok", "failed", "failed"]
    again = three()
    assert run_of(run.folder, again, resume=str(run.folder)).execute() == 0
    assert {variant for variant, _ in again.log} == {"v", "w"}


OUT_OF_MEMORY = ends(reason="OutOfMemoryError: planted", out_of_memory=True)


@promise("memory")
@pytest.mark.parametrize(
    ("step", "happens"),
    [
        ("ready", OUT_OF_MEMORY),
        (4, OUT_OF_MEMORY),
        ("finish", lambda _: Performed("killed by signal 9 (SIGKILL)", killed=True)),
    ],
    ids=["prepared beside others", "in its turn", "killed by the kernel"],
)
def test_out_of_memory_beside_others(tmp_path, step, happens):
    cells = three(v=Plan(happens={step: happens}))
    run = run_of(tmp_path / "run", cells)
    assert run.execute() == 0
    record = rows(run)["v"]
    assert (record.status, record.turns) == ("ok", None)
    assert record.notes == ("measured again, alone: beside other variants it ran out of memory",)
    assert cells.log[-1] == ("v", "alone")
    assert run.cells.begun == run.cells.total == 4, "progress counts it once more"


@promise("interrupt")
@pytest.mark.parametrize("variants", [("baseline",), ("baseline", "v", "w")])
def test_an_interrupt_before_a_finished_cell_is_kept(tmp_path, variants):
    run = run_of(tmp_path / "run", FakeCells({name: Plan() for name in variants}))
    kept, merged = [], run.cells.merged

    def interrupted(record, round_):
        kept.append(record.variant)
        if len(kept) == 1:
            raise KeyboardInterrupt
        return merged(record, round_)

    run.cells.merged = interrupted
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    assert (rows(run)["baseline"].status, rows(run)["baseline"].reason) == ("ok", None)


@promise("memory")
def test_out_of_memory_alone(tmp_path):
    run = run_of(tmp_path / "run", three(baseline=Plan(happens={"ready": OUT_OF_MEMORY})))
    assert run.execute() == 1
    assert [record.status for record in rows(run).values()] == ["failed", "ok", "ok"]


@promise("memory")
def test_no_memory_beside_another(tmp_path):
    cells = three()
    cells.memory = 1.5e9
    run = run_of(tmp_path / "run", cells)
    assert run.execute() == 0
    records = rows(run)
    assert [record.turns.beside for record in records.values()] == [()] * 3
    assert not compare_records(records["baseline"], records["v"]).in_turns
    assert records["v"].notes == (
        "not all variants were prepared beside each other: another one would need 1.2 GB of the memory of the host, "
        "and 0.5 GB are free",
    )


# In one process, where each variant is run in the middle of the baseline's timing.

QUICK_LATENCY = {
    "_target_": "profiling.metrics.latency.Latency",
    **{"min_iterations": 3, "max_iterations": 50, "max_seconds": 0.2},
    **{"warmup_min_iterations": 1, "warmup_max_iterations": 5},
}


@pytest.fixture
def in_process(monkeypatch, tmp_path):
    """Run `variants` in this process; return the exit code, and the rows by variant."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    module = {"_target_": "torch.nn.Linear", "in_features": 8, "out_features": 8}
    component = ComponentSpec("net", module, {"input": {"shape": [2, 8]}})
    (tmp_path / "run").mkdir()

    def run(**variants):
        nodes = {name: {"_target_": f"cell_faults.{kind}", **options} for name, (kind, options) in variants.items()}
        given = {"isolation": "none", "cell_timeout": 60.0, "resume": None, "source": {}}
        config = RunConfig((component,), nodes, {"latency": QUICK_LATENCY}, SETTINGS, **given)
        started = Run("generic_forward", config, tmp_path / "run", Silent(), "")
        try:
            return started.execute(), rows(started)
        except KeyboardInterrupt:
            return 130, rows(started)

    yield run
    import cell_faults

    cell_faults.ARMED.clear()


GOOD = ("Explains", {"what": "none"})


@promise("raises")
def test_the_baseline_raises_beside_a_variant(in_process):
    code, records = in_process(baseline=("Armed", {}), v=("Arms", {"calls": 10}), w=GOOD)
    assert code == 1
    assert [record.status for record in records.values()] == ["failed", "ok", "ok"]
    assert "planted in a window" in records["baseline"].reason
    assert all(len(records[name].turns.windows) > 3 for name in ("v", "w"))


@promise("raises")
def test_a_variant_raises_beside_the_baseline(in_process):
    code, records = in_process(baseline=("Arms", {"calls": 20}), v=("Armed", {}), w=GOOD)
    assert code == 1
    assert [record.status for record in records.values()] == ["ok", "failed", "ok"]
    assert "planted in a window" in records["v"].reason
    assert records["w"].turns.beside == ("baseline", "v")


@promise("interrupt")
def test_an_interrupt_beside_the_baseline(in_process):
    code, records = in_process(baseline=GOOD, v=GOOD, w=("Raises", {"fault": "interrupt", "where": "step"}))
    assert code == 130
    assert all("interrupted" in record.reason for record in records.values())


# Real processes, whose place is taken by a short script.

NET = Job("t", ComponentSpec("net", {"_target_": "n"}, {"x": {"shape": [1]}}), "v", {}, {}, SETTINGS, "run", FORWARD)

CHANNEL = """
import json, os, sys, time
FD, TURNS, N = int(sys.argv[4]), int(sys.argv[6]), iter(range(10**9))

def send(**event):
    os.write(FD, (json.dumps([next(N), event]) + "\\n").encode())

def turn():
    line = b""
    while not line.endswith(b"\\n"):
        line += os.read(TURNS, 1)
    return json.loads(line)

READY = dict(call_s=0.01, min_iterations=1, max_iterations=9, max_seconds=9.0, used={}, free={})
"""


@pytest.fixture
def session(monkeypatch, tmp_path):
    """Return a function that opens a session whose process is a Python script."""
    opened = []
    executors = {}

    def start(script, *, timeout=60.0, name="net.tried"):
        program = tmp_path / f"{name}.py"
        program.write_text(f"#!{sys._base_executable} -IS\n{CHANNEL}{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(child, "sys", SimpleNamespace(executable=str(program)))
        executor = executors.setdefault(timeout, Isolated(tmp_path, trace=False, timeout=timeout))
        opened.append(executor.session(Cell(job=NET), name, lambda event: None))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def ended(session, turn=None):
    with pytest.raises(StopIteration) as end:
        child.advance(session, turn)
    return end.value.value


TAKES_TURNS = """
send(event="waiting", ready=READY)
while turn().get("seconds"):
    send(event="waiting", window=dict(start_s=time.perf_counter(), wall_ms=[1.0, 2.0]))
send(event="end", status="ok")
"""


def test_processes_take_turns(session):
    one, two = session(TAKES_TURNS, name="net.one"), session(TAKES_TURNS, name="net.two")
    assert child.advance(one).ready.max_iterations == child.advance(two).ready.max_iterations == 9
    before = time.perf_counter()
    for each in (one, two, two, one):
        window = child.advance(each, Turn(seconds=0.1, calls=5)).window
        assert window.wall_ms == (1.0, 2.0)
        assert before < window.start_s < time.perf_counter(), "both processes have the same clock"
    assert ended(one, Turn()) == Performed()
    assert ended(two, Turn()) == Performed()


@promise("hangs")
def test_waiting_is_not_hanging(session):
    waiting = session(TAKES_TURNS, timeout=2.0)
    child.advance(waiting)
    time.sleep(2.2)
    assert child.advance(waiting, Turn(seconds=0.1, calls=5)).window is not None
    assert ended(waiting, Turn()) == Performed()


@promise("hangs")
def test_a_turn_that_hangs(session):
    hangs = session('send(event="waiting", ready=READY)\nturn()\ntime.sleep(60)', timeout=1.0)
    child.advance(hangs)
    assert "cell_timeout" in ended(hangs, Turn(seconds=0.1, calls=5)).death


@promise("dies")
def test_a_process_that_dies_while_it_waits(session):
    dead = session('send(event="waiting", ready=READY)\nos._exit(7)')
    child.advance(dead)
    time.sleep(0.5)
    assert "exited with code 7" in ended(dead, Turn(seconds=0.1, calls=5)).death
