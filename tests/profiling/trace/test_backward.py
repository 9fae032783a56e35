"""A backward pass by submodule, on traces of a CPU: its operators stand for the kernels that they would launch."""

import torch
from hand_made_events import host, span, work
from planted_modules import Stack, component

from profiling.run.trace_passes import short_trace
from profiling.trace.attribution import BackwardModules, Witnesses
from profiling.trace.events import parents_of, timeline, traced_calls
from profiling.trace.modules import module_spans


def test_every_node_belongs_to_the_submodule_that_made_it():
    planted = component(Stack())
    planted.module.train()
    trace = short_trace(
        lambda: planted.call().square().sum().backward(),
        torch.device("cpu"),
        lambda: module_spans(planted.module),
        cell=("planted", "baseline"),
    )
    backward = BackwardModules(trace, parents_of(trace.operators))
    nodes = [operator for operator in trace.operators if operator.name.endswith("Backward0")]
    found = [(node.name, backward.of(node)) for node in nodes if not node.name.startswith("autograd::")]
    assert [module for name, module in found if name == "AddmmBackward0"] == [
        "head",
        "blocks.1.down",
        "blocks.1.up",
        "blocks.0.down",
        "blocks.0.up",
    ]
    assert [module for name, module in found if name == "GeluBackward0"] == ["blocks.1", "blocks.0"]
    assert [module for name, module in found if name == "SoftmaxBackward0"] == [""]
    assert [module for name, module in found if name in ("PowBackward0", "SumBackward0")] == [None, None]
    products = [operator for operator in trace.operators if operator.name == "aten::mm"]
    assert {backward.of(product) for product in products} >= {"head", "blocks.0.down", "blocks.1.up"}
    forward = [operator for operator in trace.operators if operator.name == "aten::addmm"]
    assert {backward.of(product) for product in forward} == {None}


def test_kernels_of_another_thread_follow_their_node():
    def numbered(begin, end, name, number, sequence, *, thread, forward):
        arguments = {"External id": number, "Sequence number": sequence, "Fwd thread id": forward}
        return {**span(begin, end, name), "cat": "cpu_op", "tid": thread, "args": arguments}

    def launched(at, operator, thread):
        kernel = work(at + 1, at + 2, correlation=at)
        kernel["args"]["External id"] = operator
        return [{**host(at, at + 1, correlation=at), "tid": thread}, kernel]

    events = [
        span(0, 100, "c/v/trace/0"),
        span(1, 90, "module: "),
        span(2, 20, "module: up"),
        numbered(3, 19, "aten::addmm", 1, 7, thread=1, forward=0),
        *launched(4, 1, 1),
        numbered(30, 40, "AddmmBackward0", 2, 7, thread=2, forward=1),
        {**span(31, 39, "aten::mm"), "cat": "cpu_op", "tid": 2, "args": {"External id": 3}},
        *launched(32, 3, 2),
        {**span(41, 45, "torch::autograd::AccumulateGrad"), "cat": "cpu_op", "tid": 2, "args": {"External id": 4}},
        *launched(42, 4, 2),
    ]
    trace = timeline(events)
    found = Witnesses(trace, lambda operator: (None, None)).of(traced_calls(trace)[0])
    assert [item.module for item in found] == ["up", "up", None]
