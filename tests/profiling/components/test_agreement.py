"""Is an output right? Steps that go wrong in one place, in one call, or only in the state, and steps that are right."""

import functools
import itertools
import math

import pytest
import torch
from fixed_component import Net
from playing import component_of, normal, reference_of, verdict_of
from torch.nn import functional as F

from profiling.components.agreement import Rules, check, rounding_moves
from profiling.components.reference import eager_reference
from profiling.components.trajectory import learn, play


@pytest.fixture(autouse=True)
def _all_calls(monkeypatch):
    """A busy machine must not shorten the trajectories."""
    monkeypatch.setattr("profiling.components.trajectory.SECONDS", math.inf)


def stream():
    """Return a module with a ring of past inputs, and a running sum that its outputs do not show."""

    def forward(self, x):
        self.ring.index_copy_(0, self.at[None] % 16, x)
        self.hidden.add_(x[0])
        self.at += 1
        return x + self.ring.cumsum(0)[-1:], self.at + 0

    return Net(forward, ring=torch.zeros(16, 8), at=torch.tensor(0), hidden=torch.zeros(8))


def step_of(change):
    """Return the step whose output is `change(component, number of the call, eager output)`."""

    @functools.wraps(change)
    def made(component):
        numbers = itertools.count(1)
        return lambda: change(component, next(numbers), component.call())

    return made


def stale_buffer(component):
    first = []

    def run():
        x = component.inputs["x"]
        first[:] = first or [x.clone()]
        x.copy_(first[0])
        return component.call()

    return run


@step_of
def frozen_number(component, number, output):
    component.module.at.fill_(component.kept.warm_calls + 1)
    return output[0], component.module.at + 0


def output_of_the_call_before(component):
    before = []

    def run():
        before.append(component.call())
        return before[max(0, len(before) - 2)]

    return run


@step_of
def wrong_end_state(component, number, output):
    if number == 8:
        component.module.hidden.mul_(1.5)
    return output


WRONG = {
    stale_buffer: ("wrong from call 2 on: ", 2),
    frozen_number: ("wrong from call 2 on: 1 of the elements of output[1]", 2),
    output_of_the_call_before: ("wrong from call 2 on: ", 2),
    wrong_end_state: ("the state after 8 calls: relative L2 error 0.5 of state['hidden'] ", 8),
}


