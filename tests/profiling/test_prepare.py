"""From Python: a step that an application calls; it follows inputs and state, or is refused."""

import copy
import gc
import importlib
import math
import threading
import weakref
from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import torch
from as_user import OUTSIDE
from fixed_component import Net as Planted
from test_api import QUICK, Net, inputs
from torch import nn

import profiling
from profiling.errors import InputError, WrongOutputError
from profiling.trace.counters import snapshot
from profiling.variants.inductor import Inductor
from profiling.variants.recipe import Compiler, Outcome, Recipe
from profiling.variants.variant import Step, Variant


def shared(self, x):
    """Return the input, a view of it, and a buffer that each call overwrites."""
    self.out.copy_(x)
    return x, {"view": x[:2]}, self.out


def test_a_prepared_step_runs_on_new_inputs_and_leaves_the_module_in_its_mode():
    module = Net()
    module.body[2].eval()
    with profiling.prepare(module, inputs(), variant="baseline") as step:
        for seed in (1, 2):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))
            with torch.inference_mode():
                expected = module(x)["y"]
            assert torch.equal(step(x=x)["y"], expected)
            assert torch.equal(step(x)["parts"][0], expected[:, :2])
        assert not any(part.training for part in module.modules())
    assert [part.training for part in module.body] == [True, True, False]
    for use in (lambda: step(x=x), step.reset):
        with pytest.raises(InputError, match="this step is closed"):
            use()


def test_outputs_stay_unless_they_are_not_cloned():
    module = Planted(shared, out=torch.zeros(4, 8))
    step = profiling.prepare(module, inputs(), variant=Recipe())
    first, second = step(x=torch.ones(4, 8)), step(x=torch.zeros(4, 8))
    for one, zero in ((first[0], second[0]), (first[1]["view"], second[1]["view"]), (first[2], second[2])):
        assert (one.min(), zero.max(), one.is_inference()) == (1, 0, False)
    raw = profiling.prepare(module, inputs(), variant="baseline", clone=False)
    assert raw(x=torch.ones(4, 8))[0].data_ptr() == raw(x=torch.zeros(4, 8))[0].data_ptr()


class TakesATuple(nn.LSTM):
    """Refuses a list in place of its state, takes a dict, and a flag."""

    def forward(self, x, state, options, *, double=False):
        assert type(state) is tuple
        output, state = super().forward(x, state)
        return (output * options["gain"][0] if double else output), state


def test_a_wrong_call_of_a_prepared_step_is_one_line():
    torch.manual_seed(0)
    module = TakesATuple(4, 4)
    state, x = tuple(torch.randn(2, 1, 1, 4)), torch.randn(3, 1, 4)
    given = {"x": x, "state": state, "options": {"gain": [torch.tensor(2.0)]}, "double": True}
    wrong = {
        r"step: x is float32 \[5, 1, 4\], it was prepared for float32 \[3, 1, 4\]": {"x": torch.ones(5, 1, 4)},
        "step: x is float64": {"x": x.double()},
        r"step\(.*\): more \(2\.0\) is new\. It was prepared with x, state, ": {"more": 2.0},
        "double is False, it was prepared for True": {"double": False},
        r"state\.1 \(float32 \[1, 1, 4\]\) is missing. It was prepared with x, ": {"state": state[:1]},
        r"options\['gain'\]\[0\] is float32 \[3\]": {"options": {"gain": [torch.zeros(3)]}},
        r"options\.gain\.0 is 2\.0, and was float32 \[\]": {"options": {"gain": [2.0]}},
    }
    with profiling.prepare(module, given, variant="baseline") as step:
        fresh = {**given, "state": tuple(torch.randn(2, 1, 1, 4))}
        torch.testing.assert_close(step(**fresh), module(**fresh))
        for says, change in wrong.items():
            with pytest.raises(InputError, match=says):
                step(**{**given, **change})
        with pytest.raises(InputError, match=r"step\(\): x .* is missing"):
            step()
        for args, named in ((range(5), {}), ((x,), {"x": x})):
            with pytest.raises(InputError, match=r"do not fit forward\(x.* by its name: step\(x=\.\.\.,"):
                step(*args, **named)
    (note,) = profiling.profile(module, given, ["baseline"], **QUICK).records[0].notes
    assert note.startswith("parity was checked with the same options['gain'][0] that")


