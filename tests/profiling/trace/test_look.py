"""The look inside a step on a CPU, and what a failing pass costs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from planted_modules import Stack, component
from stored_traces import FOLDER, stored

from profiling.run import trace_passes as look
from profiling.run.cell import Cell
from profiling.run.trace_passes import Look
from profiling.trace.host_waits import line_spans
from profiling.variants.baseline import Baseline
from profiling.variants.variant import EagerStep, Step


def raising(what, work):
    work()


@torch.inference_mode()
def test_submodules_on_a_cpu(tmp_path):
    planted = component(Stack())
    step = Baseline()(planted, tmp_path)
    found = Look(planted, "baseline", step, tmp_path, raising).section(tmp_path / "no trace is read")
    assert found is not None
    rows = {row["path"]: row for row in found["modules"]}
    assert set(found) == {"calls", "modules", "modules_from"}  # no kernels, no waits: nothing was measured on a device
    assert rows[""]["share"] == pytest.approx(1)
    assert sum(row["own_ms"] for row in rows.values()) == pytest.approx(rows[""]["ms"])
    assert rows["blocks.0"]["ms"] > rows["blocks.0.up"]["ms"] > 0


def on_a_gpu(tmp_path, monkeypatch, step, traces, main):
    """The section that a GPU would give, whose passes are the stored `traces` by call; one that is not there fails."""
    planted = replace(component(Stack()), device=torch.device("cuda"))
    step = step(planted)
    noted = []

    def passed(call, device, around, *, cell, calls):
        assert (device.type, cell) == ("cuda", ("planted", "v"))
        if around is line_spans:
            assert call is step.run
            return stored(traces["lines"])
        plain = None if step.eager_step is None else step.eager_step.call
        return stored(traces["uncaptured" if call is plain else "eager"])

    def spare(what, work):
        try:
            work()
        except KeyError:
            noted.append(what)

    monkeypatch.setattr(look, "short_trace", passed)
    return Look(planted, "v", step, tmp_path, spare).section(FOLDER / f"{main}.json.gz"), noted


def captured(planted):
    return Step(run=lambda: None, eager_step=EagerStep(lambda: None, planted.module))


def compiled(planted):
    return Step(run=lambda: None, eager_step=EagerStep(lambda: None))


def test_a_replay_is_told_by_the_step_before_its_capture(tmp_path, monkeypatch):
    traces = {"lines": "net.graph", "uncaptured": "net.eager_hooks"}
    found, noted = on_a_gpu(tmp_path, monkeypatch, captured, traces, "net.graph")
    assert (found["unattributed_ms"], noted) == (0, [])
    assert found["modules_from"] == "the step before its capture"
    assert found["lines_from"] == "this step, line by line"


def test_eager_is_told_by_itself(tmp_path, monkeypatch):
    def eager(planted):
        run = planted.call
        return Step(run=run, eager_step=EagerStep(run, planted.module))

    traces = {"lines": "faulty.eager_hooks", "uncaptured": "faulty.eager_hooks"}
    found, noted = on_a_gpu(tmp_path, monkeypatch, eager, traces, "faulty.eager")
    assert (found["modules_from"], found["unattributed_ms"], noted) == ("this step", 0, [])
    assert {row["line"] for row in found["waits"]} == {"planted/net.py:23", "planted/net.py:24"}


def test_a_compiled_replay_is_told_by_the_eager_module(tmp_path, monkeypatch):
    traces = {"lines": "net.compile_graph", "uncaptured": "net.compile", "eager": "net.eager_hooks"}
    found, noted = on_a_gpu(tmp_path, monkeypatch, compiled, traces, "net.compile_graph")
    assert noted == []
    assert found["modules_from"].startswith("the eager module")
    assert 0 < found["unattributed_ms"] < 0.3 * found["kernel_ms"]


@pytest.mark.parametrize(
    ("step", "traces", "noted"),
    [
        (captured, {}, ["lines of code could not be told", "submodules could not be told"]),
        (compiled, {"lines": "net.compile_graph", "uncaptured": "net.compile"}, ["submodules could not be told"]),
        (compiled, {"lines": "net.graph", "eager": "net.eager_hooks"}, ["the step could not be run uncaptured"]),
        (lambda planted: Step(run=planted.call), {"lines": "net.graph"}, []),
    ],
)
def test_what_no_pass_tells_is_not_attributable(tmp_path, monkeypatch, step, traces, noted):
    found, seen = on_a_gpu(tmp_path, monkeypatch, step, traces, "net.compile_graph")
    assert seen == noted
    assert found["modules_from"].startswith("not attributable")
    assert found["lines_from"].startswith("this step" if "lines" in traces else "nothing")
    assert found["unattributed_ms"] == pytest.approx(found["kernel_ms"])
    assert "modules" not in found
    assert found["busy_ms"] + found["idle_ms"] == pytest.approx(found["span_ms"], rel=0.01)


class OnlyTraces(Cell):
    def measure(self):
        """Nothing: of this cell the tracing alone is looked at."""


def traced(run, step, planted):
    """What a cell sends when it traces `step`."""
    sent = []
    job = SimpleNamespace(run=str(run), variant="baseline", settings=SimpleNamespace(stacks=False))
    with torch.inference_mode():
        OnlyTraces(job, sent.append).trace(planted, step)
    return {key: value for event in sent for key, value in event.get("sections", {}).items()}


def test_a_traced_cell_sends_it(tmp_path):
    planted = component(Stack())
    sections = traced(tmp_path, Baseline()(planted, tmp_path), planted)
    assert set(sections) == {"trace", "inside"}
    assert sections["inside"]["modules"][0]["path"] == ""


def test_a_look_that_fails_costs_a_note(tmp_path):
    planted = component(Stack())

    def once():
        if (tmp_path / "traces" / "planted.baseline.json.gz").exists():
            raise RuntimeError("planted")
        return planted.call()

    sections = traced(tmp_path, Step(run=once, eager_step=EagerStep(once, planted.module)), planted)
    assert sections["trace"]["trace"] == "traces/planted.baseline.json.gz"
    assert "inside" not in sections
    assert sections["notes"] == ("submodules could not be told: RuntimeError: planted",)


@torch.inference_mode()
def test_a_variant_that_says_nothing_is_not_attributed(tmp_path):
    planted = component(Stack())
    found = Look(planted, "own", Step(run=planted.call), tmp_path, raising).section(tmp_path / "trace")
    assert found is None


@torch.inference_mode()
def test_a_pass_that_fails_costs_only_what_it_would_have_told(tmp_path, monkeypatch):
    noted = []

    def spare(what, work):
        try:
            work()
        except RuntimeError as error:
            noted.append((what, str(error)))

    def fail(*_, **__):
        raise RuntimeError("planted")

    monkeypatch.setattr(look, "short_trace", fail)
    planted = component(Stack())
    found = Look(planted, "baseline", Baseline()(planted, tmp_path), tmp_path, spare).section(tmp_path / "trace")
    assert found is None
    assert noted == [("submodules could not be told", "planted")]