@pytest.mark.parametrize(
    ("wrong", "dtype"),
    [*((wrong, torch.bfloat16) for wrong in WRONG), (frozen_number, torch.float32)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_step_that_is_right_in_the_first_call_and_wrong_later(wrong, dtype):
    """The state of `output_of_the_call_before` ends right: only its outputs are late."""
    makes = normal(1, 8, dtype=dtype)
    component = component_of(stream().to(dtype), makes, dtype=dtype, warm_calls=1)
    component.kept.begin()
    exact = component_of(stream(), lambda generator: {"x": makes(generator)["x"].float()}, warm_calls=1)
    assert verdict_of(component, exact=exact).passed
    verdict = verdict_of(component, wrong, exact)
    reason, wrong_from = WRONG[wrong]
    assert verdict.reason is not None
    assert verdict.reason.startswith(reason), verdict.reason
    assert verdict.wrong_from == wrong_from


def picture(generator):
    rows = torch.linspace(0, 6, 512)
    waves = rows[:, None].sin() * rows[None].cos() + 0.3 * torch.randn(512, 512, generator=generator)
    return {"x": waves.expand(1, 3, 512, 512).clone()}


def tokens(generator):
    return {"x": torch.randn(4, 77, 64, generator=generator)}


def sound(generator):
    return {"x": torch.randn(1, 2, 48_000, generator=generator)}


def garbage(*place, size=1.0):
    def plant(output):
        output = output.clone()
        wrong = torch.randn(output[place].shape, generator=torch.Generator().manual_seed(5)) * size
        output[place] = wrong.to(output.dtype) + (output[place] if size < 1 else 0)
        return output

    return plant


ROWS, COLUMNS = slice(301, 305), slice(206, 210)
DAMAGE = {
    "a tile of a picture": (picture, garbage(0, slice(None), ROWS, COLUMNS, size=0.3), "the tile [288:304, 208:224]"),
    "a token": (tokens, garbage(slice(None), 40), "index 40 of dimension 1"),
    "a row of the batch that is that of another": (tokens, lambda y: y[[0, 1, 1, 3]], "the tile ["),
    "a block of sound": (sound, garbage(0, 0, slice(7680, 8448)), "the block [7680:8448]"),
    "a click": (sound, garbage(0, 1, slice(9000, 9040)), "the block [8448:9216]"),
}


@pytest.mark.parametrize(
    ("damage", "dtype"), [*((each, torch.bfloat16) for each in DAMAGE), ("a token", torch.float32)], ids=str
)
def test_damage_in_one_place_is_found_and_honest_rounding_is_not(damage, dtype):
    make, plant, place = DAMAGE[damage]

    def fused(x):  # in float32 inside, rounded once: other numbers than eager's
        return F.gelu(x.float()).to(x.dtype)

    exact = component_of(F.gelu, make)
    near = component_of(F.gelu, lambda g: {"x": make(g)["x"].to(dtype)}, dtype=dtype)
    for each in (exact, near):
        each.place.calls = 2
    reference = reference_of(near, exact)

    def verdict(function):
        run = lambda: function(near.inputs["x"])  # noqa: E731
        return check(near, run, reference, Rules())[0]

    assert verdict(fused).passed
    wrong = verdict(lambda x: plant(fused(x)))
    assert wrong.wrong_from == 1
    assert "is off by" in (wrong.reason or "") or "relative L2 error" in (wrong.reason or "")
    assert place in wrong.leaves[0].error.place
    if "tile" in damage:
        assert wrong.leaves[0].error.error < 4 * torch.finfo(torch.bfloat16).eps / 2, "as a whole it is little"


def test_each_output_may_be_twice_as_far_as_eager_and_of_few_numbers_a_little_more():
    """Eager errs by 30% in one output of 32 numbers: that allows nothing in another."""
    exact = component_of(lambda x: {"picture": x * 2, "rough": x})
    near = component_of(lambda x: {"picture": x * 2, "rough": x * 1.3})
    most = 2 * 0.3 * (1 + 4 / math.sqrt(32))
    for picture, error, says in (
        (2, 0.99 * most, None),
        (2, 1.01 * most, f"relative L2 error {1.01 * most:.2g} of output['rough']"),
        (3, 0.0, "relative L2 error 0.5 of output['picture']"),
    ):
        step = lambda c, p=picture, e=error: lambda: {"picture": c.inputs["x"] * p, "rough": c.inputs["x"] * (1 + e)}  # noqa: E731
        verdict = verdict_of(near, step, exact)
        assert says in (verdict.reason or "") if says else verdict.passed


def growing(first, by):
    """Return a component that keeps an error: off by `first` in call 1, and `by` times as far in each later call."""

    def forward(self, x):
        output = x * (1 + self.off)
        self.off.mul_(by)
        return output

    return component_of(Net(forward, off=torch.tensor(first)), warm_calls=0)


@pytest.mark.parametrize(("factor", "judged"), [(2.0, 4), (4.0, 3)])
def test_calls_before_eager_itself_is_too_far_are_judged(factor, judged):
    """Eager's error is 0.04, 0.08, 0.16, 0.32, 0.64: from 1 / factor on any output would pass."""
    exact, near = growing(0.0, 2.0), growing(0.04, 2.0)
    passed = verdict_of(near, exact=exact, rules=Rules(factor=factor))
    assert (passed.passed, passed.calls) == (True, judged)
    wrong = verdict_of(near, lambda c: lambda: c.call() * 1.5, exact, Rules(factor=factor))
    assert not wrong.passed


def test_a_recipe_s_own_tolerance_grows_with_eager_s_error_and_never_allows_an_output_of_zeros():
    """Eager is off by 0.01 to 0.08 in four calls; a quantised step of tolerance 0.05 by five times as much.

    Where eager's error grows from 0.001 to 0.4, 0.05 times that ratio would be 20.
    """

    def off(times):
        return step_of(lambda c, number, _: c.inputs["x"] * (1 + times * 0.01 * 2 ** (number - 1)))

    exact, near, own = growing(0.0, 2.0), growing(0.01, 2.0), Rules(tolerance=0.05)
    near.place.calls = 4
    assert verdict_of(near, off(4.9), exact, own).passed
    wrong = verdict_of(near, off(5.1), exact, own)
    assert wrong.wrong_from == 1
    assert "allowed 0.05" in (wrong.reason or "")
    exact, near = growing(0.0, 2.4), growing(0.001, 2.4)
    zeros_from_call_4 = step_of(lambda component, number, output: output * (number < 4))
    assert verdict_of(near, exact=exact, rules=own).calls == 4
    assert not verdict_of(near, zeros_from_call_4, exact, own).passed


def logistic(self, x):
    """A chaotic map: rounding errors double in each call."""
    for _ in range(6):
        self.state.copy_(3.99 * self.state * (1 - self.state))
    return self.state + 0 * x[0, 0]


def reordered(component):
    """Return a step that computes the same with other roundings."""

    def run():
        state = component.module.state
        for _ in range(6):
            state.copy_(3.99 * state - 3.99 * state * state)
        return state + 0

    return run


def test_in_float32_calls_before_rounding_decides_are_judged():
    component = component_of(Net(logistic, state=torch.linspace(0.1, 0.9, 64)))
    verdict = verdict_of(component, reordered)
    assert verdict.passed, verdict.reason
    assert 1 <= verdict.calls < 8
    assert not verdict_of(component, lambda c: lambda: reordered(c)() * 1.5).passed


@pytest.mark.parametrize(("dtype", "roundings"), [(torch.float32, 8), (torch.bfloat16, 1)])
def test_a_rounding_error_is_as_large_as_those_of_sums(dtype, roundings):
    """Uniform between -n and n roundings of each number: the RMS is n / sqrt(3), of 16 bits rounded once more."""
    component = component_of(
        lambda x: x * 2, lambda generator: {"x": torch.randn(4, 5000, generator=generator).to(dtype)}, dtype=dtype
    )
    for call in rounding_moves(component):
        ((whole, *_),) = (each for path, each in call.items() if path[0] == "output")
        close = 0.03 if roundings > 1 else 0.3
        assert whole / torch.finfo(dtype).eps == pytest.approx(roundings / 3**0.5, rel=close)


def test_further_wrong_outputs_are_counted():
    wrong = step_of(lambda component, number, output: tuple(each + 1 for each in output))
    verdict = verdict_of(component_of(lambda x: (x + 1, x + 2, x + 3)), wrong)
    assert (verdict.reason or "").endswith("; 2 more outputs are wrong")


def test_nan_is_called_nan():
    """In its second call, so that all else is right; and where rounding alone would make it."""
    broken = step_of(lambda component, number, output: output * (math.nan if number == 2 else 1))
    for function in (lambda x: x + 1, lambda x: (x / x.abs()).acos()):
        verdict = verdict_of(component_of(function), broken)
        assert verdict.wrong_from == 2
        assert "output (float32 [4, 8] on cpu) has NaN" in (verdict.reason or "")
        assert "rounding" not in (verdict.reason or "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("filler", [1.0, -math.inf])
def test_an_input_that_eager_leaves_alone_is_compared_bit_by_bit(dtype, filler):
    def make(generator):
        x = torch.randn(4, 8, generator=generator).to(dtype)
        x[0, 0] = filler
        return {"x": x}

    @step_of
    def writes(component, number, output):
        component.inputs["x"][1].mul_(1.00001 if dtype == torch.float32 else 1.01)
        return output

    def component():
        return component_of(lambda x: x[1:] * 2, make, dtype=dtype)

    assert verdict_of(component()).passed
    assert "inputs['x']" in (verdict_of(component(), writes).reason or "")


def walk():
    """Return a component that is a random walk, whose state is random, too."""
    return component_of(Net(lambda self, x: x + self.at.add_(torch.randn(8) * 0.03), at=torch.ones(8)))


def test_state_that_is_random_may_differ_as_two_eager_trajectories_do():
    def other(component):
        generator = torch.Generator().manual_seed(3)

        def run():
            component.module.at.add_(torch.randn(8, generator=generator) * 0.03)
            return component.inputs["x"] + component.module.at

        return run

    @step_of
    def other_state(component, number, output):
        if number == 8:
            component.module.at.mul_(3)
        return output

    assert verdict_of(walk(), other).passed
    wrong = verdict_of(walk(), other_state)
    assert (wrong.reason or "").startswith("the state after 8 calls: ")


def test_a_trajectory_ends_before_a_cache_is_full_and_its_state_is_compared():
    def forward(self, x):
        if int(self.at) == 6:
            raise IndexError("the cache is full")
        self.keys[self.at] = x[0]
        self.at += 1
        return self.keys.sum(0)

    component = component_of(Net(forward, keys=torch.zeros(6, 8), at=torch.tensor(0)))
    assert eager_reference(component).calls == 5, "and a warm call"
    assert verdict_of(component).calls == 5
    wrong = verdict_of(component, lambda c: lambda: (c.call(), c.module.keys[5:].add_(1))[0])
    assert not wrong.passed


def test_positions_advance_from_call_to_call_and_begin_anew():
    def forward(self, x, position):
        if self.cache is None:
            self.cache = torch.zeros(32, 8)
        self.cache[position] = x[0]
        return self.cache.cumsum(0)[-1], position + 0

    def make(generator):
        return {"x": torch.randn(1, 8, generator=generator), "position": torch.tensor([3])}

    component = component_of(Net(forward, cache=None), make, advances={"position": 1})

    def seen():
        return [int(each["output", list(each)[2][1]].numbers) for each in play(component, component.call, 8)]

    with torch.inference_mode():
        learn(component)
        warm = component.kept.warm_calls
        assert warm == 2, "the first made the cache"
        assert seen() == seen() == list(range(3 + warm, 11 + warm))
    assert component.kept.effects.inputs == ()
    assert verdict_of(component).passed


def test_a_module_that_is_reset_begins_each_trajectory_in_the_same_state_and_one_that_is_not_does_not():
    module = Net(lambda self, x: self.total.add_(x[0]) + 0, total=torch.zeros(8))
    module.reset = lambda: module.total.zero_()
    component = component_of(module, policy="reset", warm_calls=3)
    assert verdict_of(component).passed
    assert not verdict_of(component, lambda c: lambda: (c.call(), c.module.total.add_(1))[0]).passed
    component = component_of(module, policy="none")  # its state is its own business: its outputs are judged
    reference = eager_reference(component)
    assert reference.eager.state is None
    assert component.module.total.abs().sum() > 0


CALLS_OF_ALL = [0]


def counts_in_a_global(x):
    """Multiply by a number that a global counts, with a period of three calls: nothing puts it back."""
    CALLS_OF_ALL[0] += 1
    return x * (1 + CALLS_OF_ALL[0] % 3)


@pytest.mark.parametrize("before", range(3))
def test_a_step_that_ignores_a_global_is_never_right(before):
    CALLS_OF_ALL[0] = before
    replay = lambda component: lambda: component.inputs["x"] * (1 + (2 + before) % 3)  # noqa: E731
    assert not verdict_of(component_of(counts_in_a_global), replay).passed