def remembers(self, x, memory, at, states):
    """Write a row into a memory among the inputs, and update a state among them."""
    states[0].mul_(0.5).add_(x[0])
    memory.index_copy_(0, at, self.key(x))
    return memory.mean(0) + states[0]


def test_inputs_that_a_call_writes_to_are_written_to_by_a_prepared_step():
    """Of zeros the written row is zeros, too: preparing sees that the memory is written to, but no other values."""
    torch.manual_seed(0)
    module = Planted(remembers, key=nn.Linear(4, 4, bias=False)).eval()
    given = {"x": torch.zeros(1, 4), "memory": torch.zeros(8, 4), "at": torch.tensor([0]), "states": [torch.zeros(4)]}
    mine, theirs = copy.deepcopy(given), copy.deepcopy(given)
    with profiling.prepare(module, given, variant="baseline") as step, torch.no_grad():
        for place in range(3):
            fresh = {"x": torch.randn(1, 4), "at": torch.tensor([place])}
            torch.testing.assert_close(step(**{**mine, **fresh}), module(**{**theirs, **fresh}))
        others = [{"states": [torch.zeros(4)], **fresh} for _ in range(2)]  # another session's
        torch.testing.assert_close(step(**{**mine, **others[0]}), module(**{**theirs, **others[1]}))
    torch.testing.assert_close((mine, others[0]), (theirs, others[1]))
    assert not given["memory"].any(), "preparing writes to copies"
    assert not given["states"][0].any()


def caches():
    """Return a module that makes a table in its first call, and adds to a cache in each."""

    def forward(self, x):
        if self.table is None:
            self.table, self.made = torch.eye(8, dtype=x.dtype), self.made + 1
        self.cache.add_(x.mean() * self.table)
        return self.layer(x) @ self.table + self.cache[0]

    return Planted(forward, layer=nn.Linear(8, 8), table=None, made=0, cache=torch.zeros(8, 8))


def test_a_prepared_step_is_the_one_that_is_measured_also_where_the_first_call_makes_state():
    (record,) = profiling.profile(caches(), inputs(), ["compile"], **QUICK).records
    assert record.status == "ok"
    module, given = caches(), inputs()
    torch.manual_seed(5)
    random_state = torch.random.get_rng_state()
    before = snapshot()
    with profiling.prepare(module, given, "compile") as step:
        assert snapshot().since(before).graphs == record.prepare.graphs
        assert (module.made, module.cache.abs().max().item()) == (0, 0.0), "values are put back"
        assert torch.equal(torch.random.get_rng_state(), random_state)
        table, before = module.table, snapshot()
        assert table is not None, "what the first calls made stays"
        outputs = [step(**given) for _ in range(3)]
        assert snapshot().since(before).graphs == 0
        assert module.table is table
        fresh = caches()
        fresh.load_state_dict(module.state_dict() | {"cache": torch.zeros(8, 8)})
        for output in outputs:
            torch.testing.assert_close(output, fresh(**given))


def streams(self, x):
    """Count calls in a number and a parameter, and add inputs up in a buffer that was there, and in a new one."""
    if self.made is None:
        self.made = x.new_zeros(4)
    self.pos += 1
    self.calls += 1
    self.total += x.mean(0)
    self.made += x.mean(0)
    return self.layer(x) + self.total + self.made + self.pos + self.calls


def test_a_session_of_a_prepared_step():
    torch.manual_seed(0)
    kept = {"pos": 0, "made": None, "total": torch.zeros(4), "calls": nn.Parameter(torch.zeros(1), requires_grad=False)}
    module, x = Planted(streams, layer=nn.Linear(4, 4), **kept), torch.randn(2, 4)
    other = copy.deepcopy(module)
    state = lambda: (module.pos, module.calls.item(), module.total.tolist(), module.made.tolist())  # noqa: E731
    with torch.inference_mode():
        module(x=x), other(x=x)
    begun = state()
    with profiling.prepare(module, {"x": x}, variant="baseline") as step, torch.inference_mode():
        assert state() == begun
        expected = [other(x=x) for _ in range(3)]
        for _ in range(2):
            torch.testing.assert_close([step(x=x) for _ in range(3)], expected)
            assert module.pos == 4
            step.reset()
            assert state() == begun
        step(x=x)
    assert module.pos == 2, "closing leaves the session where it is"


