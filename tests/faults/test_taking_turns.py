"""Variants that take turns."""

import pytest
from as_user import OUTSIDE
from fake_cells import FakeCells, Plan, Silent, dies, ends, interrupts, rows, run_of
from make_job import make_config
from table import promise

from profiling.components.spec import ComponentSpec
from profiling.results.record import NOT_ENDED
from profiling.results.verdicts import compare_records
from profiling.run.runner import Run
from profiling.run.session import ProcessEnd


def three(**plans):
    return FakeCells({name: plans.get(name, Plan()) for name in ("baseline", "v", "w")})


def ended(folder, cells, code):
    """Run these cells, check the exit code of the run, and return its records."""
    assert run_of(folder, cells).execute() == code
    return rows(folder)


@promise("dies")
def test_a_resident_dies(tmp_path):
    records = ended(tmp_path / "run", three(v=Plan(happens={3: dies})), 1)
    assert [record.status for record in records.values()] == ["ok", "failed", "ok"]
    assert "SIGSEGV" in records["v"].reason
    assert len(records["v"].turns.windows) == 2
    assert records["v"].metrics.wall_ms.n == sum(window.n for window in records["v"].turns.windows)
    assert records["w"].speedup is not None


@promise("dies")
@pytest.mark.parametrize("step", [1, 3])
def test_all_residents_die(tmp_path, step):
    dying = dict.fromkeys(("baseline", "v", "w"), Plan(happens={step: dies}))
    for record in ended(tmp_path / "run", three(**dying), 1).values():
        assert "SIGSEGV" in record.reason
        assert len(record.turns.windows if record.turns else ()) == step - 1


@promise("dies")
@pytest.mark.parametrize("others", [("v",), ("v", "w")])
def test_cells_that_are_never_ready(tmp_path, others):
    records = ended(tmp_path / "run", three(**dict.fromkeys(others, Plan(happens={"ready": dies}))), 1)
    assert {(records[name].status, records[name].turns) for name in others} == {("failed", None)}
    baseline = records["baseline"]
    assert (baseline.status, baseline.turns.stopped_by) == ("ok", "decided"), "the last one is timed alone"
    assert baseline.turns.beside == tuple(name for name in ("v", "w") if name not in others)


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
    records = rows(run.folder)
    assert NOT_ENDED not in {record.reason for record in records.values()}
    for variant, count in zip(("baseline", "v"), windows, strict=True):
        record = records[variant]
        assert (record.status, "interrupted" in record.reason) == ("failed", True)
        assert count <= len(record.turns.windows if record.turns else ()) <= count + 1
        assert (record.metrics.wall_ms is not None) == bool(count)
    resumed = run_of(run.folder, three(), resume=str(run.folder))
    assert resumed.execute() == 0
    assert {record.status for record in rows(resumed.folder).values()} == {"ok"}


@promise("interrupt")
def test_an_interrupt_at_the_end(tmp_path):
    run = run_of(tmp_path / "run", three(v=Plan(happens={"finish": interrupts})))
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    assert [record.status for record in rows(run.folder).values()] == ["ok", "failed", "failed"]
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
        ("finish", lambda _: ProcessEnd("killed by signal 9 (SIGKILL)", killed=True)),
    ],
    ids=["prepared beside others", "in its turn", "killed by the kernel"],
)
def test_out_of_memory_beside_others(tmp_path, step, happens):
    cells = three(v=Plan(happens={step: happens}))
    run = run_of(tmp_path / "run", cells)
    assert run.execute() == 0
    record = rows(run.folder)["v"]
    assert (record.status, record.turns) == ("ok", None)
    assert record.notes == ("measured again, alone: together with other variants it ran out of memory",)
    assert cells.log[-1] == ("v", "alone")
    assert run.cells.begun == run.cells.total == 4, "progress counts it once more"


@promise("interrupt")
@pytest.mark.parametrize(("variants", "rounds"), [(("baseline",), 1), (("baseline", "v", "w"), 1), (("baseline",), 2)])
def test_an_interrupt_before_a_finished_cell_is_kept(tmp_path, variants, rounds):
    run = run_of(tmp_path / "run", FakeCells({name: Plan() for name in variants}), rounds=rounds)
    kept, keep = [], run.cells.keep

    def interrupted(record):
        kept.append(record.variant)
        if len(kept) == rounds:
            raise KeyboardInterrupt
        keep(record)

    run.cells.keep = interrupted
    with pytest.raises(KeyboardInterrupt):
        run.execute()
    record = rows(run.folder)["baseline"]
    assert (record.status, record.reason, len(record.rounds or (1,))) == ("ok", None, rounds)


@promise("memory")
def test_out_of_memory_alone(tmp_path):
    records = ended(tmp_path / "run", three(baseline=Plan(happens={"ready": OUT_OF_MEMORY})), 1)
    assert [record.status for record in records.values()] == ["failed", "ok", "ok"]


@promise("memory")
def test_no_memory_beside_another(tmp_path):
    cells = three()
    cells.memory = 1.5e9
    records = ended(tmp_path / "run", cells, 0)
    assert [record.turns.beside for record in records.values()] == [()] * 3
    assert not compare_records(records["baseline"], records["v"]).in_turns
    assert records["v"].notes == (
        "not all variants were prepared at the same time: another one would need 1.2 GB of the memory of the host, "
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
        config = make_config(nodes, (component,), metrics={"latency": QUICK_LATENCY}, isolation="none")
        started = Run("generic_forward", config, tmp_path / "run", Silent(), "")
        try:
            return started.execute(), rows(started.folder)
        except KeyboardInterrupt:
            return 130, rows(started.folder)

    yield run
    import cell_faults

    cell_faults.ARMED.clear()


GOOD = ("Explains", {"what": "none"})


@promise("raises")
@pytest.mark.parametrize(
    ("raising", "cells"),
    [
        ("baseline", {"baseline": ("Armed", {}), "v": ("Arms", {"calls": 10}), "w": GOOD}),
        ("v", {"baseline": ("Arms", {"calls": 20}), "v": ("Armed", {}), "w": GOOD}),
    ],
)
def test_one_of_two_cells_in_this_process_raises(in_process, raising, cells):
    code, records = in_process(**cells)
    assert code == 1
    assert {name for name, record in records.items() if record.status == "failed"} == {raising}
    assert "planted in a window" in records[raising].reason
    assert all(len(record.turns.windows) > 3 for name, record in records.items() if name != raising)


@promise("interrupt")
def test_an_interrupt_beside_the_baseline(in_process):
    code, records = in_process(baseline=GOOD, v=GOOD, w=("Raises", {"fault": "interrupt", "where": "step"}))
    assert code == 130
    assert all("interrupted" in record.reason for record in records.values())
