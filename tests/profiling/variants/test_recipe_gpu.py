"""Recipes with a capture: what is compiled before it is captured, state and memory are recorded."""

from dataclasses import replace

import pytest
import torch
from fixed_component import fixed_component as component
from test_recipe import Block
from torch import nn

from profiling.components.trajectory import learn
from profiling.trace.counters import snapshot
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.inductor import Inductor
from profiling.variants.recipe import Recipe

pytestmark = pytest.mark.gpu


class Net(nn.Module):
    """Equal blocks, a buffer that calls change, and a random number in each call."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(32) for _ in range(6))
        self.register_buffer("total", torch.zeros(32))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        self.total.add_(x[0])
        return x + self.total + 0 * torch.rand(x.shape, device=x.device)


class Wrapped(nn.Module):
    """The same between two operations of its own."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        return torch.cos(self.net(torch.sin(x)))


COMPILED = {
    "whole": Inductor(),
    "regional": Inductor(regional=True),
    "rest": Inductor(regional=True, rest=True),
    "none": None,
}


@pytest.mark.parametrize("compiler", COMPILED)
def test_a_captured_step_is_right_from_the_first_call(compiler, tmp_path):
    with torch.inference_mode():
        net = component(Wrapped().cuda(), x=torch.randn(2, 32, device="cuda"))
        net = replace(net, extra_inputs=({"x": torch.randn(3, 32, device="cuda")},))
        learn(net)
        net.reset()
        expected = net.call().clone()
        net.reset()
        before = snapshot()
        step = Recipe(compiler=COMPILED[compiler], capture=CudaGraph()).prepare(net, tmp_path)
        try:
            prepared = snapshot()
            for _ in range(3):
                net.reset()
                torch.testing.assert_close(step.call(), expected, rtol=1e-3, atol=1e-3)
            assert step.extra_steps[0]().shape == (3, 32)
            step.eager_step.call()
            assert snapshot().since(prepared).describe() is None, "nothing is compiled after preparing"
            graphs = step.explain()["graphs"]
        finally:
            step.close()
    *compiling, capture = step.recipe
    assert (capture.kind, capture.name, capture.changed) == ("capture", "CudaGraph", 2)
    assert graphs.held == 2
    counted = prepared.since(before).graphs
    assert [each.changed for each in compiling] == ([] if compiler == "none" else [counted])
    graphs_of_a_shape = {"whole": 1, "regional": 1, "rest": 3, "none": 0}[compiler]
    assert counted == 2 * graphs_of_a_shape
