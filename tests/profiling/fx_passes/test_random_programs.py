"""Random small programs: after each shipped pass a graph computes, writes and returns what eager does."""

import math
import random

import pytest
import torch
from fx_networks import Net, normal
from torch import nn
from torch.nn import functional as F

from profiling.components.trees import tensors_in
from profiling.fx_passes import linear
from profiling.fx_passes.attention import ReplaceAttention, SimplifyMasks
from profiling.fx_passes.convolution import FoldBatchNorm, FuseConvEpilogues
from profiling.fx_passes.folding import DropNoOps, FoldConstants, FoldWeightNorm
from profiling.fx_passes.linear import FuseLinearEpilogues, FuseParallelLinears, FuseQuickGelu
from profiling.fx_passes.nodes import propagate
from profiling.fx_passes.tracer import trace

PASSES = (
    FoldWeightNorm(),
    FoldConstants(),
    FoldBatchNorm(),
    FuseParallelLinears(),
    ReplaceAttention(),
    SimplifyMasks(),
    FuseQuickGelu(),
    FuseLinearEpilogues(),
    FuseConvEpilogues(),
    DropNoOps(),
)
N = 6  # all tensors are [N, N, N], so that a dimension taken for another changes values and not shapes


def written_part(x, y):
    x[:, 0] = y[:, 1]
    return x


def attention(x, y, z, scale, before, masked, after):
    scores = before(torch.matmul(x * scale, y.transpose(1, 2)) / math.sqrt(N))
    return after(masked(scores).softmax(-1)) @ z


CASTS = (lambda x: x, lambda x: x.float().double(), lambda x: x.long().double(), lambda x: F.dropout(x, 0.5, False))
MASKS = (
    lambda m, s: s,
    lambda m, s: s + m.causal,
    lambda m, s: s + m.added,
    lambda m, s: m.added + s,
    lambda m, s: s.masked_fill(~m.causal, -math.inf),
    lambda m, s: s.masked_fill(m.causal, -1.0),
    lambda m, s: torch.where(m.causal, s, -math.inf),
    lambda m, s: s + torch.zeros(N, N, dtype=s.dtype).masked_fill(~m.causal, -math.inf),
)
VALUES = (
    lambda m, x, y: x + y,
    lambda m, x, y: torch.mul(x, y),
    lambda m, x, y: (x @ y) / N,
    lambda m, x, y: x * torch.sigmoid(x),
    lambda m, x, y: m.down((h := m.up(x)) * torch.sigmoid(1.702 * h)),
    lambda m, x, y: m.up(x) + m.down(x) * m.side(x),
    lambda m, x, y: F.gelu(m.up(x), approximate="tanh"),
    lambda m, x, y: torch.relu(m.side(x)),
    lambda m, x, y: m.norm(m.conv(x)),
    lambda m, x, y: F.batch_norm(F.conv1d(x, m.conv.weight), m.norm.running_mean, m.norm.running_var),
    lambda m, x, y: (x > y).to(x.dtype) + x,
    lambda m, x, y: torch.arange(N**3, dtype=x.dtype).view_as(x).sin(),
    lambda m, x, y: m.up.weight.t() + torch.zeros_like(x),
    lambda m, x, y: x.clone(),
    lambda m, x, y: m.state * 1 + y,
)
VIEWS = (
    lambda m, x, y: x.transpose(1, 2),
    lambda m, x, y: x.permute(2, 1, 0),
    lambda m, x, y: x.view_as(x),
    lambda m, x, y: x.reshape(N, N * N).view(N, N, N),
    lambda m, x, y: x.contiguous(),
    lambda m, x, y: x.detach()[:],
)
WRITES = (
    lambda m, x, y: x.relu_(),
    lambda m, x, y: x.gt_(0),
    lambda m, x, y: x.mul_(0.5),
    lambda m, x, y: x.add_(y.sigmoid()),
    lambda m, x, y: x.masked_fill_(m.causal, 0.25),
    lambda m, x, y: F.silu(x, inplace=True),
    lambda m, x, y: written_part(x, y),
    lambda m, x, y: x[0].clamp_(-1, 1) + x,
    lambda m, x, y: torch.softmax(y, -1, out=m.state) + y,
    lambda m, x, y: m.state.lerp_(y, 0.5),
    lambda m, x, y: torch.logical_not(x, out=x),
)


def program(seed):
    """Return a forward that calls 12 operations, drawn by `seed`, on earlier results, and returns some of them."""
    draw = random.Random(seed)
    steps = []
    for number in range(2, 14):
        chosen = [draw.randrange(max(0, number - 5), number) for _ in range(3)]
        kind = draw.choices((VALUES, VIEWS, WRITES, MASKS), (5, 3, 2, 2))[0]
        options = (draw.choice((1, 0.5, -2)), draw.choice(CASTS), draw.choice(CASTS))
        steps.append((kind, draw.choice(kind), chosen, options))
    returned = draw.sample(range(14), 3)

    def forward(self, x, y):
        values = [x, y]
        for kind, step, chosen, (scale, before, after) in steps:
            a, b, c = (values[index] for index in chosen)
            if kind is MASKS:
                values.append(attention(a, b, c, scale, before, lambda scores, s=step: s(self, scores), after))
            else:
                values.append(step(self, a, b))
        return [values[index] for index in returned]

    return forward


def module_of(seed):
    torch.manual_seed(seed)
    layers = {name: nn.Linear(N, N, bias=name != "up", dtype=torch.float64) for name in ("up", "down", "side")}
    norm = nn.BatchNorm1d(N, dtype=torch.float64)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    buffers = {"causal": torch.ones(N, N).tril().bool(), "added": normal(N, N), "state": normal(N, N, N)}
    return Net(program(seed), conv=nn.Conv1d(N, N, 1, dtype=torch.float64), norm=norm, **layers, **buffers).eval()


def played(call, module, seed):
    """Return for two calls in a row copies of outputs, inputs and state; the caller writes to what is its own."""
    module.state.copy_(normal(N, N, N, seed=5))
    own = {tensor.untyped_storage().data_ptr() for tensor in module.state_dict().values()}
    results = []
    for number in range(2):
        inputs = {"x": normal(N, N, N, seed=seed + number), "y": normal(N, N, N, seed=seed + number + 9)}
        outputs = call(**inputs)
        results += [tensor.clone() for tensor in (*outputs, *inputs.values(), module.state)]
        for output in outputs:
            if output.untyped_storage().data_ptr() not in own:
                output.zero_()
    return results


@pytest.mark.parametrize("seed", range(60))
def test_a_random_program_stays_the_same(seed, monkeypatch):
    monkeypatch.setattr(linear, "DEVICES", ("cpu",))
    module = module_of(seed)
    with torch.no_grad():
        expected = played(module, module, seed)
        example = {"x": normal(N, N, N, seed=70), "y": normal(N, N, N, seed=71)}
        traced = trace(module, example)
        for each in (None, *PASSES):
            traced = traced if each is None else each(traced)
            propagate(traced, example)
            traced.graph.lint()
            for got, wanted in zip(tensors_in(played(traced, module, seed)), expected, strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6, equal_nan=True)
