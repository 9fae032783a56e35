"""State: found wherever a module keeps it, and put back exactly."""

import gc
import math
import random
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import numpy
import playing
import pytest
import torch
from playing import Net
from torch import nn

from profiling.components.component import Component
from profiling.components.outputs import Outputs, difference, to_host
from profiling.components.snapshot import same
from profiling.components.state import Snapshot, State
from profiling.components.trajectory import inputs_of, learn, play
from profiling.graphs.engine import CudaGraphed


def component_of(module: nn.Module, policy: str = "snapshot", **fields) -> Component:
    return playing.component_of(module, playing.normal(2, 4), policy=policy, **fields)


class Slotted:
    __slots__ = ("__hidden", "steps", "unset")

    def __init__(self):
        self.__hidden, self.steps = torch.zeros(4), 0

    def add(self, x):
        self.__hidden = self.__hidden + x
        self.steps += 1
        return self.__hidden * self.steps


class Planted(nn.Module):
    """A module that keeps state in one place, by its name, and whose output depends on it."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.ones(4))
        self.register_buffer("count", torch.zeros(()))
        self.plain, self.cache, self.calls, self.mask = torch.zeros(4), (torch.zeros(4), None), 0, None
        self.history, self.recent, self.by_name = [], deque([torch.zeros(4)], maxlen=2), {"a": [torch.zeros(4)]}
        self.slotted, self.array, self.seen = Slotted(), numpy.zeros(4, dtype="float32"), set()
        whole = torch.zeros(8)
        self.left, self.right, self.same = whole[:5], whole[3:], whole
        self.expanded = torch.zeros(1).expand(4)
        self.of_parameter = self.weight.detach()[:2]
        self.generator, self.python, self.numpy = torch.Generator(), random.Random(3), numpy.random.default_rng(3)
        self.loop = SimpleNamespace(module=self, total=torch.zeros(4))
        self.loop.itself = self.loop
        self.allocated = None

    def forward(self, x):
        x = x[0] * self.weight
        return getattr(self, f"with_{self.kind.replace(' ', '_')}")(x)

    def with_buffer(self, x):
        self.count += 1
        return x * self.count

    def with_plain_tensor(self, x):
        self.plain = self.plain + x
        return self.plain

    def with_tuple(self, x):
        self.cache = (self.cache[0] + x, x)
        return self.cache[0]

    def with_number(self, x):
        self.calls += 1
        return x * self.calls

    def with_list(self, x):
        self.history.append(x)
        return torch.stack(self.history).sum(0)

    def with_deque(self, x):
        self.recent.append(x + self.recent[-1])
        return self.recent[-1] + self.recent[0]

    def with_nested_dict(self, x):
        self.by_name["a"][0] = self.by_name["a"][0] + x
        self.by_name.setdefault("b", []).append(1)
        return self.by_name["a"][0] * len(self.by_name["b"])

    def with_slots(self, x):
        return self.slotted.add(x)

    def with_array(self, x):
        self.array += x.detach().numpy()
        return torch.from_numpy(self.array.copy())

    def with_set(self, x):
        self.seen.add(len(self.seen))
        return x * len(self.seen)

    def with_views_of_one_storage(self, x):
        self.left[:4] += x
        self.right[1] *= 2
        return self.same + 0

    def with_expanded_tensor(self, x):
        self.expanded[:1] += x[:1]
        return self.expanded + 0

    def with_view_of_a_parameter(self, x):
        self.of_parameter += x[:2]
        return x * self.weight

    def with_swapped_memory(self, x):
        self.count.data = torch.cat((self.count.reshape(-1), x[:1]))
        return self.count + 0

    def with_generator(self, x):
        return x + torch.rand(4, generator=self.generator)

    def with_other_generators(self, x):
        return x + self.python.random() + float(self.numpy.random())

    def with_cycle(self, x):
        self.loop.itself.total += x
        return self.loop.module.loop.total + 0

    def with_lazy_mask(self, x):
        if self.mask is None:
            self.mask = torch.tril(torch.ones(4, 4))
        return self.mask @ x

    def with_lazy_memory(self, x):
        if self.allocated is None:
            self.allocated = SimpleNamespace(keys=torch.zeros(8, 4), at=torch.zeros((), dtype=torch.int64), ready=True)
        self.allocated.keys[self.allocated.at] = x
        self.allocated.at += 1
        return self.allocated.keys.sum(0)

    def with_hidden_state(self, x):
        self.mask = x if self.mask is None else self.mask + x
        return self.mask + 0

    def with_first_call(self, x):
        first, self.mask = self.mask is None, torch.ones(4) if self.mask is None else self.mask
        return x if first else x * 2


KINDS = [name[5:].replace("_", " ") for name in vars(Planted) if name.startswith("with_")]


def outputs_of(component: Component, calls: int = 4) -> list[Outputs]:
    """Return the outputs of the first calls of a trajectory, and the state after them."""
    return [*play(component, component.call, calls), to_host(state=component.kept.values())]


def assert_equal(some: list[Outputs], others: list[Outputs]) -> None:
    for one, other in zip(some, others, strict=True):
        found = difference(one, other)
        assert (found.error, found.fault) == (0, None)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_state_is_put_back(kind):
    component = component_of(Planted(kind))
    learn(component)
    first = outputs_of(component)
    component.feed(0)
    again = to_host(output=component.call(), inputs=inputs_of(component))
    if kind not in ("lazy mask", "first call"):  # over after the warm calls
        assert difference(again, first[0]).error > 0, "planted: a call changes the next one"
    assert_equal(outputs_of(component), first)
    cold = Planted(kind)
    component = component_of(cold, warm_calls=0)
    learn(component)
    assert_equal(outputs_of(component), outputs_of(component))


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(), (32,), (0,), (3, 2**19)], ids=str)
def test_state_of_any_dtype_and_size_is_put_back(dtype, size):
    """Integer positions of a batch of 32, for example; a write is found where no operator is watched, too."""

    def write(x):
        DTYPES[dtype](state)
        return x + state.reshape(-1)[:1].float().sum()

    state = torch.zeros(size).to(dtype)
    module = Net(write)
    module.register_buffer("state", state)
    component = component_of(module)
    learn(component)
    component.reset()
    before = state.clone()
    for _ in range(3):
        component.call()
    moved = not torch.equal(state.reshape(-1).view(torch.uint8), before.reshape(-1).view(torch.uint8))
    assert moved is bool(state.numel())
    component.reset()
    assert torch.equal(state.reshape(-1).view(torch.uint8), before.reshape(-1).view(torch.uint8))


UNUSUAL = {
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


@pytest.mark.parametrize("form", UNUSUAL)
@torch.inference_mode()
def test_a_tensor_of_any_form_in_a_module_does_no_harm(form):
    module = Planted("buffer")
    module.plain = UNUSUAL[form]
    component = component_of(module)
    learn(component)
    assert component.kept.effects.written == ("count",)
    assert_equal(outputs_of(component), outputs_of(component))


@pytest.mark.parametrize("kind", ["buffer", "views of one storage", "lazy memory", "cycle"])
def test_memory_keeps_its_address(kind):
    component = component_of(Planted(kind))
    learn(component)
    component.reset()
    before = {path: tensor.data_ptr() for path, tensor in component.kept.named_tensors()}
    component.call()
    component.reset()
    gc.collect()
    assert {path: tensor.data_ptr() for path, tensor in component.kept.named_tensors()} == before


class InstallsHooks(nn.Module):
    """Registers a hook in its first call, and remembers that in a flag: as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.layer, self.installed = nn.Linear(4, 4), False

    def forward(self, x):
        if not self.installed:
            self.layer.register_forward_hook(lambda module, args, output: output + 1)
            self.installed = True
        return self.layer(x)


