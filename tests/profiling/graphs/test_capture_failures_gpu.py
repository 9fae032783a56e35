"""Errors of calls that cannot be captured name the operator and the line, and restore all state."""

import gc

import pytest
import torch
import uncapturable
from torch import nn
from uncapturable import line_of

from profiling.graphs import CaptureError, CudaGraphed
from profiling.graphs.capture import Audit, capture
from profiling.machine.memory import graph_pools

pytestmark = pytest.mark.gpu

CASES = {
    "Item": ("aten::_local_scalar_dense", "waits for the GPU"),
    "Truth": ("aten::", "waits for the GPU"),
    "CpuTensor": ("aten::_to_copy", "host memory"),
    "Pageable": ("aten::_to_copy", "host memory"),
    "PageableScalar": ("aten::_to_copy", "host memory"),
    "ToHost": ("aten::_to_copy", "waits for the GPU"),
    "Literal": ("torch.tensor", "register_buffer"),
    "Nonzero": ("aten::nonzero", "shape of its result"),
    "Mask": ("aten::index", "shape of its result"),
    "Unjoined": ("aten::mul", "another stream"),
    "NeverForked": ("aten::mul", "another stream"),
    "Synchronizes": ("torch.cuda.synchronize()", ""),
    "LazyInit": ("cuda()", ""),
    "Benchmark": ("self.conv(picture)", ""),
}


def graphed_and_input():
    """Return an engine that has captured something random, which a failure elsewhere must not disturb."""
    torch.manual_seed(5)
    good = CudaGraphed(lambda x: torch.rand_like(x) + x)
    x = torch.zeros(8, device="cuda")
    good(x)
    return good, x


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_the_error_names_operator_and_line_and_restores_all_state(case):
    operator, why = CASES[case]
    kind = getattr(uncapturable, case)
    good, x = graphed_and_input()
    module = kind()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(11)
    stream, host = torch.cuda.current_stream(), torch.get_rng_state()
    before = torch.cuda.memory_allocated(), graph_pools()[0], torch.cuda.get_rng_state()
    with pytest.raises(CaptureError) as caught:
        CudaGraphed(module)(x)
    message = str(caught.value)
    print(message)
    assert operator in message
    assert why in message
    assert f"uncapturable.py:{line_of(kind)} " in message
    assert "To do: " in message
    assert "\n" not in message
    del caught
    if hasattr(module, "table"):
        del module.table
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    after = torch.cuda.memory_allocated(), graph_pools()[0], torch.cuda.get_rng_state()
    assert after[1] <= before[1], "the failed capture's pool is given back"
    assert after[0] <= before[0] + 2**20
    assert torch.equal(after[2], before[2])
    assert torch.equal(torch.get_rng_state(), host)
    # Random numbers, other graphs and new captures work, and draw what they would have drawn.
    torch.manual_seed(11)
    first = good(x), torch.rand(4, device="cuda"), CudaGraphed(torch.sin)(x + 1)
    torch.manual_seed(11)
    second = good._call(x), torch.rand(4, device="cuda"), torch.sin(x + 1)
    torch.testing.assert_close(first, second)


@torch.no_grad()
def test_a_failed_signature_falls_back_to_nothing_and_leaves_the_others_working():
    class Picky(nn.Module):
        def forward(self, x):
            return x * 2 if x.shape[0] == 8 else x * x.sum().item()

    graphed = CudaGraphed(Picky())
    x = torch.ones(8, device="cuda")
    graphed(x)
    for _ in range(3):
        with pytest.raises(CaptureError):
            graphed(torch.ones(9, device="cuda"))
        torch.testing.assert_close(graphed(x + 1), (x + 1) * 2)
    assert graphed.counters.recorded == 1


@torch.no_grad()
def test_an_error_of_forward_during_capture_is_raised_unchanged():
    good, x = graphed_and_input()
    with pytest.raises(ValueError, match="planted"):
        CudaGraphed(uncapturable.Raises())(x)
    torch.manual_seed(1)
    first = good(x)
    torch.manual_seed(1)
    torch.testing.assert_close(good._call(x), first)


@torch.no_grad()
def test_effects_that_replays_would_repeat_are_refused():
    class Replaces(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("position", torch.zeros(1, device="cuda"))

        def forward(self, x):
            self.position = self.position + 1
            return x + self.position

    class Draws(nn.Module):
        def forward(self, x):
            return x * 2 if torch.rand(()) < 0.5 else x * 3

    x = torch.ones(8, device="cuda")
    for module, says in (
        (Replaces(), "`position` is assigned anew by each call, and a later call reads it"),
        (Draws(), "on the host"),
    ):
        with pytest.raises(CaptureError, match=says):
            CudaGraphed(module)(x)
    torch.testing.assert_close(CudaGraphed(torch.sin)(x), x.sin())


@torch.no_grad()
def test_random_numbers_work_after_a_capture_that_could_not_begin():
    stream, pool = torch.cuda.default_stream(), torch.cuda.graph_pool_handle()
    with pytest.raises(CaptureError, match="non-default stream"):
        capture(lambda: torch.rand(4, device="cuda"), stream=stream, pool=pool, audit=Audit(stream))
    torch.rand(4, device="cuda")
    good, x = graphed_and_input()
    assert not torch.equal(good(x), good(x))


@torch.no_grad()
def test_out_of_memory_inside_a_capture_is_raised_unchanged():
    class Greedy(nn.Module):
        def forward(self, x):
            if torch.cuda.is_current_stream_capturing():
                torch.empty(2**50, device="cuda", dtype=torch.uint8)
            return x + 1

    x = torch.ones(8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        CudaGraphed(Greedy())(x)
    torch.testing.assert_close(CudaGraphed(torch.sin)(x), x.sin())
    torch.rand(4, device="cuda")


def test_an_error_of_the_function_is_raised_unchanged():
    def broken(x):
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        CudaGraphed(broken)(torch.ones(8, device="cuda"))
