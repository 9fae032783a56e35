"""Profiler passes beside the main trace: what a failing pass costs, spans by submodule and by line of code."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from planted_modules import Borrowing, Stack, Waiting, component, line_of
from stored_traces import FOLDER, stored
from torch import nn

from profiling.results.record import decode_section
from profiling.run import trace_passes
from profiling.run.cell import Cell
from profiling.run.events import Sections
from profiling.run.trace_passes import TracePasses
from profiling.trace.counters import snapshot
from profiling.trace.device_work import profiled
from profiling.trace.events import innermost
from profiling.trace.host_waits import line_spans
from profiling.trace.modules import module_spans
from profiling.trace.profiler import trace_step
from profiling.variants.recipe import Recipe
from profiling.variants.variant import EagerStep, Step

LINES, MODULES = "the trace by line of code", "the trace by submodule"


@torch.inference_mode()
def test_submodules_on_a_cpu(tmp_path):
    planted = component(Stack())
    step, own = Recipe()(planted, tmp_path), Step(run=planted.call)  # the other one is a variant of a user's own
    given = {"component": "planted", "variant": "baseline", "folder": tmp_path / "traces"}
    trace = tmp_path / trace_step(step.run, device=torch.device("cpu"), **given).trace
    passes = (TracePasses(planted, "baseline", each, tmp_path, nullcontext) for each in (step, own))
    found, unattributed = (each.analyze(trace) for each in passes)
    modules = {module.path: module for module in found.modules}
    assert (found.calls, found.span_ms, found.kernel_ms, found.classes) == (5, None, None, ()), "no GPU"
    assert found.unattributed_ms >= 0
    operators = {kernel.name: kernel for kernel in found.kernels}
    assert operators["aten::addmm"].count == 5
    assert 0 < sum(kernel.share for kernel in found.kernels) < 1, "of the whole call, Python included"
    assert modules[""].share == pytest.approx(1)
    assert sum(module.self_ms for module in found.modules) == pytest.approx(modules[""].ms)
    assert modules["blocks.0"].ms > modules["blocks.0.up"].ms > 0
    assert (unattributed.modules, unattributed.unattributed_ms) == ((), None)
    assert "no step that launches kernel by kernel" in unattributed.modules_from
    assert unattributed.kernels


def on_a_gpu(tmp_path, monkeypatch, step, traces, main):
    """The analysis on a GPU, with stored `traces` for its passes by call; a pass without one fails, and is listed.

    Without `main`, that of a stage of a loop.
    """
    planted = replace(component(Stack()), device=torch.device("cuda"))
    step = step(planted)
    failed = []

    def stored_trace(call, calls, *, cuda, around, shapes):
        assert (cuda, shapes) == (True, True)
        if around is line_spans:
            assert call == step.repeat
            return stored(traces["lines"])
        if call == step.repeat and around is nullcontext:
            return stored(traces["stage"])
        eager_step = None if step.eager_step is None else step.eager_step.call
        return stored(traces["uncaptured" if call is eager_step else "eager"])

    @contextmanager
    def best_effort(action):
        try:
            yield
        except KeyError:
            failed.append(action)

    monkeypatch.setattr(trace_passes, "profiled", stored_trace)
    passes = TracePasses(planted, "v", step, tmp_path, best_effort)
    return (
        passes.analyze_kernels(passes.trace_kernels()) if main is None else passes.analyze(FOLDER / f"{main}.json.gz")
    ), failed


def captured(planted):
    return Step(run=lambda: None, eager_step=EagerStep(lambda: None, planted.module))


def compiled(planted):
    return Step(run=lambda: None, eager_step=EagerStep(lambda: None))


def eager(planted):
    run = planted.call
    return Step(run=run, eager_step=EagerStep(run, planted.module))


COMPILED = {"uncaptured": "net.compile", "eager": "net.eager_hooks"}


@pytest.mark.parametrize(
    ("step", "traces", "main", "modules_from", "most"),
    [
        (eager, {"uncaptured": "faulty.eager_hooks"}, "faulty.eager", "this step", 0),
        (captured, {"uncaptured": "net.eager_hooks"}, "net.graph", "the step before its capture", 0),
        (compiled, COMPILED, "net.compile_graph", "the eager module", 0.3),
    ],
)
def test_passes_that_know_submodules_attribute_a_step(tmp_path, monkeypatch, step, traces, main, modules_from, most):
    traces = {"lines": "faulty.eager_hooks" if step is eager else main, **traces}
    found, failed = on_a_gpu(tmp_path, monkeypatch, step, traces, main)
    assert (failed, found.modules_from.startswith(modules_from)) == ([], True), found.modules_from
    assert (found.unattributed_ms > 0) == (most > 0)
    assert found.unattributed_ms <= most * found.kernel_ms
    waits = {f"planted/net.py:{line}" for line in (23, 24)}
    assert {wait.line for wait in found.waits} == (waits if step is eager else set())


def test_a_stage_is_analysed_as_a_step_of_its_own_but_for_its_lines(tmp_path, monkeypatch):
    found, failed = on_a_gpu(tmp_path, monkeypatch, compiled, {"stage": "net.compile_graph", **COMPILED}, None)
    whole, _ = on_a_gpu(tmp_path, monkeypatch, compiled, {**COMPILED, "lines": "net.graph"}, "net.compile_graph")
    assert failed == []
    assert (found.kernels, found.kernel_ms, found.modules) == (whole.kernels, whole.kernel_ms, whole.modules)
    assert on_a_gpu(tmp_path, monkeypatch, compiled, {}, None) == (None, ["the trace of its kernels"])


@pytest.mark.parametrize(
    ("step", "traces", "expected"),
    [
        (captured, {}, [LINES, MODULES]),
        (compiled, {"lines": "net.compile_graph", "uncaptured": "net.compile"}, [MODULES]),
        (compiled, {"lines": "net.graph", "eager": "net.eager_hooks"}, ["the trace of the step without capture"]),
        (lambda planted: Step(run=planted.call), {"lines": "net.graph"}, []),
    ],
)
def test_what_a_failed_pass_would_attribute_is_not_attributable(tmp_path, monkeypatch, step, traces, expected):
    found, failed = on_a_gpu(tmp_path, monkeypatch, step, traces, "net.compile_graph")
    assert failed == expected
    assert found.modules_from.startswith("not attributable")
    assert found.unattributed_ms == pytest.approx(found.kernel_ms)
    assert not found.modules
    assert found.busy_ms + found.idle.host_ms + found.idle.between_ms == pytest.approx(found.span_ms, rel=0.01)


def test_a_pass_that_fails_in_a_cell_costs_a_note(tmp_path):
    planted, sent = component(Stack()), []

    def once():
        if (tmp_path / "traces" / "planted.baseline.json.gz").exists():
            raise RuntimeError("planted")
        return planted.call()

    class OnlyTraces(Cell):
        measure = components = None  # not called: of this cell only the tracing is tested

    settings = SimpleNamespace(stacks=False, ceilings="off")
    job = SimpleNamespace(run=str(tmp_path), row="planted", variant="baseline", settings=settings)
    OnlyTraces.__abstractmethods__ = frozenset()
    with torch.inference_mode():
        OnlyTraces(job, sent.append).trace(planted, Step(run=once, eager_step=EagerStep(once, planted.module)))
    content = [section for event in sent if isinstance(event, Sections) for section in event.sections.items()]
    sections = {name: decode_section(name, section) for name, section in content}
    assert set(sections) == {"trace", "trace_analysis", "notes"}
    assert sections["trace"].trace == "traces/planted.baseline.json.gz"
    assert sections["trace"].seconds > 0
    assert sections["trace_analysis"].kernels
    assert not sections["trace_analysis"].modules
    assert sections["notes"] == (f"{MODULES} failed: RuntimeError: planted",)


def profiled_once(call, around):
    with torch.inference_mode():
        return profiled(call, 1, cuda=False, around=around)


def spans_of(trace, spans, *names):
    """Return (operator, what follows the kind in the name of the innermost span around it) for operators of a name."""
    found = [operator for operator in trace.operators if operator.name in names]
    around = innermost(spans, [(operator.begin, operator.row) for operator in found])
    return [(op.name, span and span.name.partition(": ")[2]) for op, span in zip(found, around, strict=True)]


def lines_of(trace, name):
    return [line.rpartition("/")[2] for _, line in spans_of(trace, trace.lines, name) if line is not None]


def test_submodules_have_no_spans_after_a_pass_that_failed():
    planted = component(Stack())

    def fail(*_):
        raise ValueError("planted")

    planted.module.blocks[1].up.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="planted"), module_spans(planted.module):
        planted.call()
    hooks = nn.modules.module
    assert not hooks._global_forward_pre_hooks
    assert not hooks._global_forward_hooks


def test_operators_that_borrow_weights_belong_to_the_module_that_has_them():
    """A network in fused kernels calls few submodules and takes their weights."""
    planted = component(Borrowing())
    trace = profiled_once(planted.call, lambda: module_spans(planted.module))
    owners = spans_of(trace, trace.modules, "aten::addmm", "aten::mul", "aten::add", "aten::sigmoid")
    assert {
        ("aten::addmm", "pair.one"),  # a weight of one that is never called
        ("aten::mul", "pair"),  # of two: what they have in common
        ("aten::add", "ring"),  # a buffer
        ("aten::addmm", "tied"),  # its own forward, although the weight is another's too
        ("aten::sigmoid", ""),  # of no submodule
    } <= set(owners)
    assert not any(path == "pair.two" for _, path in owners)


WAITS = [f"planted_modules.py:{line_of(mark)}" for mark in ("comparison", "method")]


def test_lines_of_implicit_and_explicit_waits(monkeypatch):
    """Without CUDA an explicit one does nothing; its span is opened all the same."""
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda event: None)

    class Synchronizing(Waiting):
        def forward(self, x):
            torch.cuda.Event.synchronize(None)  # planted: explicit
            return super().forward(x)

    trace = profiled_once(component(Synchronizing()).call, line_spans)
    code = Path(__file__).read_text().splitlines()
    explicit = next(number for number, line in enumerate(code, 1) if line.endswith("# planted: explicit"))
    assert trace.lines[0].name == f"line: {__file__}:{explicit}"
    assert lines_of(trace, "aten::_local_scalar_dense") == WAITS
    lines = {span.name.rpartition("/")[2] for span in trace.lines}
    assert lines >= {f"planted_modules.py:{line_of('copy')}", *WAITS}
    files = {line.partition(":")[0] for line in lines}
    assert files == {"planted_modules.py", Path(__file__).name}, "neither torch's lines nor the harness's"


def test_spans_by_line_leave_compiled_code_as_it_is():
    torch.compiler.reset()
    planted = component(Waiting(depth=1))
    compiled = torch.compile(planted.module)
    with torch.inference_mode():
        compiled(**planted.inputs)
        before = snapshot()
        trace = profiled_once(lambda: compiled(**planted.inputs), line_spans)
        assert snapshot().since(before).compiles == 0
    assert "aten::linear" not in {operator.name for operator in trace.operators}, "the graph runs, not the eager code"
    assert set(lines_of(trace, "aten::addmm")) == {""}, "a graph's operators have no line"
    assert lines_of(trace, "aten::_local_scalar_dense") == WAITS
    torch.compiler.reset()
