"""The passes beside the main trace: spans of submodules and of lines, on a CPU."""

import sys

import pytest
import torch
from planted_modules import Borrowing, Stack, Waiting, component, line_of

from profiling.run.trace_passes import short_trace
from profiling.trace.counters import snapshot
from profiling.trace.events import innermost
from profiling.trace.host_waits import line_spans
from profiling.trace.modules import module_spans

CPU, CELL = torch.device("cpu"), ("planted", "baseline")


@torch.inference_mode()
def lines_of(trace, name):
    found = [operator for operator in trace.operators if operator.name == name]
    spans = innermost(trace.lines, [(operator.begin, operator.row) for operator in found])
    return [None if span is None else span.name.rpartition("/")[2] for span in spans]


def test_submodules_have_spans_while_the_pass_lasts():
    planted = component(Stack())
    with torch.inference_mode():
        trace = short_trace(planted.call, CPU, lambda: module_spans(planted.module), cell=CELL)
    block = ["", ".norm", ".up", ".down"]
    expected = ["", *(f"blocks.{n}{part}" for n in range(2) for part in block), "head"]
    assert [span.name.removeprefix("module: ") for span in trace.modules] == expected
    assert [call.name for call in trace.calls] == ["planted/baseline/trace/0"]
    products = [operator for operator in trace.operators if operator.name == "aten::addmm"]
    spans = innermost(trace.modules, [(operator.begin, operator.row) for operator in products])
    inside = [span.name.removeprefix("module: ") for span in spans if span is not None]
    assert inside == ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"]
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in planted.module.modules())


def test_operators_that_borrow_weights_belong_to_the_module_that_has_them():
    """A network in fused kernels calls few submodules and takes their weights."""
    planted = component(Borrowing())
    with torch.inference_mode():
        trace = short_trace(planted.call, CPU, lambda: module_spans(planted.module), cell=CELL)
    names = ("aten::addmm", "aten::mul", "aten::add", "aten::sigmoid")
    working = [operator for operator in trace.operators if operator.name in names]
    spans = innermost(trace.modules, [(operator.begin, operator.row) for operator in working])
    told = [(op.name, span and span.name.removeprefix("module: ")) for op, span in zip(working, spans, strict=True)]
    assert {
        ("aten::addmm", "pair.one"),  # a weight of one that is never called
        ("aten::mul", "pair"),  # of two: what they have in common
        ("aten::add", "ring"),  # a buffer
        ("aten::addmm", "tied"),  # its own forward, although the weight is another's too
    } <= set(told)
    assert {path for name, path in told if name == "aten::sigmoid"} == {""}, "nobody's"
    assert not any(path == "pair.two" for _, path in told)


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
        trace = short_trace(planted.call, CPU, line_spans, cell=CELL)
    file = "planted_modules.py"
    assert lines_of(trace, "aten::item") == [f"{file}:{line_of('comparison')}", f"{file}:{line_of('method')}"]
    assert all(f"/{file}:" in span.name for span in trace.lines)  # neither torch's lines nor the harness's


def test_a_function_of_its_own_is_the_innermost():
    planted = component(Waiting())
    with torch.inference_mode():
        trace = short_trace(planted.call, CPU, line_spans, cell=CELL)
    inner, outer = line_of("copy"), line_of("copy back")
    spans = {int(span.name.rpartition(":")[2]): span for span in trace.lines}
    assert spans[outer].begin < spans[inner].begin < spans[inner].end < spans[outer].end


def test_a_debugger_is_put_back():
    def tracer(frame, event, argument):
        return None

    sys.settrace(tracer)
    try:
        with line_spans():
            assert sys.gettrace() is not tracer
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(None)


def test_spans_by_line_compile_nothing():
    torch.compiler.reset()
    planted = component(Stack(depth=1))
    compiled = torch.compile(planted.module, backend="eager")
    with torch.inference_mode():
        compiled(**planted.inputs)
        before = snapshot()
        trace = short_trace(lambda: compiled(**planted.inputs), CPU, line_spans, cell=CELL)
        assert snapshot().since(before).compiles == 0
    assert "Torch-Compiled Region: 0/0" in {operator.name for operator in trace.operators}
    torch.compiler.reset()
