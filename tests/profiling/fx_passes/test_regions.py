"""Regions of a graph, computed alone."""

import torch
from torch import fx

from profiling.fx_passes.nodes import propagate
from profiling.fx_passes.regions import Graph


def test_values_are_freed_after_their_last_reader():
    """Twenty of a large picture at once would be gigabytes."""

    def chain(x):
        first = x + 1
        for _ in range(20):
            first = first * 2
        return first + x

    traced = fx.symbolic_trace(chain)
    x = torch.ones(2, 3)
    propagate(traced, {"x": x})
    source, *region, _ = traced.graph.nodes
    graph = Graph(traced)
    values = graph.values(region, source, x)
    assert set(values) == {region[-1]}
    torch.testing.assert_close(values[region[-1]], chain(x))
    kept = graph.values(region, source, x, [region[3]])
    assert set(kept) == {region[3], region[-1]}
    torch.testing.assert_close(kept[region[3]], (x + 1) * 8)
