"""Modules with state, by name, one for each place where a module can keep it. Their outputs depend on it."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from playing import component_of
from torch import nn

from profiling.components.component import Component
from profiling.components.trajectory import learn


@dataclass
class Kind:
    call: Callable[[Any, torch.Tensor], torch.Tensor]
    attributes: dict[str, Any]
    refused: str | None  # the beginning of the obstacle that a replay meets; None: it can follow the state
    moves: bool  # whether calls after the warm ones differ from each other


KINDS: dict[str, Kind] = {}


class Stateful(nn.Module):
    """Has the attributes of a kind; those that are functions or classes are called, to be its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.ones(8))
        for name, value in KINDS[kind].attributes.items():
            setattr(self, name, value() if callable(value) else value)

    def forward(self, x):
        return KINDS[self.kind].call(self, x)


def learned(module: nn.Module, make=None, **fields: Any) -> Component:
    """Return a component of the module of which is known what its calls change."""
    component = component_of(module, make, **fields)
    learn(component)
    return component


def kind(refused: str | None = None, *, moves: bool = True, **attributes: Any):
    def add(call):
        KINDS[call.__name__.replace("_", " ")] = Kind(call, attributes, refused, moves)
        return call

    return add


def zeros() -> torch.Tensor:
    return torch.zeros(4, 8)


# --- numbers: a replay keeps the value of its capture


@kind("`pos` is a Python number that each call changes (1 → 2 → 3 → 4 → …)", pos=0)
def number(m, x):
    m.pos += 1
    return x * m.pos


@kind("`by_name['pos']` is a Python number", by_name=lambda: {"pos": 0})
def number_in_a_dict(m, x):
    m.by_name["pos"] += 1
    return x * m.by_name["pos"]


@kind("`recent", recent=lambda: deque([0], maxlen=3))
def number_in_a_deque(m, x):
    m.recent.append(m.recent[-1] + 1)
    return x * m.recent[-1]


@kind("`pair[0]` is a Python number", pair=(0, 1))
def number_in_a_tuple(m, x):
    m.pair = (m.pair[0] + 1, 1)
    return x * m.pair[0]


@kind("`scalar` is a Python number", scalar=numpy.int64(0))
def number_of_numpy(m, x):
    m.scalar = m.scalar + 1
    return x * float(m.scalar)


class Slotted:
    __slots__ = ("__hidden", "steps", "unset")

    def __init__(self):
        self.__hidden, self.steps = zeros(), 0

    def add(self, x):
        self.__hidden = self.__hidden + x
        self.steps += 1
        return self.__hidden * self.steps


@kind("`slotted.steps` is a Python number", slotted=Slotted)
def slots(m, x):
    return m.slotted.add(x)


@kind("`flag` is a Python flag that each call changes (True → False → True → False → …)", flag=False)
def flag(m, x):
    m.flag = not m.flag
    return x if m.flag else -x


@kind("`seen`", seen=set)
def set_that_grows(m, x):
    m.seen.add(len(m.seen))
    return x * len(m.seen)


# --- tensors that are assigned anew: a replay reads that of its capture


@kind("`prev` is assigned anew by each call, and a later call reads it", prev=zeros)
def tensor_assigned(m, x):
    y, m.prev = x + m.prev, x * 2
    return y


@kind("`feats` is assigned anew", feats=lambda: [None, None])
def list_made_anew(m, x):
    y = x if m.feats[0] is None else x + m.feats[0]
    m.feats = [x * 2]
    return y


@kind("`cache` is assigned anew", cache=lambda: (zeros(), zeros()))
def tuple_of_tensors(m, x):
    m.cache = (m.cache[0] * 0.5 + x, x.clone())
    return m.cache[0]


@kind("`late` is assigned anew")
def attribute_that_appears_later(m, x):
    previous = vars(m).get("late")
    m.late = x * 2
    return x if previous is None else x + previous


@kind("`array` is assigned anew", array=lambda: numpy.zeros((4, 8), dtype="float32"))
def array_assigned(m, x):
    m.array = m.array * 0.5 + x.numpy()
    return torch.from_numpy(m.array.copy())