def test_a_step_that_is_wrong_is_refused():
    """tests/profiling/components/test_agreement.py has the ways of being wrong, a global that a replay repeats too."""
    module = Planted(lambda self, x: self.layer(x), layer=nn.Linear(4, 4))
    doubled = Recipe(transforms=[lambda module: Planted(lambda self, x: 2 * self.module(x=x), module=module)])
    with pytest.raises(WrongOutputError, match="the prepared step is refused: relative L2 error 1 of output"):
        profiling.prepare(module, {"x": torch.ones(2, 4)}, doubled)


def test_a_first_value_that_is_not_zero_is_refused():
    def forward(self, x):
        if self.largest is None:
            self.largest = torch.full((2, 4), -100.0)
        self.largest.copy_(torch.maximum(self.largest, self.layer(x)))
        return self.largest.clone()

    module = Planted(forward, layer=nn.Linear(4, 4), largest=None)
    nn.init.constant_(module.layer.bias, -9.0)  # its outputs are below 0
    with pytest.raises(WrongOutputError, match=r"`largest` is made in the first call.*register_buffer"):
        profiling.prepare(module, {"x": torch.ones(2, 4)}, variant="baseline")


def grows(*, copies):
    """Return a module that keeps its inputs in a list of rows, the first one perhaps without a copy."""

    def forward(self, x):
        new = x.clone() if copies else x
        self.rows = new if self.rows is None else torch.cat((self.rows, new))
        return self.layer(self.rows.mean(0, keepdim=True))

    return Planted(forward, layer=nn.Linear(4, 4), rows=None)


@pytest.mark.parametrize("variant", ["baseline", "compile"])
def test_a_first_call_that_keeps_its_input_itself_is_refused(variant):
    with pytest.raises(WrongOutputError, match=r"from a fresh state, call 2 .*x\.clone\(\)"):
        profiling.prepare(grows(copies=False), {"x": torch.randn(1, 4)}, variant=variant)


def test_what_the_first_call_computes_from_its_input_is_no_state_to_keep():
    def forward(self, x):
        self.anchor = x.clone() if self.anchor is None else self.anchor
        return x - self.anchor + x.mean()

    with pytest.raises(WrongOutputError, match=r"from a fresh state, call 1 .*make that state in __init__"):
        profiling.prepare(Planted(forward, anchor=None), {"x": torch.randn(1, 4)}, variant="baseline")


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-2])
def test_noise_hides_no_step_that_leaves_out_what_the_first_call_does(noise):
    def later(self, x):
        return self.layer(x) + self.mean + noise * torch.randn(4)

    def first(self, x):
        if self.is_new:
            self.is_new = False
            self.mean.copy_(50 * x.mean())
        return later(self, x)

    module = Planted(first, layer=nn.Linear(4, 4), is_new=True, mean=torch.zeros(()))
    replaced = Recipe(transforms=[lambda module: Planted(lambda self, x: later(self.module, x), module=module)])
    with pytest.raises(WrongOutputError, match="from a fresh state, call 1 "):
        profiling.prepare(module, {"x": torch.randn(1, 4)}, variant=replaced)


def first_call(first):
    """Return a module that does something else in the first call of a session."""

    def forward(self, x):
        if self.is_new:
            self.is_new = False
            if first == "kept":  # by a buffer that only this call writes to
                self.given.copy_(x)
            elif first == "nan":
                return x * math.nan
            elif first == "random":
                return x + torch.randn_like(x)
        return self.layer(x) + self.given

    return Planted(forward, layer=nn.Linear(4, 4), is_new=True, given=torch.zeros(1, 4))


def sums(self, x, state):
    """Keep a sum in a container that is an input."""
    state["sum"] = state.get("sum", 0) + x
    return state["sum"] * 2


