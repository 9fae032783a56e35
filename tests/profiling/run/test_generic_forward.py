"""The main job end to end on a CPU, as a user runs it, with planted faults."""

import contextlib
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch
from as_user import OUTSIDE, begun, command

import profiling
from profiling.metrics.parity import Parity
from profiling.results.environment import read_environment
from profiling.results.frames import read_series
from profiling.results.jsonl import read_records
from profiling.results.run_folder import resume_command
from profiling.trace.compile_log import find_tlparse

HERE = "isolation=none"  # faster, for tests that kill no process


def test_crashes_cost_one_row_each(profile):
    outcome = profile("component=[net]", "variant=[baseline,faulty_segfault,faulty_exit]")
    assert outcome.code == 1
    baseline, segfault, exits = outcome.records.values()
    assert (baseline.status, baseline.metrics.wall_ms.n >= 5) == ("ok", True)
    assert "SIGSEGV" in segfault.reason
    assert "exited with code 7" in exits.reason
    for crashed in (segfault, exits):
        assert crashed.status == "failed"
        assert crashed.parity.passed, "what was measured before the crash is kept"


def test_wrong_answers_cost_one_row_each_and_a_resumed_run_repeats_none(profile, tmp_path):
    variants = "variant=[faulty_raise,baseline,faulty_wrong,faulty_later_wrong]"
    cells = ("component=[net]", variants, HERE, "rounds=2")
    outcome = profile(*cells, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert next(iter(outcome.records)) == ("net", "baseline"), "it begins first"
    records = {variant: record for (_, variant), record in outcome.records.items()}
    assert outcome.code == 1
    baseline = records["baseline"]
    assert (baseline.status, baseline.weights, baseline.parity.rel_l2) == ("ok", "random", 0)
    assert records["faulty_raise"].status == "failed"
    raised = records["faulty_raise"].reason
    assert raised.startswith("round 1 of 2: "), "and it runs in no other one"
    assert "planted failure" in raised
    wrong = records["faulty_wrong"]
    assert (wrong.status, wrong.reason.startswith("parity"), wrong.speedup) == ("failed", True, None)
    assert wrong.metrics.wall_ms.n >= 5, "its time is measured, and shown struck out"
    assert "wrong after it" in records["faulty_later_wrong"].reason
    assert records["faulty_later_wrong"].speedup is None
    assert "~~" in (outcome.folder / "report.md").read_text()
    assert "net.faulty_wrong failed: parity" in outcome.out
    assert records["baseline"].roofline is None, "ceilings=off"
    assert read_environment(outcome.folder).ceilings is None
    assert not list((tmp_path / "cache").rglob("*.json")), "no ceilings, and no controls whose spreads are kept"

    again = profile(*cells, f"resume={outcome.folder}", folder=outcome.folder)
    assert again.lines == outcome.lines
    other = profile("component=[net]", "variant=[baseline]", HERE, f"resume={outcome.folder}", folder=outcome.folder)
    assert other.code == 2
    assert "another config" in other.err
    assert other.lines == outcome.lines, "nothing lost, nothing added"


def test_a_compile_that_compiles_nothing_is_skipped(monkeypatch):
    """As with TORCH_COMPILE_DISABLE=1, which torch reads when it is imported."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    variants = ["baseline", "compile", "compile+inductor_graphs"]
    options = {"metrics": {"parity": Parity()}, "ceilings": "off", "device": "cpu", "quiet": True}
    result = profiling.profile(torch.nn.Linear(8, 8), {"input": torch.ones(2, 8)}, variants, **options)
    assert [record.status for record in result.records] == ["ok", "skipped", "skipped"]
    assert "TORCH_COMPILE_DISABLE" in result.records[1].reason


def test_a_module_that_is_compiled_anew_in_each_call_is_invalid(profile):
    outcome = profile("component=[position,assigns_state]", "variant=[baseline,compile]", HERE)
    ends = {cell: record.status for cell, record in outcome.records.items()}
    assert ends == {
        ("position", "baseline"): "ok",
        ("position", "compile"): "invalid",
        ("assigns_state", "baseline"): "ok",
        ("assigns_state", "compile"): "skipped",  # Dynamo leaves a GRU eager
    }
    assert outcome.code == 1, "for the invalid cell"
    code = (OUTSIDE / "stateful_nets.py").read_text().splitlines()
    line = next(number for number, text in enumerate(code, 1) if "self.pos % 64" in text)
    reason = outcome.records["position", "compile"].reason
    assert re.search(rf"self\.pos == \d+ no longer holds at .*stateful_nets\.py:{line} \(matrix = self", reason), reason
    assert "GRU" in outcome.records["assigns_state", "compile"].reason


def test_without_isolation_the_run_has_one_compile_report(profile):
    outcome = profile("component=[net]", "variant=[compile]", HERE, "trace=true", "metric.latency.max_iterations=5")
    assert "tl_out/run/index.html" in outcome.err
    assert (outcome.folder / "tl_out" / "run" / "index.html").exists()


def worker_of(process, log):
    """Return the process of the cell that writes `log`, once it runs: the file exists a moment earlier."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, "the run ended before this cell began"
        for child in psutil.Process(process.pid).children(recursive=True) if log.exists() else ():
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                if Path(f"/proc/{child.pid}/fd/1").resolve() == log.resolve():
                    return child
        time.sleep(0.1)
    raise AssertionError(f"no process writes {log}")


def test_an_interrupt_keeps_what_is_done(tmp_path):
    folder = tmp_path / "run"
    arguments = command(folder, "component=[net]", "variant=[baseline,faulty_hang]")
    process = begun(arguments, tmp_path)
    worker = worker_of(process, folder / "cells" / "net.faulty_hang.log")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    # The interpreter may be named by a path relative to another folder.
    assert err.rpartition("To resume:")[2].partition(" -m ")[2].strip() == resume_command(folder).partition(" -m ")[2]
    reasons = {record.variant: record.reason or "" for record in read_records(folder).records}
    assert list(reasons) == ["baseline", "faulty_hang"]
    assert reasons["faulty_hang"].startswith("the process was interrupted")
    assert "baseline" in out
    with contextlib.suppress(psutil.NoSuchProcess):  # a moment later nothing is left of it
        assert worker.status() == psutil.STATUS_ZOMBIE


def test_frames_of_a_terminated_loop_stay_and_resume_is_named(tmp_path):
    folder = tmp_path / "run"
    overrides = ("pipeline=mine", "variant=[baseline]", "metric=[]", "loop.frames=100000", "loop.warmup_frames=1")
    started = command(folder, *overrides, target="realtime", quick=("device=cpu", "threads=1", "ceilings=off"))
    process = begun(started, tmp_path)
    journal = folder / "cells" / "mine.baseline.frames.part"
    while process.poll() is None and not (journal.exists() and journal.stat().st_size > 20_000):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"resume={folder}" in err
    assert not journal.exists()
    assert len(read_series(folder / "cells" / "mine.baseline.frames.npz")["frame_ms"]) > 10


@pytest.mark.slow
def test_the_users_own_torch_trace(profile, tmp_path):
    outcome = profile(
        "component=[net]",
        "variant=[faulty_recompile]",
        "trace=true",
        "metric.latency.interval=1e-9",
        "metric.latency.min_iterations=100",  # on a busy machine, too
        "metric.latency.max_seconds=20",
        TORCH_TRACE=str(tmp_path / "tracedir"),
        TORCHDYNAMO_VERBOSE="1",
    )
    (log,) = (tmp_path / "tracedir").glob("*.log")
    subprocess.run([find_tlparse(), "--overwrite", "--no-browser", "-o", str(tmp_path / "tl"), str(log)], check=True)
    assert (tmp_path / "tl" / "index.html").exists()
    (record,) = outcome.records.values()
    assert (outcome.code, record.status) == (1, "invalid"), "it recompiles while it is timed"
    assert "recompile" in record.reason
    assert record.compile.recompiles, "the run has its own copy"
    assert (outcome.folder / record.compile.index).exists()
    assert (outcome.folder / record.trace.trace).exists()


def test_a_job_of_a_multirun_has_a_folder_of_its_own(profile, tmp_path):
    sweep = tmp_path / "sweep"
    outcome = profile("--multirun", f"hydra.sweep.dir={sweep}", "component=[net]", "variant=[baseline]", HERE, "seed=1")
    assert outcome.code == 0, outcome.err
    assert [path.name for path in sweep.iterdir() if path.is_dir()] == ["0"]
    assert (sweep / "0" / "results.jsonl").exists()
    own = read_environment(sweep / "0").command
    assert own.endswith(" seed=1"), "a command that runs this one again"
    assert "multirun" not in own
    assert "hydra" not in own
