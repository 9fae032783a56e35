"""What calls change: modules that a replay cannot follow are refused by name, and all others are not."""

import random
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

import numpy
import pytest
import torch
from playing import component_of
from torch import nn

import profiling
from profiling.components.component import Component
from profiling.components.outputs import difference
from profiling.components.trajectory import learn, played
from profiling.errors import InputError


@dataclass
class Cursor:
    position: int = 0


class Streaming(nn.Module):
    """A module that counts, keeps or draws in one place, by its name."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.weight = kind, nn.Parameter(torch.ones(8))
        self.register_buffer("ring", torch.zeros(16, 8))
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))
        self.pos, self.numbers, self.cursor, self.by_name = 0, [0], Cursor(), {"pos": 0, "more": {}}
        self.recent, self.pair, self.scalar = deque([0], maxlen=3), (0, 1), numpy.int64(0)
        self.prev, self.feats, self.cache = torch.zeros(4, 8), [None, None], (torch.zeros(4, 8), torch.zeros(4, 8))
        self.history, self.flag, self.store, self.steps = [], False, SimpleNamespace(last=None), ()
        self.tail, self.array = deque([torch.zeros(4, 8)], maxlen=2), numpy.zeros((4, 8), dtype="float32")
        self.mask, self.generator, self.python = None, None, random.Random(0)
        self.layer, self.installed, self.last = nn.Linear(8, 8), False, None
        self.seen, self.statistics = [], 0

    def forward(self, x):
        return getattr(self, f"with_{self.kind.replace(' ', '_')}")(x)

    # --- what a replay cannot follow

    def with_number(self, x):
        self.pos += 1
        return x * self.pos

    def with_number_in_a_dict(self, x):
        self.by_name["pos"] += 1
        return x * self.by_name["pos"]

    def with_number_in_a_deque(self, x):
        self.recent.append(self.recent[-1] + 1)
        return x * self.recent[-1]

    def with_number_in_a_dataclass(self, x):
        self.cursor.position += 1
        return x * self.cursor.position

    def with_number_in_a_list(self, x):
        self.numbers[0] += 1
        return x * self.numbers[0]

    def with_number_in_a_tuple(self, x):
        self.pair = (self.pair[0] + 1, 1)
        return x * self.pair[0]

    def with_number_of_numpy(self, x):
        self.scalar = self.scalar + 1
        return x * float(self.scalar)

    def with_tuple_that_grows(self, x):
        self.steps = (*self.steps, 1)
        return x * len(self.steps)

    def with_flag(self, x):
        self.flag = not self.flag
        return x if self.flag else -x

    def with_tensor_assigned(self, x):
        y, self.prev = x + self.prev, x
        return y

    def with_list_of_tails(self, x):
        y = x if self.feats[0] is None else x + self.feats[0]
        self.feats[0] = x.clone()
        return y

    def with_tuple_of_tensors(self, x):
        self.cache = (self.cache[0] * 0.5 + x, x.clone())
        return self.cache[0]

    def with_list_made_anew(self, x):
        y = x if self.feats[0] is None else x + self.feats[0]
        self.feats = [x * 2]
        return y

    def with_deque_of_tensors(self, x):
        y = x + self.tail[0]
        self.tail.append(x.clone())
        return y

    def with_attribute_that_appears_later(self, x):
        previous = vars(self).get("late")
        self.late = x * 2
        return x if previous is None else x + previous

    def with_array_assigned(self, x):
        self.array = self.array * 0.5 + x.numpy()
        return torch.from_numpy(self.array.copy())

    def with_length_of_a_list(self, x):
        self.history.append(x)
        return x * len(self.history)

    def with_length_of_a_dict(self, x):
        self.by_name["more"][len(self.by_name["more"])] = x
        return x * len(self.by_name["more"])

    def with_residual_every_second_call(self, x):
        self.pos += 1
        if self.pos % 2:
            self.prev = x * 2
        return x + self.prev

    # --- what it can

    def with_nothing(self, x):
        return x * self.weight

    def with_held_output(self, x):
        self.last = x * 2
        return self.last

    def with_held_output_in_an_object(self, x):
        self.store.last = x * 2
        return x + 1

    def with_list_that_is_never_read(self, x):
        self.seen.append(x + 1)
        return x + 1

    def with_statistics(self, x):
        self.statistics += 1
        return x + 1

    def with_lazy_mask(self, x):
        if self.mask is None:
            self.mask = torch.tril(torch.ones(4, 4))
        return self.mask @ x

    def with_generator(self, x):
        if self.generator is None:
            self.generator = torch.Generator()
        return x + torch.rand(4, 8, generator=self.generator)

    def with_hook(self, x):
        if not self.installed:
            self.layer.register_forward_hook(lambda module, args, output: output + 1)
            self.installed = True
        return self.layer(x)

    def with_position_in_a_tensor(self, x):
        self.ring.index_copy_(0, self.at[None] % 16, x[:1])
        self.at += 1
        return self.ring.sum(0) + x


def learned(module: nn.Module, make=None, **fields) -> Component:
    component = component_of(module, make, **fields)
    with torch.inference_mode():
        learn(component)
    return component


REFUSED = {
    "number": "`pos` is a Python number that each call changes (1 → 2 → 3 → 4 → …)",
    "number in a dict": "`by_name['pos']` is a Python number",
    "number in a deque": "`recent",
    "number in a dataclass": "`cursor.position` is a Python number",
    "number in a list": "`numbers[0]` is a Python number",
    "number in a tuple": "`pair[0]` is a Python number",
    "number of numpy": "`scalar` is a Python number",
    "tuple that grows": "`steps`",
    "flag": "`flag` is a Python flag that each call changes (True → False → True → False → …)",
    "tensor assigned": "`prev` is assigned anew by each call, and a later call reads it",
    "list of tails": "`feats` is assigned anew",
    "list made anew": "`feats` is assigned anew",
    "attribute that appears later": "`late` is assigned anew",
    "tuple of tensors": "`cache` is assigned anew",
    "deque of tensors": "`tail` is assigned anew",
    "array assigned": "`array` is assigned anew",
    "length of a list": "`history` is assigned anew",
    "length of a dict": "`by_name['more']` is assigned anew",
    "residual every second call": "`pos` is a Python number",
}
ACCEPTED = [
    *("nothing", "held output", "held output in an object", "list that is never read", "lazy mask"),
    *("generator", "hook", "position in a tensor"),
]


def test_every_kind_is_tested():
    kinds = [name[5:].replace("_", " ") for name in vars(Streaming) if name.startswith("with_")]
    assert sorted(kinds) == sorted([*REFUSED, *ACCEPTED, "statistics"])


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_replay_cannot_follow_is_refused_by_name(kind):
    warm_calls = 0 if "later" in kind else None
    refusal = learned(Streaming(kind), warm_calls=warm_calls).refusal() or ""
    assert refusal.startswith("cannot follow the module's state: ")
    assert REFUSED[kind] in refusal


@pytest.mark.parametrize("kind", ACCEPTED)
def test_what_a_replay_can_follow_is_accepted(kind):
    assert learned(Streaming(kind)).refusal() is None


def test_an_ignored_counter_is_accepted_and_the_numbers_below_it():
    assert learned(Streaming("statistics"), ignore=("statistics",)).refusal() is None
    assert learned(Streaming("statistics"), ignore=("stat",)).refusal() is not None
    assert learned(Streaming("number in a dict"), ignore=("by_name",)).refusal() is None


def test_the_sequence_of_values_begins_before_the_first_call():
    effects = learned(Streaming("number"), warm_calls=0).kept.effects
    assert effects.numbers == {"pos": tuple(range(9))}
    assert effects.lines()[0].startswith("`pos` 0 → 1 → 2 → 3 → …: torch.compile may compile once a value")


class Writes(nn.Module):
    """Writes to all that it is given and has."""

    def __init__(self):
        super().__init__()
        self.weight, self.kept = nn.Parameter(torch.ones(8)), torch.zeros(4, 8)
        self.array, self.generator = numpy.zeros(4, dtype="float32"), torch.Generator()
        self.empty = nn.Parameter(torch.empty(0))
        self.quiet = torch.ones(3)

    def forward(self, x, cache, history):
        self.weight.mul_(1.5)
        self.kept.add_(x)
        self.quiet.copy_(self.quiet.clone())
        torch.empty(0).zero_()
        self.array += 1
        cache.add_(torch.rand(4, 8, generator=self.generator))
        history.append(x + cache)
        return x * self.weight, self.kept[0], len(history)


class KeepsInputs(nn.Module):
    """Keeps the input itself, or the cache that it writes to."""

    def __init__(self, *, reads):
        super().__init__()
        self.prev, self.cache, self.reads = torch.zeros(4, 8), None, reads

    def forward(self, x, cache):
        y, self.prev, self.cache = x + self.reads * self.prev, x, cache
        self.cache.add_(1)
        return y + self.cache


def cached(generator):
    return {"x": torch.randn(4, 8, generator=generator), "cache": torch.zeros(4, 8)}


def test_an_input_that_is_kept_and_read_is_named():
    """The inputs of the next call lie in its memory: `x + prev` would be `x + x`, in a prepared step, too."""
    effects = learned(KeepsInputs(reads=1), cached).kept.effects
    assert effects.held == ("prev",), "not the cache, which is state"
    assert "`prev` holds an input, and a later call reads it" in (effects.overwritten or "")
    assert effects.overwritten in effects.lines()
    effects = learned(KeepsInputs(reads=0), cached).kept.effects
    assert (effects.held, effects.unread, effects.overwritten) == (("prev",), ("prev",), None)
    with pytest.raises(InputError, match=r"`prev` holds an input.*Keep a copy"):
        profiling.prepare(KeepsInputs(reads=1), cached(torch.Generator()), variant="baseline")
    with profiling.prepare(KeepsInputs(reads=0), cached(torch.Generator()), variant="baseline") as step:
        assert torch.equal(step(x=torch.ones(4, 8), cache=torch.ones(4, 8)), torch.full((4, 8), 3.0))


def written(generator):
    return {"x": torch.randn(4, 8, generator=generator), "cache": torch.zeros(4, 8), "history": []}


def test_everything_that_is_written_to_is_listed_and_put_back():
    module = Writes()
    component = component_of(module, written)
    with torch.inference_mode():
        first = learn(component)
        effects = component.kept.effects
        assert set(effects.written) == {"kept", "array", "quiet"}, "one with the values that were there"
        assert (effects.inputs, effects.parameters) == (("inputs['cache']",), ("weight",))
        assert effects.generators == ("generator",)
        assert effects.assigned == ("inputs['history']",)
        assert effects.aliases == ("output 1 is kept",)
        text = "\n".join(effects.lines())
        assert "inputs that the call writes to (state: carried over from call to call): inputs['cache']" in text
        assert "weights that the call writes to: weight" in text
        component.reset()
        weight, cache = module.weight.clone(), component.inputs["cache"].clone()
        second = played(component, component.call, 8)
        for one, other in zip(first.log, second.log, strict=True):
            assert difference(one, other).error == 0
        assert second.state is not None
        assert difference(second.state, first.state or {}).error == 0
        component.reset()
        assert torch.equal(module.weight, weight)
        assert torch.equal(component.inputs["cache"], cache)


def test_an_input_that_warm_calls_left_equal_is_state_from_the_first_call_on():
    component = component_of(lambda x: x.clamp_(max=largest) * 2)
    largest = float(component.inputs["x"].max())
    with torch.inference_mode():
        first = learn(component)
        again = played(component, component.call, first.calls)
    assert component.kept.effects.inputs == ("inputs['x']",)
    assert component.kept.drawn() == []
    for one, other in zip(first.log, again.log, strict=True):
        assert difference(one, other).error == 0


class Flexible(nn.Module):
    """Calls FlexAttention, which refuses to run inside of a dispatch mode when it is compiled."""

    def __init__(self):
        super().__init__()
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        self.mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")
        self.attention, self.calls = flex_attention, torch.zeros(())

    def forward(self, x):
        self.calls += 1
        return self.attention(x, x, x, block_mask=self.mask)


def test_flex_attention_is_observed():
    component = learned(Flexible(), lambda generator: {"x": torch.randn(1, 2, 128, 16, generator=generator)})
    assert component.refusal() is None
    assert component.kept.effects.written == ("calls",)


class Unwatchable(nn.Module):
    """Cannot run under a dispatch mode, as some compiled code."""

    def __init__(self):
        super().__init__()
        self.prev = torch.zeros(4, 8)

    def forward(self, x):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("planted: inside a mode")
        y, self.prev = x + self.prev, x * 2
        return y


def test_what_cannot_be_watched_is_compared_only():
    component = learned(Unwatchable())
    assert component.place.calls == 8
    assert "`prev` is assigned anew" in (component.refusal() or "")
