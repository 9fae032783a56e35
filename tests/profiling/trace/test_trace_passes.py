"""Profiler passes beside the main trace: what a failing pass costs, spans by submodule and by line of code."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from planted_modules import Borrowing, Stack, Waiting, component, line_of
from stored_traces import FOLDER, stored

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
    step = Recipe()(planted, tmp_path)
    found = TracePasses(planted, "baseline", step, tmp_path, nullcontext).analyze(main_trace(step, tmp_path))
    assert found is not None
    modules = {module.path: module for module in found.modules}
    assert (found.calls, found.span_ms, found.kernel_ms, found.classes) == (5, None, None, ()), "no GPU"
    assert found.unattributed_ms is not None
    assert found.unattributed_ms >= 0
    operators = {kernel.name: kernel for kernel in found.kernels}
    assert operators["aten::addmm"].count == 5
    assert 0 < sum(kernel.share for kernel in found.kernels) < 1, "of the whole call, Python included"
    assert modules[""].share == pytest.approx(1)
    assert sum(module.self_ms for module in found.modules) == pytest.approx(modules[""].ms)
    assert modules["blocks.0"].ms > modules["blocks.0.up"].ms > 0


def main_trace(step, tmp_path):
    """Profile the step on a CPU, and return the file of the trace."""
    files = trace_step(
        step.run,
        component="planted",
        variant="baseline",
        folder=tmp_path / "traces",
        device=torch.device("cpu"),
        iterations=5,
    )
    return tmp_path / files.trace


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
    return (passes.analyze_kernels() if main is None else passes.analyze(FOLDER / f"{main}.json.gz")), failed


def captured(planted):
    return Step(run=lambda: None, eager_step=EagerStep(lambda: None, planted.module))


def compiled(planted):
    return Step(run=lambda: None, eager_step=EagerStep(lambda: None))


def test_a_replay_is_attributed_by_the_step_before_its_capture(tmp_path, monkeypatch):
    traces = {"lines": "net.graph", "uncaptured": "net.eager_hooks"}
    found, failed = on_a_gpu(tmp_path, monkeypatch, captured, traces, "net.graph")
    assert (found.unattributed_ms, failed) == (0, [])
    assert found.modules_from == "the step before its capture"
    assert found.lines_from == "this step, line by line"


def test_eager_is_attributed_by_itself(tmp_path, monkeypatch):
    def eager(planted):
        run = planted.call
        return Step(run=run, eager_step=EagerStep(run, planted.module))

    traces = {"lines": "faulty.eager_hooks", "uncaptured": "faulty.eager_hooks"}
    found, failed = on_a_gpu(tmp_path, monkeypatch, eager, traces, "faulty.eager")
    assert (found.modules_from, found.unattributed_ms, failed) == ("this step", 0, [])
    assert {wait.line for wait in found.waits} == {"planted/net.py:23", "planted/net.py:24"}


def test_a_compiled_replay_is_attributed_by_the_eager_module(tmp_path, monkeypatch):
    traces = {"lines": "net.compile_graph", "uncaptured": "net.compile", "eager": "net.eager_hooks"}
    found, failed = on_a_gpu(tmp_path, monkeypatch, compiled, traces, "net.compile_graph")
    assert failed == []
    assert found.modules_from.startswith("the eager module")
    assert 0 < found.unattributed_ms < 0.3 * found.kernel_ms


def test_a_stage_is_analysed_as_a_step_of_its_own_but_for_its_lines(tmp_path, monkeypatch):
    traces = {"stage": "net.compile_graph", "uncaptured": "net.compile", "eager": "net.eager_hooks"}
    found, failed = on_a_gpu(tmp_path, monkeypatch, compiled, traces, None)
    whole, _ = on_a_gpu(tmp_path, monkeypatch, compiled, {**traces, "lines": "net.graph"}, "net.compile_graph")
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
    assert found.lines_from.startswith("this step" if "lines" in traces else "not available")
    assert found.unattributed_ms == pytest.approx(found.kernel_ms)
    assert not found.modules
    assert found.busy_ms + found.idle_ms == pytest.approx(found.span_ms, rel=0.01)


class OnlyTraces(Cell):
    def measure(self):
        """Not called: of this cell only the tracing is tested."""

    def components(self):
        """Not called either."""
        return {}


def traced(run, step, planted):
    """The sections that a cell sends when it traces `step`."""
    sent = []
    settings = SimpleNamespace(stacks=False, ceilings="off")
    job = SimpleNamespace(run=str(run), component=planted, variant="baseline", settings=settings)
    with torch.inference_mode():
        OnlyTraces(job, sent.append).trace(planted, step)
    content = {
        name: section for event in sent if isinstance(event, Sections) for name, section in event.sections.items()
    }
    return {name: decode_section(name, section) for name, section in content.items()}


def test_a_pass_that_fails_in_a_cell_costs_a_note(tmp_path):
    planted = component(Stack())

    def once():
        if (tmp_path / "traces" / "planted.baseline.json.gz").exists():
            raise RuntimeError("planted")
        return planted.call()

    sections = traced(tmp_path, Step(run=once, eager_step=EagerStep(once, planted.module)), planted)
    assert set(sections) == {"trace", "trace_analysis", "notes"}
    assert sections["trace"].trace == "traces/planted.baseline.json.gz"
    assert sections["trace"].seconds > 0
    assert sections["trace_analysis"].kernels
    assert not sections["trace_analysis"].modules
    assert sections["notes"] == (f"{MODULES} failed: RuntimeError: planted",)


@torch.inference_mode()
def test_a_variant_without_an_eager_step_is_not_attributed(tmp_path):
    planted = component(Stack())
    step = Step(run=planted.call)
    found = TracePasses(planted, "own", step, tmp_path, nullcontext).analyze(main_trace(step, tmp_path))
    assert found is not None
    assert (found.modules, found.unattributed_ms) == ((), None)
    assert "no step that launches kernel by kernel" in found.modules_from
    assert found.kernels


@torch.inference_mode()
def lines_of(trace, name):
    found = [operator for operator in trace.operators if operator.name == name]
    spans = innermost(trace.lines, [(operator.begin, operator.row) for operator in found])
    return [span.name.removeprefix("line: ").rpartition("/")[2] for span in spans if span is not None]


def test_submodules_have_spans_while_the_pass_lasts():
    planted = component(Stack())
    with torch.inference_mode():
        trace = profiled(planted.call, 1, cuda=False, around=lambda: module_spans(planted.module))
    block = ["", ".norm", ".up", ".down"]
    expected = ["", *(f"blocks.{n}{part}" for n in range(2) for part in block), "head"]
    assert [span.name.removeprefix("module: ") for span in trace.modules] == expected
    products = [operator for operator in trace.operators if operator.name == "aten::addmm"]
    spans = innermost(trace.modules, [(operator.begin, operator.row) for operator in products])
    inside = [span.name.removeprefix("module: ") for span in spans if span is not None]
    assert inside == ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"]
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in planted.module.modules())


def test_operators_that_borrow_weights_belong_to_the_module_that_has_them():
    """A network in fused kernels calls few submodules and takes their weights."""
    planted = component(Borrowing())
    with torch.inference_mode():
        trace = profiled(planted.call, 1, cuda=False, around=lambda: module_spans(planted.module))
    names = ("aten::addmm", "aten::mul", "aten::add", "aten::sigmoid")
    working = [operator for operator in trace.operators if operator.name in names]
    spans = innermost(trace.modules, [(operator.begin, operator.row) for operator in working])
    owners = [(op.name, span and span.name.removeprefix("module: ")) for op, span in zip(working, spans, strict=True)]
    assert {
        ("aten::addmm", "pair.one"),  # a weight of one that is never called
        ("aten::mul", "pair"),  # of two: what they have in common
        ("aten::add", "ring"),  # a buffer
        ("aten::addmm", "tied"),  # its own forward, although the weight is another's too
    } <= set(owners)
    assert {path for name, path in owners if name == "aten::sigmoid"} == {""}, "of no submodule"
    assert not any(path == "pair.two" for _, path in owners)


def test_hooks_go_and_spans_close_when_a_submodule_raises():
    planted = component(Stack())

    def fail(*_):
        raise ValueError("planted")

    planted.module.blocks[1].up.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="planted"), module_spans(planted.module):
        planted.call()
    assert sum(len(part._forward_hooks) for part in planted.module.modules()) == 0


def test_lines_of_implicit_waits_too():
    planted = component(Waiting())
    with torch.inference_mode():
        trace = profiled(planted.call, 1, cuda=False, around=line_spans)
    file = "planted_modules.py"
    waits = [f"{file}:{line_of(mark)}" for mark in ("comparison", "method")]
    assert lines_of(trace, "aten::_local_scalar_dense") == waits
    assert {span.name.rpartition("/")[2] for span in trace.lines} >= {f"{file}:{line_of('copy')}", *waits}
    assert all(f"/{file}:" in span.name for span in trace.lines)  # neither torch's lines nor the harness's


def test_an_explicit_wait_has_a_line(monkeypatch):
    """Without CUDA it does nothing here; the span is opened all the same."""

    class Synchronizing(Stack):
        def forward(self, x):
            torch.cuda.Event.synchronize(None)  # planted: explicit
            return super().forward(x)

    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda event: None)
    planted = component(Synchronizing())
    with torch.inference_mode():
        trace = profiled(planted.call, 1, cuda=False, around=line_spans)
    code = Path(__file__).read_text().splitlines()
    expected = next(number for number, line in enumerate(code, 1) if line.endswith("# planted: explicit"))
    assert trace.lines[0].name == f"line: {__file__}:{expected}"


def test_spans_by_line_leave_compiled_code_as_it_is():
    torch.compiler.reset()
    planted = component(Waiting(depth=1))
    compiled = torch.compile(planted.module)
    with torch.inference_mode():
        compiled(**planted.inputs)
        before = snapshot()
        trace = profiled(lambda: compiled(**planted.inputs), 1, cuda=False, around=line_spans)
        assert snapshot().since(before).compiles == 0
    assert "aten::linear" not in {operator.name for operator in trace.operators}, "the graph runs, not the eager code"
    assert set(lines_of(trace, "aten::addmm")) == {""}, "a graph's operators have no line"
    waits = [f"planted_modules.py:{line_of(mark)}" for mark in ("comparison", "method")]
    assert lines_of(trace, "aten::_local_scalar_dense") == waits
    torch.compiler.reset()