@kind("`history` is assigned anew", history=list)
def length_of_a_list(m, x):
    m.history.append(x.clone())
    return x * len(m.history)


@kind("`by_name['more']` is assigned anew", by_name=lambda: {"more": {}})
def length_of_a_dict(m, x):
    m.by_name["more"][len(m.by_name["more"])] = x.clone()
    return x * len(m.by_name["more"])


@kind(weights=lambda: dict.fromkeys(map(float, range(1, 6))))
def order_of_a_dict(m, x):
    weight = next(iter(m.weights))
    m.weights[weight] = m.weights.pop(weight)
    return x * weight


@kind(weights=lambda: dict.fromkeys(torch.full((8,), number) for number in range(1, 6)))
def order_of_a_dict_by_tensors(m, x):
    return order_of_a_dict(m, x)


# --- memory that calls write to: a replay does so, too


@kind(ring=lambda: nn.Buffer(torch.zeros(16, 8)), at=lambda: nn.Buffer(torch.zeros((), dtype=torch.int64)))
def buffer(m, x):
    m.ring.index_copy_(0, m.at[None] % 16, x[:1])
    m.at += 1
    return m.ring.sum(0) + x


@kind(array=lambda: numpy.zeros((4, 8), dtype="float32"))
def array_written(m, x):
    m.array += x.numpy()
    return torch.from_numpy(m.array.copy())


@kind(whole=lambda: [whole := torch.zeros(12), whole[:9], whole[4:]])
def views_of_one_storage(m, x):
    m.whole[1][:8] += x[0]
    m.whole[2][1] *= 2
    return m.whole[0] + 0


@kind(expanded=lambda: torch.zeros(1).expand(4))
def expanded_tensor(m, x):
    m.expanded[:1] += x[0, :1]
    return m.expanded + 0


@kind(part=None)
def view_of_a_parameter(m, x):
    if m.part is None:
        m.part = m.weight.detach()[:2]
    m.part += x[0, :2]
    return x * m.weight


@kind(count=lambda: torch.zeros(()))
def swapped_memory(m, x):
    m.count.data = torch.cat((m.count.reshape(-1), x[0, :1]))
    return m.count + 0


def around() -> SimpleNamespace:
    loop = SimpleNamespace(total=zeros())
    loop.itself = loop
    return loop


@kind(loop=around)
def cycle(m, x):
    m.loop.itself.total += x
    return m.loop.total + 0


@kind(allocated=None)
def lazy_memory(m, x):
    if m.allocated is None:
        m.allocated = SimpleNamespace(keys=torch.zeros(16, 4, 8), at=torch.zeros((), dtype=torch.int64), ready=True)
    m.allocated.keys[m.allocated.at] = x
    m.allocated.at += 1
    return m.allocated.keys.sum(0)


@kind(generator=None, python=lambda: random.Random(3), numpy=lambda: numpy.random.default_rng(3))
def generators(m, x):
    if m.generator is None:
        m.generator = torch.Generator()
    return x + torch.rand(4, 8, generator=m.generator) + m.python.random() + float(m.numpy.random())


# --- what no later call reads, or only the first calls change


@kind(moves=False, last=None)
def held_output(m, x):
    m.last = x * 2
    return m.last


@kind(moves=False, history=list)
def list_that_is_never_read(m, x):
    m.history.append(x + 1)
    return x + 1


@kind(moves=False, mask=None)
def lazy_mask(m, x):
    first, m.mask = m.mask is None, torch.tril(torch.ones(4, 4)) if m.mask is None else m.mask
    return m.mask @ x * (1 if first else 2)


@kind(moves=False, layer=lambda: nn.Linear(8, 8), installed=False)
def hook(m, x):
    """Register a hook in the first call, and remember that in a flag: as models of transformers do."""
    if not m.installed:
        m.layer.register_forward_hook(lambda module, args, output: output + 1)
        m.installed = True
    return m.layer(x)
