"""State: found wherever a module keeps it, and put back exactly."""

import gc
import random
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

from profiling.components.component import Component
from profiling.components.outputs import difference, to_host
from profiling.components.reference import CHECK_SEED, outputs_of
from profiling.components.state import Snapshot, State
from profiling.graphs.engine import CudaGraphed

CPU = torch.device("cpu")


def component_of(module: nn.Module, policy="snapshot") -> Component:
    def make(generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(2, 4, generator=generator)}

    inputs = make(torch.Generator().manual_seed(0))
    return Component("planted", module, inputs, make, CPU, torch.float32, 1, "random", policy=policy)


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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_state_is_put_back(kind):
    component = component_of(Planted(kind))
    check = outputs_of(component, CHECK_SEED, repeat=True)
    assert check.repeated is not None
    assert difference(check.repeated, check.calls[0]).error == 0
    if kind != "lazy mask":
        assert difference(check.calls[1], check.calls[0]).error > 0, "planted: a call changes the next one"
    for _ in range(3):
        component.call()
    component.reset()
    component.refill(CHECK_SEED)
    assert torch.equal(component.call(), check.calls[0]["output",].numbers)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["buffer", "views of one storage", "lazy memory", "cycle"])
def test_memory_keeps_its_address(kind):
    component = component_of(Planted(kind))
    outputs_of(component, CHECK_SEED)
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


class StartsOnce(nn.Module):
    """Keeps a flag of its first call that goes with a state elsewhere, which is restored."""

    def __init__(self):
        super().__init__()
        self.started, self.of = False, SimpleNamespace(total=None)

    def forward(self, x):
        self.of.total = self.of.total + x if self.started else 2 * x
        self.started = True
        return self.of.total


@pytest.mark.parametrize("kind", [InstallsHooks, StartsOnce])
def test_a_flag_of_the_first_call_stays_only_where_the_next_call_is_right_with_it(kind):
    component = component_of(kind())
    with torch.inference_mode():
        first = outputs_of(component, 0).calls[0]
        for _ in range(3):
            component.reset()
            component.refill(0)
            assert difference(to_host(output=component.call(), inputs=component.inputs), first).error == 0
    assert len(component.module.layer._forward_hooks if kind is InstallsHooks else "1") == 1


def test_what_is_made_once_stays():
    component = component_of(Planted("lazy mask"))
    outputs_of(component, CHECK_SEED)
    mask = component.module.mask
    component.reset()
    assert component.module.mask is mask is not None
    assert not component.kept.counting
    assert component.kept.changed == ()


@pytest.mark.parametrize(
    ("kind", "paths"),
    [
        ("number", ("calls",)),
        ("list", ("history",)),
        ("lazy memory", ("allocated.at",)),
        ("plain tensor", ()),
        ("buffer", ()),
    ],
)
def test_what_counts_or_grows_is_rewound(kind, paths):
    component = component_of(Planted(kind))
    first = outputs_of(component, CHECK_SEED).calls[0]["output",].numbers
    assert component.kept.counting == paths
    component.reset()
    component.refill(CHECK_SEED)
    for _ in range(20 if paths else 0):
        component.kept.rewind()
        assert torch.equal(component.call(), first)  # pyright: ignore[reportArgumentType]


def test_what_is_assigned_in_each_call_is_named():
    component = component_of(Planted("tuple"))
    outputs_of(component, CHECK_SEED)
    assert component.kept.reassigned == ("cache",)


def test_large_tensors_that_calls_leave_alone_are_not_kept_twice():
    module = Planted("buffer")
    module.register_buffer("table", torch.zeros(2**19))  # 2 MiB
    component = component_of(module)
    outputs_of(component, CHECK_SEED)
    assert 0 < component.kept.bytes < 2**20


def test_a_parameter_that_a_call_writes_to_is_named():
    module = Planted("buffer")
    component = component_of(module)
    with torch.inference_mode():
        module.with_buffer = lambda x: module.weight.add_(1) * x  # pyright: ignore[reportAttributeAccessIssue]
        outputs_of(component, CHECK_SEED)
    assert component.kept.not_restored == {"weight": "a parameter that the call writes to"}


