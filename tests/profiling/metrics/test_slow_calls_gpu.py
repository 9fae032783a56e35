"""Timed calls on a GPU: allocations and captures inside are causes where they took long enough, and a cold cache is."""

from __future__ import annotations

import statistics
import time

import pytest
import torch
from test_slow_calls import named, timed

from profiling.graphs import CudaGraphed
from profiling.metrics.clocks import CacheFlush, CallClock

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

DEVICE, MIB = "cuda:0", 2**20


def test_allocations_of_the_driver_inside_a_timed_call() -> None:
    torch.cuda.empty_cache()
    kept: list[torch.Tensor] = []

    def allocate() -> None:
        kept.extend(torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE) for _ in range(100))

    assert named(timed(allocate, DEVICE)) == {"cudaMalloc"}
    assert len(kept) == 100


def test_an_allocation_too_short_to_explain_a_timed_call() -> None:
    torch.cuda.empty_cache()
    kept: list[torch.Tensor] = []

    def allocate() -> None:
        time.sleep(0.1)
        kept.append(torch.empty(64 * MIB, dtype=torch.uint8, device=DEVICE))

    slow = timed(allocate, DEVICE)
    assert named(slow) == set()
    assert "not attributed" in slow.frames[0].causes


def test_a_capture_inside_a_timed_call_of_a_gpu() -> None:
    module = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(50))).to(DEVICE)
    graphed, x = CudaGraphed(module), torch.ones(1, 64, device=DEVICE)
    with torch.inference_mode():
        module(x)
        torch.cuda.synchronize()
        causes = named(timed(lambda: graphed(x), DEVICE))
    assert "CUDA graph captured" in causes
    assert causes <= {"CUDA graph captured", "garbage collection"}, "the engine collects garbage before it captures"


def test_a_step_without_faults_has_no_cause_of_its_own() -> None:
    assert named(timed(lambda: None, DEVICE)) == set()


def test_cold_is_slower_than_hot_where_the_weights_fit_in_the_cache():
    """Calls with a hot and a cold cache alternate, so that other work on the GPU slows both alike."""
    matrices = torch.randn(4, 2048, 2048, device=DEVICE, dtype=torch.bfloat16)  # 32 MiB of a last-level cache of 50
    vector = torch.randn(2048, 1, device=DEVICE, dtype=torch.bfloat16)
    output = torch.empty(2048, 1, device=DEVICE, dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    torch.mm(matrices[0], vector, out=output)
    with torch.cuda.graph(graph):
        for matrix in matrices:  # each read once
            torch.mm(matrix, vector, out=output)
    clock, flush = CallClock(torch.device(DEVICE)), CacheFlush(torch.device(DEVICE))
    hot, cold = [], []
    for _ in range(40):
        graph.replay()
        hot.append(clock.sample(graph.replay).device)
        flush()
        cold.append(clock.sample(graph.replay).device)
    assert statistics.median(cold) > statistics.median(hot)
