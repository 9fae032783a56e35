"""What only a device's clocks and its cache can show."""

import statistics

import pytest

torch = pytest.importorskip("torch")

from profiling.metrics.clocks import CacheFlush, clock_of  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

DEVICE = "cuda"


def test_cold_is_slower_than_hot_where_the_weights_fit_in_the_cache():
    """Hot and cold samples take turns, so that whatever else the GPU does falls on both."""
    matrices = torch.randn(4, 2048, 2048, device=DEVICE, dtype=torch.bfloat16)  # 32 MiB of a last-level cache of 50
    vector = torch.randn(2048, 1, device=DEVICE, dtype=torch.bfloat16)
    output = torch.empty(2048, 1, device=DEVICE, dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    torch.mm(matrices[0], vector, out=output)
    with torch.cuda.graph(graph):
        for matrix in matrices:  # each read once
            torch.mm(matrix, vector, out=output)
    clock, flush = clock_of(torch.device(DEVICE)), CacheFlush(torch.device(DEVICE))
    hot, cold = [], []
    for _ in range(40):
        graph.replay()
        hot.append(clock.sample(graph.replay).device)
        flush()
        cold.append(clock.sample(graph.replay).device)
    assert statistics.median(cold) > statistics.median(hot)