def test_what_the_warm_calls_made_stays():
    component = component_of(InstallsHooks())
    learn(component)
    assert_equal(outputs_of(component), outputs_of(component))
    assert len(component.module.layer._forward_hooks) == 1
    component = component_of(Planted("lazy mask"))
    learn(component)
    mask = component.module.mask
    component.reset()
    assert component.module.mask is mask is not None
    assert component.kept.warm_calls == 2, "one makes it, one shows that nothing else is made"
    assert component.kept.changed == ()
    assert not component.has_state


@pytest.mark.parametrize(("kind", "calls"), [("buffer", 1), ("lazy memory", 2), ("list", 4), ("number", 1)])
def test_warm_calls_go_on_until_the_structure_repeats(kind, calls):
    component = component_of(Planted(kind))
    component.reset()
    assert component.kept.warm_calls == calls
    component = component_of(Planted(kind), warm_calls=3)
    component.reset()
    assert component.kept.warm_calls == 3


@pytest.mark.parametrize("kind", ["number", "list", "lazy memory", "generator"])
def test_a_trajectory_is_followed_by_another_from_the_same_state(kind):
    component = component_of(Planted(kind))
    learn(component)
    component.reset()
    outputs = []
    for _ in range(3 * component.place.calls):
        component.advance()
        outputs.append(component.call())
    calls = component.place.calls
    for first, second, third in zip(outputs, outputs[calls:], outputs[2 * calls :], strict=False):
        assert torch.equal(first, second)
        assert torch.equal(first, third)
    assert not torch.equal(outputs[0], outputs[1])


def test_large_tensors_that_calls_leave_alone_are_not_kept_twice():
    module = Planted("buffer")
    module.register_buffer("table", torch.zeros(2**19))  # 2 MiB
    component = component_of(module)
    learn(component)
    assert 0 < component.kept.bytes < 2**20


@torch.inference_mode()
def test_a_parameter_that_a_call_writes_to_is_put_back():
    module = Planted("buffer")
    component = component_of(module)
    module.with_buffer = lambda x: module.weight.add_(1) * x  # pyright: ignore[reportAttributeAccessIssue]
    learn(component)
    component.reset()
    before = module.weight.clone()
    component.call()
    assert not torch.equal(module.weight, before)
    component.reset()
    assert torch.equal(module.weight, before)
    assert component.kept.effects.parameters == ("weight",)


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0.0

    def reset(self):
        self.calls = 6.0

    def forward(self, x):
        self.calls += 1
        return torch.tensor(self.calls)