@pytest.mark.parametrize(("policy", "second"), [("reset", 7.0), ("none", 2.0)])
def test_the_other_policies(policy, second):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0.0

        def reset(self):
            self.calls = 6.0

        def forward(self, x):
            self.calls += 1
            return torch.tensor(self.calls)

    component = component_of(Counts(), policy)
    component.reset()
    component.call()
    component.reset()
    assert component.call() == second


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
    outputs_of(component, CHECK_SEED)
    assert component.kept.not_restored == {"stubborn": "Stubborn cannot be read: OSError: gone"}


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
        self.cache = {"static": lambda: transformers.StaticCache(config=config, max_cache_len=8)}.get(
            cache or "", lambda: transformers.DynamicCache(config=config) if cache else None
        )()

    def forward(self, ids, cache=None):
        return self.model(input_ids=ids, past_key_values=cache or self.cache, use_cache=True).logits


def language(held: str | None, given: str | None = None) -> Component:
    def make(generator: torch.Generator):
        ids = torch.randint(32, (1, 2), generator=generator)
        return {"ids": ids, "cache": Language(given).cache} if given else {"ids": ids}

    module = Language(held)
    inputs = make(torch.Generator().manual_seed(0))
    return Component("language", module, inputs, make, CPU, torch.float32, 1, "random")


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@torch.inference_mode()
def test_a_cache_of_transformers_in_the_module(cache):
    component = language(cache)
    check = outputs_of(component, CHECK_SEED, repeat=True)
    assert difference(check.repeated, check.calls[0]).error == 0  # pyright: ignore[reportArgumentType]
    assert difference(check.calls[1], check.calls[0]).error > 0
    assert component.kept.counting
    component.reset()
    component.refill(CHECK_SEED)
    layer = component.module.cache.layers[0] if cache == "static" else None
    keys = None if layer is None else layer.keys.data_ptr()
    for _ in range(10):  # the static cache has room for four calls
        component.kept.rewind()
        output = component.call()
    torch.testing.assert_close(output, check.calls[0]["output",].numbers)
    if layer is not None:
        assert layer.keys.data_ptr() == keys, "a captured graph reads it there"


@pytest.mark.parametrize("cache", ["static", "dynamic"])
@torch.inference_mode()
def test_a_cache_of_transformers_as_an_input(cache):
    component = language(None, given=cache)
    check = outputs_of(component, CHECK_SEED, repeat=True)
    assert difference(check.repeated, check.calls[0]).error == 0  # pyright: ignore[reportArgumentType]
    assert difference(check.calls[1], check.calls[0]).error == 0, "each call gets the cache as it was given"
    assert any(path.startswith("inputs['cache']") for path in component.kept.counting)
    component.reset()
    component.refill(CHECK_SEED)
    layer = component.inputs["cache"].layers[0] if cache == "static" else None
    keys = None if layer is None else layer.keys.data_ptr()
    for _ in range(10):
        component.kept.rewind()
        output = component.call()
    torch.testing.assert_close(output, check.calls[0]["output",].numbers)
    if layer is not None:
        assert layer.keys.data_ptr() == keys, "the first call makes them, and no timed call makes them again"


class AppendsToLists(nn.Module):
    """Changes a list among its inputs, and one in an object."""

    def forward(self, x, history, store):
        history.append(x)
        store.items.append(x)
        return x * len(history) + sum(store.items)


def test_lists_and_objects_among_the_inputs_are_put_back_before_each_call():
    def make(generator):
        return {"x": torch.randn(3, generator=generator), "history": [], "store": SimpleNamespace(items=[])}

    inputs = make(torch.Generator().manual_seed(0))
    component = Component("appends", AppendsToLists(), inputs, make, CPU, torch.float32, 1, "random")
    check = outputs_of(component, 0, repeat=True)
    assert difference(check.calls[1], check.calls[0]).error == 0
    assert difference(check.repeated, check.calls[0]).error == 0  # pyright: ignore[reportArgumentType]
    assert set(component.kept.counting) == {"inputs['history']", "inputs['store'].items"}
    component.reset()
    component.refill(0)
    for _ in range(3):
        component.kept.rewind()
        output = component.call()
    torch.testing.assert_close(output, check.calls[0]["output",].numbers)


def test_the_engine_that_stands_for_forward_is_no_state():
    """`cuda_graphs(module)` puts it there; its stream, made at the first call, is not taken away again."""
    module, engine = nn.Linear(4, 4), object.__new__(CudaGraphed)
    engine._stream = None
    module.forward = engine
    snapshot = Snapshot({"": module})
    engine._stream = stream = object()
    snapshot.restore()
    assert engine._stream is stream
