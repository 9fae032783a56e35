"""State: found wherever a module keeps it, put back exactly, and refused by name where a replay cannot follow it."""

import math
from dataclasses import replace

import pytest
import torch
from fixed_component import Net
from kinds_of_state import KINDS, Stateful, learned
from playing import component_of
from torch import nn

from profiling.components.component import Component
from profiling.components.outputs import Outputs, difference, to_host
from profiling.components.snapshot import same
from profiling.components.state import Snapshot
from profiling.components.trajectory import play
from profiling.graphs.engine import CudaGraphed


def outputs_of(component: Component, calls: int = 3) -> list[Outputs]:
    """Return the outputs of the first calls of a trajectory, and the state after them."""
    return [*play(component, component.call, calls), to_host(state=component.kept.values())]


def assert_equal(some: list[Outputs], others: list[Outputs]) -> None:
    for one, other in zip(some, others, strict=True):
        found = difference(one, other)
        assert (found.error, found.fault) == (0, None)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_state_is_put_back_and_refused_where_a_replay_cannot_follow(kind):
    component = learned(Stateful(kind))
    refused, refusal = KINDS[kind].refused, component.refusal()
    assert refusal is None if refused is None else refusal.startswith(f"cannot follow the module's state: {refused}")
    first = outputs_of(component)
    component.feed(0)
    again = to_host(output=component.call(), inputs=component.kept.drawn())
    assert (difference(again, first[0]).error > 0) is KINDS[kind].moves, "planted: a call changes the next one"
    component.reset()
    places = {path: tensor.data_ptr() for path, tensor in component.kept.named_tensors()}
    assert not (component.has_state and kind in ("lazy mask", "hook")), "what only the first calls change is none"
    assert_equal(outputs_of(component), first)
    component.reset()
    if refused is None:
        assert {path: tensor.data_ptr() for path, tensor in component.kept.named_tensors()} == places
    cold = learned(Stateful(kind), warm_calls=0)
    assert refused is None or cold.refusal() is not None
    assert_equal(outputs_of(cold), outputs_of(cold))


#: Dtypes of state, and how a call changes it.
DTYPES = {
    torch.int64: lambda state: state.add_(1),
    torch.uint8: lambda state: state.add_(1),
    torch.uint16: lambda state: state.copy_((state.int() + 1).to(torch.uint16)),
    torch.bool: torch.Tensor.logical_not_,
    torch.bfloat16: lambda state: state.add_(1),
    torch.float64: lambda state: state.add_(1e-9),
    torch.complex64: lambda state: state.add_(1),
    torch.float8_e4m3fn: lambda state: state.copy_((state.float() * 1.5 + 1).to(torch.float8_e4m3fn)),
}
SIZES = [(), (0,), (3, 2**19)]


@pytest.mark.parametrize(
    ("dtype", "size"), [*((each, (32,)) for each in DTYPES), *((torch.int64, each) for each in SIZES)], ids=str
)
def test_state_of_any_dtype_and_size_is_put_back(dtype, size):
    """Integer positions of a batch of 32, for example; a write is found where no operator is watched, too."""

    def write(x):
        DTYPES[dtype](state)
        return x + state.reshape(-1)[:1].float().sum()

    state = torch.zeros(size).to(dtype)
    component = learned(Net(lambda self, x: write(x), state=state))
    component.reset()
    before = state.clone()
    for _ in range(3):
        component.call()
    moved = not torch.equal(state.reshape(-1).view(torch.uint8), before.reshape(-1).view(torch.uint8))
    assert moved is bool(state.numel())
    component.reset()
    assert torch.equal(state.reshape(-1).view(torch.uint8), before.reshape(-1).view(torch.uint8))


@torch.inference_mode()
def test_tensors_of_any_form_in_a_module_do_no_harm():
    module = Stateful("buffer")
    module.unusual = {
        "sparse": torch.eye(3).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "conjugate": torch.ones(3, dtype=torch.complex64).conj(),
        "negative": torch._neg_view(torch.ones(3)),
        "expanded": torch.ones(1).expand(4),
        "one column": torch.ones(4, 4)[:, 1],
        "one element": torch.ones(1, 1).expand(1, 4)[:, :1],
        "empty": torch.empty(0, 3),
        "meta": torch.empty(3, device="meta"),
    }
    component = learned(module)
    assert set(component.kept.effects.written) == {"ring", "at"}
    assert_equal(outputs_of(component), outputs_of(component))


