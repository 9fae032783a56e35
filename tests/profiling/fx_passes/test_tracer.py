"""The tracer: real networks, every kind of operation, and errors that name the user's line."""

import gc
import math
import random
import re
import weakref

import pytest
import torch
from fixed_component import Net
from fx_networks import applied, assert_same, calls, normal
from torch import nn
from torch.nn import functional as F

from models.initialisation import randomise
from models.world_model import WorldModel, WorldModelParams, world_model_inputs
from profiling.errors import InputError
from profiling.fx_passes.linear import FuseParallelLinears
from profiling.fx_passes.nodes import written_by
from profiling.fx_passes.tracer import trace


@torch.inference_mode()
def test_a_world_model_is_traced():
    """Our decoders: test_decoder_steps.py."""
    module = WorldModel(WorldModelParams.tiny()).eval()
    randomise(module, 0)
    options = {"device": "cpu", "dtype": torch.float32, "batch": 1, "frames": 3}
    inputs, others = (
        world_model_inputs(module, generator=torch.Generator().manual_seed(seed), **options) for seed in (1, 2)
    )
    traced = trace(module, inputs)
    traced.graph.lint()
    for given in (inputs, others):
        assert_same(traced(**given), module(**given), 0)


def test_the_trace_shares_the_modules_weights_and_changes_nothing():
    lin = nn.Linear(4, 4)
    module = Net(lambda self, x: self.lin(x).relu(), lin=lin)
    before, x = {name: t.clone() for name, t in module.state_dict().items()}, normal(2, 4, dtype=torch.float32)
    kept = x.clone()
    traced = trace(module, {"x": x})
    assert torch.equal(x, kept)
    assert traced.get_parameter("lin.weight") is lin.weight
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())
    with torch.no_grad():
        lin.bias.add_(1)
    assert torch.equal(traced(x=x), module(x=x))


def asks(self, x):
    if x.sum() > 0:  # here: __bool__
        return x
    return -x


def casts(self, x):
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.mT  # here: autocast


def hides(self, x):
    with torch._C.DisableTorchFunction():
        doubled = x * 2
    return doubled + 1  # here: hidden


UNTRACEABLE = {
    "bool": asks,
    "item": lambda self, x: x * x.max().item(),  # here
    "mask": lambda self, x: x[x > 0],  # here
    "index": lambda self, x: x[: (x > 0).sum()],  # here
    "vmap": lambda self, x: torch.vmap(lambda row: row * 2)(x),  # here
    "autocast": casts,
    "generator": lambda self, x: x + torch.rand(2, 3, generator=torch.Generator().manual_seed(0)),  # here
    "hidden": hides,
}


@pytest.mark.parametrize("forward", UNTRACEABLE.values(), ids=UNTRACEABLE)
def test_errors_name_the_line_that_cannot_be_traced(forward):
    module = Net(forward)
    with pytest.raises(InputError) as caught:
        trace(module, {"x": normal(2, 3, dtype=torch.float32)})
    message = str(caught.value)
    start = forward.__code__.co_firstlineno
    match = re.search(r"test_tracer\.py:(\d+) \((.*# here)", message)
    assert match, message
    assert start <= int(match[1]) <= start + 3
    assert ("variant=[cuda_graph]" in message) == ("depends on values" not in message), "no capture has such a shape"
    assert len(message.splitlines()) == 1


EXPRESSIONS = {
    "arithmetic": lambda self, x: (2 - x) / (1 + x**2) + 2**x - (-x) // 3 + x % 2 + abs(x) + 3 / (x * x + 1),
    "comparisons": lambda self, x: ((x > 0) & ~(x >= 1) | (x != 2) ^ (x < 3) & (x <= 4)) == (x > 1),
    "views": lambda self, x: (x.view(3, -1), x[None, ..., 1:], x.T.t(), x.mH, x.data, x.real),
    "several results": lambda self, x: [x.split(1)[2], x.chunk(3, 1), x.max(0).values, *torch.sort(x), list(x)[1]],
    "indexed": lambda self, x: x[torch.tensor([2, 0, 0])][:, x.argmax(1)].gather(1, x.argsort(1)),
    "made": lambda self, x: torch.zeros_like(x) + torch.eye(3) + torch.linspace(0, 1, 3, device=x.device),
    "by keyword": lambda self, x: (
        torch.where(condition=x > 0, input=x, other=-x),
        torch.searchsorted(sorted_sequence=x[0].sort().values, input=x),
        torch.softmax(input=x, dim=0) + torch.permute(input=x, dims=(1, 0)) + torch.reshape(input=x, shape=(3, 3)),
        torch.bmm(input=x[None], mat2=x[None]),
    ),
    "scripted": lambda self, x: torch.jit.script(scripted)(x),
    "compared with what is no number": lambda self, x: x if x == "first" or x != None else 2 * x,  # noqa: E711
    "nested": lambda self, x: {"a": (x * 2, None), "b": [x, 3]},
}


