"""One cell is one row, whatever it does."""

import math
import os
import random
import re
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy
import pytest
import torch
from as_user import OUTSIDE
from fake_cells import Silent, watched
from make_job import SETTINGS, make_config, make_job
from make_record import record as made_record
from make_record import summary as made_summary
from table import promise, rows
from test_taking_turns import QUICK_LATENCY
from torch.overrides import _get_current_function_mode_stack

from profiling import FrameRecorder
from profiling.components.spec import ComponentSpec, Settings
from profiling.errors import InputError
from profiling.metrics.calls import Calls
from profiling.metrics.drift import Drift
from profiling.metrics.energy import Energy
from profiling.metrics.latency import Latency
from profiling.metrics.memory import Memory
from profiling.metrics.parity import Parity
from profiling.metrics.sampling import Sample
from profiling.realtime.plan import LoopOptions
from profiling.report import render
from profiling.report.render import run_report
from profiling.report.run_data import RunData
from profiling.results.environment import Environment
from profiling.results.jsonl import append_record, read_records
from profiling.results.measured import Metrics
from profiling.results.stats import summarize
from profiling.run import process, worker
from profiling.run.compile_caches import CompileCaches
from profiling.run.events import End, EventReader
from profiling.run.process import InProcess
from profiling.run.runner import Run
from profiling.run.session import Limits, to_its_end
from profiling.run.starts import measure_starts
from profiling.run.task import Cell, Probe, write_task
from profiling.training_step.options import TrainingOptions

PARITY = {"parity": {"_target_": "profiling.metrics.parity.Parity"}}


@pytest.fixture(autouse=True)
def outside_code(monkeypatch):
    monkeypatch.syspath_prepend(str(OUTSIDE))


def job(folder, *, module=None, variant=None, metrics=None):
    module = module or {"_target_": "torch.nn.Linear", "in_features": 8, "out_features": 8}
    inputs = {"x" if "cell_faults" in module["_target_"] else "input": {"shape": [2, 8]}}
    return make_job("tried", folder, ComponentSpec("net", module, inputs), metrics=metrics, **(variant or {}))


def record_of(folder, **parts):
    """Run a cell in this process, as isolation=none does, and return its record as it is read from the results."""
    cell = job(folder, **parts)
    seen = watched()
    seen.process_end = to_its_end(
        InProcess(folder, trace=False).session(Cell(job=cell), "cell", seen.receive, turns=False)
    )
    append_record(folder, seen.record())
    (kept,) = read_records(folder).records
    return kept


def raises(what, where="call"):
    return {"_target_": "cell_faults.Raises", "fault": what, "where": where}


@promise("raises")
@pytest.mark.parametrize(
    ("what", "text"),
    rows(
        ("sys_exit", "SystemExit: 0", "a variant calls sys.exit(0)"),
        ("mute", "__str__ raises", "the text of a variant's error exits"),
        ("escapes", "cleared", "an error's text clears the screen"),
    ),
)
def test_what_a_variant_raises(tmp_path, capfd, what, text):
    record = record_of(tmp_path, variant=raises(what))
    assert record.status == "failed"
    assert text in record.reason
    assert record.reason.isprintable()
    assert len(record.reason) < 600
    assert record.parameters == 72, "what came before is kept"
    assert "Traceback" in capfd.readouterr().err


def worker_events(tmp_path, task):
    """Perform the task of a cell's process here, and return the events that it sends."""
    write_task(task, tmp_path / "task.json")
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as pipe, os.fdopen(write_end, "wb"):
        worker.work(str(tmp_path / "task.json"), write_end)
        return list(EventReader().feed(os.read(pipe.fileno(), 1 << 16)))