class AssignsAnew(nn.Module):
    """Keeps state in a container that each call replaces, changes and replaces by a copy, or takes entries from."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.rows, self.counts, self.state = kind, [], {"n": 0}, None
        self.latest = OrderedDict()

    def forward(self, x):
        if self.kind == "dict":
            self.state = {"sum": x * 1 if self.state is None else self.state["sum"] + x}
            return self.state["sum"] * 2
        if self.kind == "number in a dict":
            self.state = {"mean": x.mean(0), "n": self.state["n"] + 1 if self.state else 0}
            return x + self.state["n"]
        if self.kind == "copied list":
            self.rows.append(x * 1)
            self.rows = self.rows[-3:]
            return sum(self.rows)
        if self.kind == "latest of a dict":
            self.latest[len(self.rows)] = x * 1
            self.rows.append(None)
            if len(self.latest) > 2:
                self.latest.popitem(last=False)
            return sum(self.latest.values())
        self.counts["n"] += 1
        self.counts = dict(self.counts)
        return x * self.counts["n"]


SESSIONS = {
    **{first: (partial(first_call, first), {}) for first in ("kept", "nan", "random")},
    "input": (partial(Planted, sums), {"state": {}}),
    **{kind: (partial(AssignsAnew, kind), {}) for kind in ("dict", "number in a dict", "copied list", "copied dict")},
    "latest of a dict": (partial(AssignsAnew, "latest of a dict"), {}),
    "rows": (partial(grows, copies=True), {}),
}


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *((name, "baseline") for name in SESSIONS),
        *((name, "compile") for name in SESSIONS if name != "number in a dict"),  # each number is compiled anew
    ],
)
def test_sessions_of_a_step_are_those_of_a_module_that_does_something_else_in_their_first_call(name, variant):
    make, inputs = SESSIONS[name]
    module, alone = make(), make()
    alone.load_state_dict(module.state_dict())
    fresh = copy.deepcopy(alone)
    with profiling.prepare(module, {"x": torch.randn(1, 4), **inputs}, variant=variant) as step, torch.no_grad():
        for _ in range(2):
            alone, kept = copy.deepcopy(fresh), copy.deepcopy(inputs)
            for call in range(4):
                x = torch.randn(1, 4)
                output, expected = step(x=x, **inputs), alone(x=x, **kept)
                if call or name != "random":
                    torch.testing.assert_close(output, expected, equal_nan=True)
            step.reset()


LATEST = {}


def kept_in_a_global(self, x):
    before = LATEST.get("x", torch.zeros_like(x))
    LATEST["x"] = x.clone()
    return x + before


def test_state_in_a_global_is_refused():
    LATEST.clear()
    with pytest.raises(WrongOutputError, match=r"the module's own call 1, made twice .* a global variable"):
        profiling.prepare(Planted(kept_in_a_global), {"x": torch.randn(2, 4)}, variant="baseline")


def test_of_random_outputs_a_compiled_step_is_handed_out_with_a_warning():
    noise, given = Planted(lambda self, x: torch.randn_like(x)), {"x": torch.ones(2, 4)}
    with (
        pytest.warns(UserWarning, match=r"undecided: .*fallback_random"),
        profiling.prepare(noise, given, variant="compile") as step,
    ):
        assert step(**given).shape == (2, 4)


def test_a_second_thread_is_refused():
    inside, go_on, given = threading.Event(), threading.Event(), {"x": torch.ones(2)}

    def waits(self, x):
        inside.set()
        go_on.wait(20)
        return x * 2

    go_on.set()
    with profiling.prepare(Planted(waits), given, variant="baseline") as step:
        inside.clear()
        go_on.clear()
        first = threading.Thread(target=step, kwargs=given)
        first.start()
        inside.wait(20)
        with pytest.raises(RuntimeError, match=r"another thread is in a call of this step"):
            step(**given)
        go_on.set()
        first.join()
        assert step(**given).tolist() == [2, 2]


@dataclass(frozen=True)
class Replayed(Compiler):
    """Stands for what runs none of the module's Python code."""

    runs_no_python: ClassVar[bool] = True

    def compile(self, module, examples, folder, written):
        return Outcome(lambda x: module.layer(x), changed=1)


def counts_calls(self, x):
    """Count calls for statistics."""
    self.calls += 1
    return self.layer(x)