@pytest.mark.parametrize(("kind", "calls"), [("buffer", 1), ("lazy memory", 2), ("length of a list", 4)])
def test_warm_calls_go_on_until_the_structure_repeats(kind, calls):
    for asked, made in ((None, calls), (3, 3)):
        component = component_of(Stateful(kind), warm_calls=asked)
        component.reset()
        assert component.kept.warm_calls == made


def test_large_tensors_that_calls_leave_alone_are_not_kept_twice():
    module = Stateful("buffer")
    module.register_buffer("table", torch.zeros(2**19))  # 2 MiB
    assert 0 < learned(module).kept.bytes < 2**20


def counts(self, x):
    self.calls += 1
    return torch.tensor(self.calls)


@pytest.mark.parametrize(("policy", "next_call"), [("snapshot", 2.0), ("reset", 8.0), ("none", 4.0)])
def test_the_policies(policy, next_call):
    """A warm call comes before: after `reset()`, it is made again."""
    module = Net(counts, calls=0.0)
    module.reset = lambda: setattr(module, "calls", 6.0)
    component = component_of(module, policy=policy)
    component.reset()
    for _ in range(2):
        component.call()
    component.reset()
    assert component.call() == next_call


def test_a_copy_of_a_component_shares_its_state_and_another_module_has_its_own():
    component = component_of(Stateful("buffer"))
    assert replace(component, name="other").kept is component.kept
    assert replace(component, module=nn.Identity()).kept is not component.kept


def test_what_cannot_be_read_or_copied_is_named():
    class Stubborn(dict):
        def items(self):
            raise OSError("gone")

    module = Stateful("buffer")
    module.stubborn = Stubborn(a=1)
    assert learned(module).kept.not_restored == {"stubborn": "Stubborn cannot be read: OSError: gone"}


def test_which_values_count_as_unchanged():
    assert same(math.nan, math.nan * 2)
    assert not same(math.nan, 5.0)
    assert not same(5.0, math.nan)
    assert not same((math.nan, 1), (5.0, 1))
    assert not same((1,), (1, 1))
    assert not same(1, True)


LLAMA = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 2, "num_key_value_heads": 2}


@pytest.mark.parametrize("place", ["in the module", "as an input"])
@pytest.mark.parametrize("kind", ["static", "dynamic"])
@torch.inference_mode()
def test_a_cache_of_transformers(kind, place):
    """A static one has room for eight calls, of which two are warm calls; a dynamic one grows."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(**LLAMA)
    cache = transformers.DynamicCache(config=config)
    if kind == "static":
        cache = transformers.StaticCache(config=config, max_cache_len=16)

    def forward(self, ids, cache=None):
        return self.model(input_ids=ids, past_key_values=cache or self.cache, use_cache=True).logits

    held, given = (None, {"cache": cache}) if place == "as an input" else (cache, {})
    module = Net(forward, model=transformers.LlamaForCausalLM(config).eval(), cache=held)
    component = learned(module, lambda generator: {"ids": torch.randint(32, (1, 2), generator=generator), **given})
    calls = component.place.calls
    assert calls == (6 if kind == "static" else 8)
    first = outputs_of(component, calls)
    assert difference(first[1], first[0]).error > 0
    keys = cache.layers[0].keys.data_ptr()
    assert_equal(outputs_of(component, calls), first)
    if kind == "static":
        assert cache.layers[0].keys.data_ptr() == keys, "a captured graph reads it there"
    assert (component.refusal() is None) is (kind == "static")


def test_the_engine_that_stands_for_forward_is_no_state():
    """`cuda_graphs(module)` puts it there; its stream, made at the first call, is not taken away again."""
    module, engine = nn.Linear(4, 4), object.__new__(CudaGraphed)
    engine._stream = None
    module.forward = engine
    snapshot = Snapshot({"": module})
    engine._stream = stream = object()
    snapshot.restore()
    assert engine._stream is stream