@pytest.mark.parametrize(("policy", "next_call"), [("snapshot", 2.0), ("reset", 8.0), ("none", 4.0)])
def test_the_policies(policy, next_call):
    """A warm call comes before: after `reset()`, it is made again."""
    component = component_of(Counts(), policy)
    component.reset()
    for _ in range(2):
        component.call()
    component.reset()
    assert component.call() == next_call


def test_a_copy_of_a_component_shares_its_state_and_another_module_has_its_own():
    component = component_of(Planted("buffer"))
    assert replace(component, name="other").kept is component.kept
    assert replace(component, module=nn.Identity()).kept is not component.kept


def test_what_cannot_be_read_or_copied_is_named():
    class Stubborn(dict):
        def items(self):
            raise OSError("gone")

    module = Planted("buffer")
    module.stubborn = Stubborn(a=1)
    component = component_of(module)
    learn(component)
    assert component.kept.not_restored == {"stubborn": "Stubborn cannot be read: OSError: gone"}


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (math.nan, math.nan * 2, True),
        (math.nan, 5.0, False),
        (5.0, math.nan, False),
        ((math.nan, 1), (5.0, 1), False),
        (1, True, False),
        (0.5, 0.5, True),
    ],
)
def test_which_values_count_as_unchanged(one, other, equal):
    assert same(one, other) is equal


def test_keep_returns_to_the_state_of_that_moment():
    module = Planted("list")
    state = State(module, {}, "snapshot")
    module(torch.ones(2, 4))
    restore = state.keep()
    before = list(module.history)
    module(torch.ones(2, 4))
    restore()
    assert [id(each) for each in module.history] == [id(each) for each in before]


transformers = pytest.importorskip("transformers")


class Language(nn.Module):
    """A tiny Llama with its cache in the module, or with the cache that it is given."""

    def __init__(self, cache: str | None = None):
        super().__init__()
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            **{"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2},
            **{"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64},
        )
        self.model = transformers.LlamaForCausalLM(config).eval()
        self.cache = {"static": lambda: transformers.StaticCache(config=config, max_cache_len=16)}.get(
            cache or "", lambda: transformers.DynamicCache(config=config) if cache else None
        )()

    def forward(self, ids, cache=None):
        return self.model(input_ids=ids, past_key_values=cache or self.cache, use_cache=True).logits


def language(held: str | None, given: str | None = None) -> Component:
    def make(generator: torch.Generator):
        ids = torch.randint(32, (1, 2), generator=generator)
        return {"ids": ids, "cache": Language(given).cache} if given else {"ids": ids}

    return playing.component_of(Language(held), make)


@pytest.mark.parametrize("place", ["in the module", "as an input"])
@pytest.mark.parametrize("cache", ["static", "dynamic"])
@torch.inference_mode()
def test_a_cache_of_transformers(cache, place):
    """A static one has room for eight calls, of which two are warm calls; a dynamic one grows."""
    component = language(cache) if place == "in the module" else language(None, given=cache)
    learn(component)
    calls = component.place.calls
    assert calls == (6 if cache == "static" else 8)
    first = outputs_of(component, calls)
    assert difference(first[1], first[0]).error > 0
    made = component.module.cache if place == "in the module" else component.inputs["cache"]
    keys = made.layers[0].keys.data_ptr()
    assert_equal(outputs_of(component, calls), first)
    if cache == "static":
        assert made.layers[0].keys.data_ptr() == keys, "a captured graph reads it there"
    assert (component.refusal() is None) is (cache == "static")


class AppendsToLists(nn.Module):
    """Changes a list among its inputs, and one in an object."""

    def forward(self, x, history, store):
        history.append(x + 0)
        store.items.append(x + 0)
        return x * len(history) + sum(store.items)


def test_lists_and_objects_among_the_inputs_are_state():
    def make(generator):
        return {"x": torch.randn(3, generator=generator), "history": [], "store": SimpleNamespace(items=[])}

    component = playing.component_of(AppendsToLists(), make)
    learn(component)
    assert set(component.kept.effects.assigned) == {"inputs['history']", "inputs['store'].items"}
    first = outputs_of(component)
    assert len(component.inputs["history"]) == component.kept.warm_calls + 4, "carried over from call to call"
    assert_equal(outputs_of(component), first)


def test_the_engine_that_stands_for_forward_is_no_state():
    """`cuda_graphs(module)` puts it there; its stream, made at the first call, is not taken away again."""
    module, engine = nn.Linear(4, 4), object.__new__(CudaGraphed)
    engine._stream = None
    module.forward = engine
    snapshot = Snapshot({"": module})
    engine._stream = stream = object()
    snapshot.restore()
    assert engine._stream is stream