@promise("interrupt")
def test_an_interrupt(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        record_of(tmp_path, variant=raises("interrupt"))
    end = worker_events(tmp_path, Cell(job=job(tmp_path, variant=raises("interrupt"))))[-1]
    assert end == End("failed", "KeyboardInterrupt: no message")


@promise("raises")
def test_a_cell_that_cannot_be_set_up(tmp_path):
    broken = replace(job(tmp_path), procedure={"_target_": "profiling.run.forward.Nothing"})
    end = worker_events(tmp_path, Cell(job=broken))[-1]
    assert end.status == "failed"
    assert "Nothing" in end.reason


@promise("probe")
def test_unavailable_raises(tmp_path):
    task = Probe(jobs=(job(tmp_path, variant=raises("sys_exit", "unavailable")),))
    probed = worker_events(tmp_path, task)[-1]
    assert probed.not_run["tried"].status == "failed"
    assert "unavailable()" in probed.not_run["tried"].reason


@promise("probe")
def test_the_probe_exits(monkeypatch, tmp_path):
    (tmp_path / "exits_at_import.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(str(tmp_path))
    task = Probe(jobs=(job(tmp_path, variant={"_target_": "exits_at_import.Variant"}),))
    refused = worker_events(tmp_path, task)[-1]
    assert "SystemExit: 0" in refused.reason


@promise("hangs")
@pytest.mark.parametrize(
    ("limit", "note"),
    [
        (0.5, r'took longer than prepare_timeout=0\.5 s: killed at File .*slow_start\.py", line 3 in slow'),
        (300.0, None),
    ],
)
def test_the_prepare_timeout_holds_for_starts(tmp_path, monkeypatch, limit, note):
    (tmp_path / "slow_start.py").write_text("import time\ndef slow(module):\n    time.sleep(1)\n    return module\n")
    net = ComponentSpec("net", {"_target_": "torch.nn.Identity"}, {"input": {"shape": [1]}})
    cell = Cell(job=make_job("slow", component=net, transforms=[{"_target_": "slow_start.slow", "_partial_": True}]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    (tmp_path / "cells").mkdir()
    with CompileCaches("shared").lease(cell) as leased:
        starts, notes = measure_starts(cell, leased, tmp_path, Limits(120.0, limit))
    if note is None:
        assert starts.cold.seconds > 1
    else:
        assert starts is None
        assert re.search(note, notes[0])


@promise("dies")
def test_a_crash_while_a_package_is_loaded(profile):
    outcome = profile("component=[caches]", "variant=[baseline,load_crashes]")
    records = {variant: record for (_, variant), record in outcome.records.items()}
    assert outcome.code == 1
    assert records["baseline"].status == "ok"
    crashed = records["load_crashes"]
    assert crashed.status == "failed"
    assert "killed by signal 11 (SIGSEGV)" in crashed.reason
    assert "loading kernels/caches.load_crashes/Caches.pt2" in crashed.reason
    assert (outcome.folder / "kernels" / "caches.load_crashes" / "Caches.pt2").is_file()


@promise("hooks")
@pytest.mark.parametrize(
    ("fault", "where", "reason", "note"),
    [
        ("sys_exit", "close", None, "close() of the variant failed: SystemExit: 0"),
        ("plain", "step+close", "RuntimeError: planted", "close() of the variant failed: RuntimeError: planted"),
        ("sys_exit", "explain", None, "explain() of the variant failed: SystemExit: 0"),
    ],
)
def test_hooks_that_raise(tmp_path, fault, where, reason, note):
    record = record_of(tmp_path, variant=raises(fault, where), metrics={} if where == "explain" else PARITY)
    assert (record.status, record.reason) == ("ok" if reason is None else "failed", reason)
    assert note in record.notes
    assert where != "close" or record.parity.passed


@promise("hooks")
@pytest.mark.parametrize(
    "what",
    rows(
        ("unknown", "explain() returns an unknown section"),
        ("none", "explain() returns None"),
    ),
)
def test_explain_returns(tmp_path, what):
    record = record_of(tmp_path, variant={"_target_": "cell_faults.Explains", "what": what})
    assert record.status == "ok"
    assert "explain() of the variant failed" in record.notes[0]


@promise("metric")
@pytest.mark.parametrize(
    ("what", "text"),
    rows(
        ("none", "Return a Measured", "a metric returns None"),
        ("list", "names of the results", "a metric returns a list of results"),
        ("status", "broken", "a metric reports an unknown status"),
        ("reason", "None", "a metric reports a failure without a reason"),
        ("not a number", "finite", "a metric returns NaN"),
        ("phase", "planted in start", "a metric raises when a phase begins"),
    ),
)
def test_what_a_metric_returns(tmp_path, what, text):
    returns = {"_target_": "cell_faults.Returns", "what": what}
    record = record_of(tmp_path, metrics={**PARITY, "mine": returns})
    assert record.status == "failed"
    assert text in record.reason
    assert what == "phase" or record.parity.passed


@promise("metric")
def test_text_that_cannot_be_sent(tmp_path):
    metrics = {"mine": {"_target_": "cell_faults.Returns", "what": "surrogate"}}
    end = worker_events(tmp_path, Cell(job=job(tmp_path, metrics=metrics)))[-1]
    assert end.status == "failed"
    assert "metric mine" in end.reason


def process_state():
    return {
        "defaults": (torch.get_default_dtype(), torch.get_default_device(), torch.is_grad_enabled()),
        "flags": (torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.matmul.allow_tf32),
        "modes": len(_get_current_function_mode_stack()),
        "folder": Path.cwd(),
        "variables": dict(os.environ),
        "signals": signal.getsignal(signal.SIGINT),
        "alarm": 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100,  # pytest has one of its own, of 300 s
    }


@promise("process state")
@pytest.mark.parametrize(
    ("timer", "seconds", "left"),
    [((300.0, 0.0), 100.0, (200.0, 0.0)), ((300.0, 0.0), 400.0, (0.0, 0.0)), ((50.0, 30.0), 100.0, (10.0, 30.0))],
)
def test_a_timer_goes_on_while_a_cell_runs(monkeypatch, timer, seconds, left):
    now, armed = [0.0], []
    monkeypatch.setattr(process.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(process.signal, "getitimer", lambda which: timer)
    monkeypatch.setattr(process.signal, "setitimer", lambda which, *values: armed.append(values))
    with process.ProcessState():
        now[0] = seconds
    assert armed == [pytest.approx(left)]


@pytest.fixture
def restored(monkeypatch):
    monkeypatch.setattr(torch, "save", torch.save)  # restored after the test
    monkeypatch.setattr(time, "perf_counter_ns", time.perf_counter_ns)
    generators = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(generators[0])
    numpy.random.set_state(generators[1])
    torch.set_rng_state(generators[2])
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)
    torch.set_grad_enabled(True)


@promise("process state")
@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    "what",
    rows(
        ("dtype", "a module sets torch's default dtype to float64"),
        ("device", "a module sets torch's default device"),
        ("grad+deterministic+tf32+threads", "a module sets other switches of torch"),
        ("folder+variables+signals+alarm", "a module changes its process, and leaves a timer that would kill it"),
        ("save", "a module replaces torch.save"),
        ("clock", "a module replaces Python's clock by one that goes back"),
    ),
)
def test_what_a_module_changes(tmp_path, what):
    before = process_state()
    changes = {"_target_": "cell_faults.Changes", "what": what}
    metrics = {**PARITY, "latency": QUICK_LATENCY} if what == "clock" else PARITY
    record = record_of(tmp_path, module=changes, metrics=metrics)
    assert record.status == "ok", record.reason
    assert what != "clock" or record.metrics.wall_ms.min > 0
    (tmp_path / "next").mkdir()
    following = record_of(tmp_path / "next", metrics=metrics)
    assert following.status == "ok", following.reason
    assert torch.get_num_threads() == SETTINGS.threads
    assert process_state() == before


@promise("other weights")
@pytest.mark.usefixtures("restored")
def test_two_builds_differ(tmp_path):
    record = record_of(tmp_path, module={"_target_": "cell_faults.Changes", "what": "seeds"}, metrics=PARITY)
    assert record.status == "failed"
    assert "two builds of it have different weights" in record.reason


@promise("process state")
def test_a_module_closes_the_output(profile):
    module = ("_target_=cell_faults.Changes", "width=null", "what=output")
    closes = [f"{'+' * (key == 'what=output')}component.net.module.{key}" for key in module]
    outcome = profile("component=[net]", "variant=[baseline,faulty_raise]", "isolation=none", *closes)
    assert [record.status for record in outcome.records.values()] == ["ok", "failed"], outcome.err
    assert f"run: {outcome.folder}" in outcome.out


@promise("clock")
@pytest.mark.parametrize(
    ("step_ns", "text"),
    rows((-5_000_000, "went back by 5 ms", "the clock goes back"), (0, "stood still", "the clock stands still")),
)
def test_a_clock_that_is_wrong(monkeypatch, tmp_path, step_ns, text):
    ticks = iter(range(10**9))
    monkeypatch.setattr("profiling.metrics.clocks.perf_counter_ns", lambda: step_ns * next(ticks))
    record = record_of(tmp_path, metrics={**PARITY, "latency": QUICK_LATENCY})
    assert record.status == "failed"
    assert f"the wall clock {text} during a call" in record.reason
    assert record.metrics.wall_ms is None
    assert record.parity.passed


@promise("clock")
@pytest.mark.parametrize("device_ms", [-1.0, math.nan, math.inf])
def test_a_device_clock_that_is_wrong(device_ms):
    with pytest.raises(ValueError, match="the device clock"):
        Sample(wall=1.0, host=0.5, device=device_ms)


@promise("metric")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("summary", "status"),
    rows(
        (made_summary(2.0), "failed", "a metric of the user reports statistics without samples"),
        (summarize([1e308]), "failed", "a metric of the user reports times near the largest number"),
        (summarize([5e-324]), "ok", "a metric of the user reports times near the smallest number"),
    ),
)
def test_numbers_that_cannot_be_merged(tmp_path, summary, status):
    run = Run("t", make_config({"baseline": {}}, rounds=2), tmp_path, Silent(), "")
    for variant, wall in (("baseline", summarize([2.0, 3.0])), ("v", summary)):
        for round_ in (1, 2):
            run.cells.keep(made_record(variant, metrics=Metrics(wall_ms=wall), round=round_))
    _, merged = run.cells.by_cell.values()
    assert (merged.status, merged.speedup) == (status, None)
    assert (merged.reason or merged.notes[-1]).startswith(("its rounds cannot be merged", "no speedup"))
    assert [record.status for record in read_records(tmp_path).records] == ["ok", status]


job_config = partial(make_config, {"baseline": {}})
HUGE = 10**5000
REFUSED = (
    (Settings, "seed", (2**32, -1, HUGE)),
    (Settings, "threads", (0, 10**9)),
    (Settings, "scale", ("small",)),
    (Settings, "ceilings", ("always",)),
    (job_config, "cell_timeout", (0, -1.0, math.inf, math.nan, HUGE, "soon")),
    (job_config, "rounds", (0, 10**9, "many")),
    (Latency, "max_seconds", (0, math.nan, math.inf, "1", True, HUGE)),
    (Latency, "interval", (0, 1, -1e-3, "x")),
    (Latency, "min_iterations", (0, 2.5, True)),
    (Latency, "max_iterations", (0, 10**18)),
    (Calls, "calls", (5, HUGE, (), (0,), (10**30,), (HUGE,), ("many",))),
    (Calls, "time_limit", (0, math.nan)),
    (Drift, "calls", (0, True, HUGE)),
    (Drift, "tolerance", (0, math.nan)),
    (TrainingOptions, "tolerance", (0, -1, math.inf)),
    (TrainingOptions, "steps", (1,)),
    (TrainingOptions, "workers", (-1,)),
    (TrainingOptions, "clip_norm", (0,)),
    (TrainingOptions, "autocast", ("float64",)),
    (TrainingOptions, "lr_changes", ([[50, 0.1]], [[5, 0]])),
    (Parity, "factor", (0.5, math.nan, None)),
    (Parity, "floor", (-1e-9, math.inf)),
    (Energy, "windows", (5,)),
    (Energy, "window_steps", (0,)),
    (Energy, "max_seconds", (0,)),
    (Energy, "settle_seconds", ("1",)),
    (Memory, "iterations", (0, None)),
    (LoopOptions, "frames", (0, 10**9)),
    (LoopOptions, "fps", (0, -60, math.nan)),
    (LoopOptions, "schedule", ("one_graph",)),
    (LoopOptions, "pace", ("realtme",)),
    (LoopOptions, "deliver", (None,)),
    (LoopOptions, "gc", (True,)),
    (FrameRecorder, "fps", (0, "60")),
    (FrameRecorder, "warmup_frames", (-1,)),
    (FrameRecorder, "device", ("gpu", "meta", "cuda:99")),
)


@promise("option")
@pytest.mark.parametrize(("kind", "option", "values"), REFUSED)
def test_numbers_that_are_refused(kind, option, values):
    for value in values:
        with pytest.raises(InputError) as error:
            kind(**{option: value})
        assert f"{option}=" in str(error.value)
        assert len(str(error.value)) < 200
        assert "\n" not in str(error.value)


@promise("option")
def test_numbers_that_are_accepted():
    assert Settings(seed=2**32 - 1).seed == 2**32 - 1
    assert job_config(cell_timeout=1e9).cell_timeout == 1e9


def rendered(folder, *records):
    """Return the text of each form of the report, without line breaks within a sentence."""
    data = RunData(records, Environment(), folder)
    report = run_report(data)
    texts = (report.console(), report.markdown(), report.page())
    return [text.replace("\n  ", " ").replace("\\", "") for text in texts]


@promise("report section")
def test_a_record_that_cannot_be_rendered(monkeypatch, tmp_path):
    def peak_memory(record):
        return 1 / (record.wall_p50 != 666.0) and None

    good, bad = made_record(p50=1.25), made_record("bad", p50=666.0)
    broken = made_record("broken", status="failed", reason="out of memory")
    monkeypatch.setattr(type(bad), "peak_memory", property(peak_memory))
    for text in rendered(tmp_path, good, bad, broken):
        assert "answer: cannot be rendered, but is in the results: ZeroDivisionError" in text
        assert "broken failed: out of memory" in text


@promise("report section")
def test_a_section_that_cannot_be_rendered(monkeypatch, tmp_path):
    def latency_section(data):
        raise RuntimeError("planted")

    sections = [latency_section if build.__name__ == "latency_section" else build for build in render._SECTIONS]
    monkeypatch.setattr(render, "_SECTIONS", sections)
    for text in rendered(tmp_path, made_record(p50=1.25)):
        assert "latency: cannot be rendered, but is in the results: RuntimeError: planted" in text
        assert "1.25" in text