def test_a_counter_that_outputs_do_not_depend_on_is_allowed():
    given, recipe = {"x": torch.ones(2, 4)}, Recipe(compiler=Replayed())
    module = Planted(counts_calls, layer=nn.Linear(4, 4), calls=0)
    refusal = r"Replayed cannot follow the module's state: `calls` is a Python number that each call changes \(\d → \d"
    with pytest.raises(InputError, match=refusal):
        profiling.prepare(module, given, recipe)
    profiling.prepare(module, given, recipe, allow=["calls"]).close()
    for allow, status in (((), "skipped"), (["calls"], "ok")):
        both = profiling.profile(module, given, {"baseline": Recipe(), "mine": recipe}, allow=allow, **QUICK)
        assert {record.variant: record.status for record in both.records} == {"baseline": "ok", "mine": status}


def test_the_limit_of_recompiles_names_the_number_and_its_line(monkeypatch):
    monkeypatch.syspath_prepend(str(OUTSIDE))
    module = importlib.import_module("stateful_nets").Position()
    x = torch.ones(2, 8)
    with pytest.warns(UserWarning, match=r"torch\.compile recompiles in each call: self\.pos == \d"):
        step = profiling.prepare(module, {"x": x}, variant="compile")
    says = r"self\.pos == \d+ no longer holds at tests/data/outside/stateful_nets\.py:\d"
    with step, torch._dynamo.config.patch(recompile_limit=11), pytest.raises(RuntimeError, match=says):
        [step(x) for _ in range(16)]


def test_what_cannot_be_prepared_is_one_line():
    with pytest.raises(InputError, match=r"variant='compile\+cuda_graph' cannot run here: CUDA graphs need a CUDA"):
        profiling.prepare(Net(), inputs())
    module = Net()
    with pytest.raises(InputError, match=r"Net\.forward raised RuntimeError: mat1 and mat2 .*x float32 \[4, 9\]"):
        profiling.prepare(module, {"x": torch.ones(4, 9)}, variant="baseline")
    assert (module.training, module.calls.item()) == (True, 0), "as it was before the call that failed"
    with pytest.raises(InputError, match=r"is not a torch\.nn\.Module"):
        profiling.prepare(Net, inputs(), variant="baseline")
    with pytest.raises(InputError, match=r"does not apply .* torch\.compile compiled nothing.* variant='baseline'"):
        profiling.prepare(nn.Identity(), {"input": torch.ones(2)}, variant="compile")
    with pytest.raises(InputError, match=r"does not apply .* channels_last changes nothing: Net has no 2D or 3D conv"):
        profiling.prepare(module, inputs(), variant="channels_last+compile")
    assert (module.training, module.calls.item()) == (True, 0), "also where the device or a transform refuses"


@dataclass(frozen=True, kw_only=True)
class EndsBadly(Variant):
    """Call the module; its step cannot be closed."""

    def __call__(self, component, folder):
        def close():
            raise RuntimeError("planted")

        return Step(run=component.call, close=close)


def test_a_step_that_cannot_be_closed_leaves_the_module_as_it_was():
    module = Net()
    step = profiling.prepare(module, inputs(), EndsBadly())
    assert not module.training
    with pytest.raises(RuntimeError, match="planted"):
        step.close()
    assert module.training
    with pytest.raises(InputError, match="this step is closed"):
        step(**inputs())


def with_another_layer(module):
    layer = nn.Linear(4, 4)
    layer.load_state_dict(module[0].state_dict())
    module[0] = layer
    return module


def test_layers_that_a_transform_replaces_are_not_held():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    replaced = weakref.ref(module[0])
    with profiling.prepare(module, {"input": torch.ones(2, 4)}, Recipe(transforms=[with_another_layer])):
        gc.collect()
        assert replaced() is None
        assert not module[1].training
    assert module[1].training


def test_compiled_steps_may_be_closed_in_any_order(tmp_path):
    config = torch._dynamo.config
    before = config.recompile_limit, config.fail_on_recompile_limit_hit
    first, second = ExitStack(), ExitStack()
    for stack in (first, second):
        stack.enter_context(Inductor().flags(tmp_path))
    first.close()
    assert config.fail_on_recompile_limit_hit
    second.close()
    assert (config.recompile_limit, config.fail_on_recompile_limit_hit) == before


def test_a_prepared_step_under_autocast():
    module, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        expected = module(x)
    with profiling.prepare(module, {"input": x}, "baseline", autocast=torch.bfloat16) as step:
        output = step(input=x)
        assert output.dtype == torch.bfloat16
        torch.testing.assert_close(output, expected)
    assert type(module) is nn.Linear
