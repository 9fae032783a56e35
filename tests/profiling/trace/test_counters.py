"""Counters of compiles and captures, against planted ones."""

import pytest
import torch

from profiling.trace.counters import CompileCounters, snapshot


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def scaled(x, factor):
    return x * factor


@pytest.mark.parametrize("fullgraph", [False, True])
def test_first_compile_steady_state_and_planted_recompiles(fullgraph):
    compiled = torch.compile(scaled, backend="eager", dynamic=False, fullgraph=fullgraph)
    start = snapshot()
    compiled(torch.ones(4), 2)
    warm = snapshot()
    assert warm.since(start).describe() == "1 compile"
    compiled(torch.ones(4), 2)
    assert snapshot().since(warm).describe() is None
    compiled(torch.ones(5), 2)  # a shape, with dynamic=False
    assert snapshot().since(warm).describe() == "1 recompile"
    compiled(torch.ones(5), 3)  # a constant of Python that is guarded on
    assert snapshot().since(warm) == CompileCounters(compiles=2, recompiles=2, graphs=2)
    assert snapshot().since(warm).describe() == "2 recompiles"
    earlier = CompileCounters(compiles=7, recompiles=3)  # after a reset the totals are the difference
    assert CompileCounters(compiles=2, recompiles=1).since(earlier) == CompileCounters(compiles=2, recompiles=1)


def test_breaks_hits_of_the_recompile_limit_and_captures_are_counted(monkeypatch):
    from torch._dynamo import utils

    def broken(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    before = snapshot()
    torch.compile(broken, backend="eager")(torch.ones(3))
    found = snapshot().since(before)
    assert (found.graph_breaks, found.graphs, found.compiles) == (1, 2, 2)
    assert found.describe() == "2 compiles, 1 graph break"
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=1):
        compiled(torch.ones(4), 2)
        before = snapshot()
        compiled(torch.ones(4), 3)
    assert snapshot().since(before) == CompileCounters(compiles=1, recompiles=1)
    before = snapshot()
    assert before.cudagraph_captures == 0
    monkeypatch.setitem(utils.compilation_time_metrics, "CUDAGraphNode.record", [0.1, 0.2, 0.1])
    assert snapshot().since(before).describe() == "3 CUDA graphs captured"


@pytest.mark.gpu
def test_reduce_overhead_captures_are_counted():
    compiled = torch.compile(scaled, mode="reduce-overhead", dynamic=False)
    x = torch.ones(64, device="cuda")
    start = snapshot()
    with torch.inference_mode():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            compiled(x, 2)
        torch.cuda.synchronize()
        warm = snapshot()
        assert warm.since(start).cudagraph_captures == 1
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x, 2)
        assert snapshot().since(warm).describe() is None
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            compiled(x[:32].clone(), 2)
    found = snapshot().since(warm)
    assert (found.recompiles, found.cudagraph_captures, found.cudagraph_skips) == (1, 1, 0)


@pytest.mark.gpu
def test_a_graph_that_inductor_gives_up_is_counted():
    def mutates_its_input(x):
        return x.add_(1) * 2

    before = snapshot()
    with torch.no_grad():
        torch.compile(mutates_its_input, mode="reduce-overhead")(torch.ones(8, device="cuda"))
    assert snapshot().since(before).cudagraph_skips >= 1