def scripted(x):
    return x * 2


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated")
def test_the_graph_computes_what_the_code_computes(name):
    applied([], Net(EXPRESSIONS[name]), 1e-15, x=normal(3, 3))


def test_values_that_do_not_depend_on_inputs_may_be_read():
    def forward(self, x):
        limit = torch.arange(4).max()
        if limit > 2:
            x = x * limit.item()
        b, n = x.shape
        return x.reshape(b * n)[: len(x)]

    traced, _ = applied([], Net(forward), x=normal(2, 3))
    assert traced.graph.find_nodes(op="call_function", target=torch.arange) == []


@pytest.mark.parametrize(
    ("forward", "named"),
    [
        (lambda self, x: F.relu(x + 1, inplace=True), "relu"),
        (lambda self, x: F.silu(x + 1, inplace=True), "silu"),
        (lambda self, x: (x + 1).mul_(2).clamp_(-1, 1), "clamp"),
        (lambda self, x: x + torch.empty(3, 3).fill_(-math.inf).triu_(1).exp_(), "triu"),
        (lambda self, x: (x + 1).masked_fill_(torch.eye(3) > 0, 2.0), "masked_fill"),
        (lambda self, x: (x + 1).index_fill_(0, torch.tensor([1]), 2.0), "index_fill"),
    ],
)
def test_private_in_place_calls_become_out_of_place(forward, named):
    traced, _ = applied([], Net(forward), x=normal(3, 3))
    assert not any(written_by(node) for node in traced.graph.nodes)
    assert calls(traced)[named] == 1


@pytest.mark.filterwarnings("ignore:non-inplace resize")
def test_in_place_calls_stay_where_the_function_differs():
    """The function of that name gives another dtype, takes other arguments, gives another tensor, or draws anew."""
    unlike = {"gt_": (0,), "logical_and_": (torch.ones(3, 3),), "resize_": (3, 2), "fill_diagonal_": (2,)}
    for name, arguments in unlike.items():
        module = Net(lambda self, x, name=name, given=arguments: getattr(x.abs() + 1, name)(*given) * 2)
        assert calls(applied([], module, x=normal(3, 3))[0])[name] == 1
    drawn = trace(Net(lambda self, x: x + torch.empty(3).bernoulli_()), {"x": normal(3)})
    assert calls(drawn)["bernoulli_"] == 1
    with torch.library._scoped_library("fx_test", "DEF") as library:  # not to be taken for torch's
        library.define("add_(Tensor(a!) x, float y) -> Tensor(a!)")
        library.impl("add_", lambda x, y: x.mul_(y), "CompositeExplicitAutograd")
        traced, _ = applied([], Net(lambda self, x: torch.ops.fx_test.add_(x + 1, 3.0)), x=normal(3, 3))
        assert calls(traced)["add"] == 1  # x + 1


def write_and_read_before(self, x):
    y = x + 1
    z = y.view(-1)
    y.relu_()
    return y.sum() + z


def write_out(self, x):
    out = torch.zeros(2, 3, 3, dtype=x.dtype)
    torch.softmax(x, -1, out=out[0])
    return out


def write_sparse(self, x):
    values = x.to_sparse()
    values.mul_(2)
    return values.to_dense()


def write_items(self, x):
    out = x + 1
    out[:, 0].mul_(2)
    out[:, 1] = x[:, 0]
    out[:, 2] += x[:, 0]
    return out


@pytest.mark.parametrize(
    "forward",
    [write_and_read_before, lambda self, x: (x + 1).float().mul_(x), write_out, write_sparse, write_items],
)
def test_other_writes_are_kept_and_known(forward):
    traced, _ = applied([], Net(forward), x=normal(3, 3))
    assert sum(bool(written_by(node)) for node in traced.graph.nodes) >= 1


def test_a_ring_may_be_written_before_it_is_read():
    """As a transformers StaticCache does: what the operator writes to is a buffer, and no value of the inputs."""

    def forward(self, x):
        self.ring.index_copy_(0, (self.position % 4)[None], x)
        self.position.add_(1)
        return self.ring.sum(0)

    module = Net(forward, ring=torch.zeros(4, 3), position=torch.zeros((), dtype=torch.int64))
    x = torch.ones(1, 3)
    traced = trace(module, {"x": x})
    module.ring.zero_()
    assert [float(traced(x=x)[0]) for _ in range(5)] == [1.0, 2.0, 3.0, 4.0, 4.0]
    assert module.ring.sum() == 12


def test_an_output_that_a_graph_cannot_express_is_named():
    with pytest.raises(InputError, match=r"^Net cannot be traced: its forward returns a Random, which a graph cannot"):
        trace(Net(lambda self, x: {"y": x, "cache": random.Random()}), {"x": torch.ones(3)})


def test_a_graph_frees_weights_that_it_no_longer_uses():
    module = Net(lambda self, x: self.a(x) + self.b(x), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    weight = weakref.ref(module.a.weight)
    traced = FuseParallelLinears()(trace(module, {"x": torch.ones(1, 3)}))
    del module
    gc.collect()
    assert weight() is None
    assert traced.meta["replaced"] == 2
