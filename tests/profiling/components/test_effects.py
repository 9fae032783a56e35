"""What calls change beside the kinds of kinds_of_state.py: weights, inputs, what is written with equal values."""

from types import SimpleNamespace

import numpy
import pytest
import torch
from fixed_component import Net
from kinds_of_state import Stateful, learned
from playing import component_of
from torch import nn

import profiling
from profiling.components.effects import Effects
from profiling.components.outputs import difference
from profiling.components.trajectory import learn, played
from profiling.errors import InputError


def test_an_ignored_counter_is_accepted_and_the_numbers_below_it():
    assert learned(Stateful("number"), ignore=("pos",)).refusal() is None
    with pytest.raises(InputError, match=r"has nothing at 'po'\. Did you mean 'pos'"):
        learned(Stateful("number"), ignore=("po",))
    assert learned(Stateful("number in a dict"), ignore=("by_name",)).refusal() is None


def test_the_sequence_of_values_begins_before_the_first_call_and_a_line_names_eight_places_at_most():
    effects = learned(Stateful("number"), warm_calls=0).kept.effects
    assert effects.numbers == {"pos": tuple(range(9))}
    assert effects.lines()[0].startswith("`pos` 0 → 1 → 2 → 3 → …: torch.compile may compile once a value")
    for number, more in ((8, ""), (10, " and 2 more")):
        places = tuple(f"cache.{place}" for place in range(number))
        assert Effects(written=places).lines() == [f"written in place: {', '.join(places[:8])}{more}"]


def keeps_inputs(reads):
    """Return a module that keeps the input itself, and the cache that it writes to."""

    def forward(self, x, cache):
        y, self.prev, self.cache = x + reads * self.prev, x, cache
        self.cache.add_(1)
        return y + self.cache

    return Net(forward, prev=torch.zeros(4, 8), cache=None)


def cached(generator):
    return {"x": torch.randn(4, 8, generator=generator), "cache": torch.zeros(4, 8)}


def test_an_input_that_is_kept_and_read_is_named():
    """The inputs of the next call lie in its memory: `x + prev` would be `x + x`, in a prepared step, too."""
    with pytest.raises(InputError, match=r"`prev` holds an input, and a later call reads it.*Keep a copy"):
        learned(keeps_inputs(1), cached)  # not the cache, which is state
    effects = learned(keeps_inputs(0), cached).kept.effects
    assert (effects.held, effects.unread, effects.overwritten) == (("prev",), ("prev",), None)
    with pytest.raises(InputError, match=r"`prev` holds an input.*Keep a copy"):
        profiling.prepare(keeps_inputs(1), cached(torch.Generator()), variant="baseline")
    with profiling.prepare(keeps_inputs(0), cached(torch.Generator()), variant="baseline") as step:
        assert torch.equal(step(x=torch.ones(4, 8), cache=torch.ones(4, 8)), torch.full((4, 8), 3.0))


def test_everything_that_is_written_to_is_listed_and_put_back():
    def forward(self, x, cache, history, store):
        self.weight.mul_(1.5)
        self.kept.add_(x)
        self.quiet.copy_(self.quiet.clone())
        torch.empty(0).zero_()
        self.array += 1
        cache.add_(torch.rand(4, 8, generator=self.generator))
        history.append(x + cache)
        store.items.append(x + 0)
        return x * self.weight, self.kept[0], len(history), sum(store.items)

    parts = {"weight": nn.Parameter(torch.ones(8)), "empty": nn.Parameter(torch.empty(0)), "kept": torch.zeros(4, 8)}
    parts |= {"array": numpy.zeros(4, dtype="float32"), "generator": torch.Generator(), "quiet": torch.ones(3)}
    module = Net(forward, **parts)
    objects = lambda: {"history": [], "store": SimpleNamespace(items=[])}  # noqa: E731
    component = component_of(module, lambda generator: {**cached(generator), **objects()})
    with torch.inference_mode():
        first = learn(component)
        effects = component.kept.effects
        assert set(effects.written) == {"kept", "array", "quiet"}, "one with the values that were there"
        assert (effects.inputs, effects.parameters) == (("inputs['cache']",), ("weight",))
        assert effects.generators == ("generator",)
        assert set(effects.assigned) == {"inputs['history']", "inputs['store'].items"}
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
        assert not torch.equal(module.weight, weight)
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
    assert component.kept.drawn() == {}
    for one, other in zip(first.log, again.log, strict=True):
        assert difference(one, other).error == 0


def test_flex_attention_is_observed():
    """It refuses to run inside of a dispatch mode when it is compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def forward(self, x):
        self.calls += 1
        return flex_attention(x, x, x, block_mask=self.mask)

    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cpu")
    module = Net(forward, mask=mask, calls=torch.zeros(()))
    component = learned(module, lambda generator: {"x": torch.randn(1, 2, 128, 16, generator=generator)})
    assert component.refusal() is None
    assert component.kept.effects.written == ("calls",)


def test_what_cannot_be_watched_is_compared_only():
    """As some compiled code, which cannot run under a dispatch mode."""

    def forward(self, x):
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("planted: inside a mode")
        y, self.prev = x + self.prev, x * 2
        return y

    component = learned(Net(forward, prev=torch.zeros(4, 8)))
    assert component.place.calls == 8
    assert "`prev` is assigned anew" in (component.refusal() or "")
