"""Parity: a wrong output is never passed as right."""

import math
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from fixed_component import Net
from hypothesis import given
from hypothesis import strategies as st
from playing import component_of
from table import bounded, promise
from torch import nn

import profiling
from profiling.components import reference
from profiling.components.component import Component
from profiling.components.outputs import OutputLog, leaf_errors, to_host
from profiling.components.reference import Reference, eager_reference
from profiling.components.trajectory import Played, learn
from profiling.errors import InputError
from profiling.metrics.drift import Drift
from profiling.metrics.metric import Subject
from profiling.metrics.parity import Parity
from profiling.results.record import encode_sections
from profiling.training_step.options import TrainingOptions
from profiling.training_step.step import Snapshot, TrainingStep
from profiling.training_step.trajectory import Trajectory, compare_trajectories
from profiling.variants.recipe import Recipe
from profiling.variants.variant import Step, Variant


def problem_of(
    function: Callable[[torch.Tensor], Any],
    wrong: Callable[[Any], Any] = lambda output: output,
    eager: Callable[[torch.Tensor], Any] | None = None,
    metric: Parity | None = None,
    run: Callable[[Component], Callable[[], Any]] | None = None,
    **options: Any,
) -> str | None:
    """Check a step that returns `wrong(output)`, or the step that `run` makes; return why parity failed, or None.

    `function` is the forward of the reference, `eager` that of eager in the run's dtype if it is another. `options` are
    fields of the subject.
    """
    reference = learn(component_of(function))
    component = component_of(eager or function)
    near = learn(component)
    component.refill(0)
    step = run(component) if run else lambda: wrong(component.call())
    sides = Reference(reference, near, effects=component.kept.effects)
    subject = Subject(component, Step(step), sides, options.pop("tolerance", None), 0, **options)
    measured = (metric or Parity()).measure(subject)
    encode_sections(**measured.sections)  # fits into a record
    assert measured.sections["parity"].passed is (measured.problem is None)
    return None if measured.problem is None else measured.problem[1]


Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Box:
    left: Any
    right: Any


ONE, TWO = torch.ones(2), torch.ones(2) * 2
#: What an output may be in: a container with other values, and how Python code gets the output from it.
CONTAINERS = (
    ("['a']", lambda inner: {"a": inner, "b": ONE, "c": "text"}),
    ("['a.b']", lambda inner: OrderedDict([("a", {"b": 1}), ("a.b", inner), ("", TWO)])),
    ("[0]", lambda inner: {"0": None, 0: inner, ("a", 0): TWO}),
    ("[('a', 0)]", lambda inner: {("a", 0): inner, "['a']": 0.5}),
    ("[1]", lambda inner: [torch.zeros(2, 0), inner]),
    ("[0]", lambda inner: (inner, True)),
    ("[1]", lambda inner: deque([torch.tensor([1 + 2j]), inner, 7])),
    (".left", lambda inner: Pair(inner, TWO)),
    (".right", lambda inner: Box(None, inner)),
    (".left", lambda inner: SimpleNamespace(right=ONE, left=inner)),
)
AROUND = st.lists(st.sampled_from(CONTAINERS), max_size=3)

DTYPES = {
    "floating": (torch.float32, torch.float16, torch.bfloat16, torch.float64),
    "complex": (torch.complex64, torch.complex128),
    "integer": (torch.int64, torch.int32, torch.uint8),
    "bool": (torch.bool,),
}


@dataclass(frozen=True)
class Drawn:
    """A tensor: its kind, dtype, shape, seed, and the view of other memory that it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    seed: int
    view: str

    def make(self, *, viewed: bool = True) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        if self.dtype.is_floating_point or self.dtype.is_complex:
            wide = torch.complex128 if self.dtype.is_complex else torch.float64
            tensor = torch.randn(self.shape, generator=generator, dtype=wide).to(self.dtype)
            if self.seed % 5 == 0 and tensor.numel() > 2 and not self.dtype.is_complex:
                tensor.view(-1)[-1] = -math.inf  # as in a mask
        else:
            tensor = torch.randint(0, 2 if self.dtype is torch.bool else 100, self.shape, generator=generator)
            tensor = tensor.to(self.dtype)
        if not viewed or (self.view == "conj" and not self.dtype.is_complex):
            return tensor
        return VIEWS[self.view](tensor)


VIEWS = {
    "none": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.T.contiguous().T if tensor.ndim == 2 else tensor,
    "strided": lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 1],
    "conj": lambda tensor: tensor.conj().clone().conj(),
}


def drawn(*kinds: str, shapes: tuple[tuple[int, ...], ...] = ((), (3,), (2, 3))) -> st.SearchStrategy[Drawn]:
    dtypes = [dtype for kind in kinds for dtype in DTYPES[kind]]
    views = st.sampled_from(list(VIEWS))
    return st.builds(Drawn, st.sampled_from(dtypes), st.sampled_from(shapes), st.integers(0, 99), views)


def compared(right: Any, other: Any) -> tuple[str | None, float | None]:
    """Compare a step that returns `other` with a reference that returned `right`; return reason and error."""
    expected = Played(OutputLog())
    for _ in range(2):
        expected.log.append(to_host(output=right, inputs={}))
    component = component_of(nn.Identity(), lambda _: {}, warm_calls=0)
    subject = Subject(component, Step(lambda: other), Reference(expected, expected), None, 0)
    measured = Parity().measure(subject)
    encode_sections(**measured.sections)
    error = max((leaf.rel_l2 or leaf.differing or 0.0 for leaf in measured.sections["parity"].outputs), default=0.0)
    return (measured.problem[1] if measured.problem else None), error


@promise("rounding")
def test_narrow_integers_are_samples():
    for dtype, exact in ((torch.uint8, False), (torch.int16, False), (torch.int64, True)):
        picture = torch.arange(100, dtype=dtype)
        step = leaf_errors(to_host(output=picture + 1), to_host(output=picture))[0]
        assert step.exact is exact
        assert step.error == pytest.approx(1.0 if exact else 10 / picture.double().norm())
    reason, _ = compared(torch.arange(100, dtype=torch.uint8), torch.arange(100, dtype=torch.uint8) * 2)
    assert "relative L2 error 1 " in str(reason)


def one_element(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone(memory_format=torch.contiguous_format).resolve_conj()
        tensor.view(-1)[0] = change(tensor.view(-1)[0])
        return tensor

    return changed


def other_dtype(tensor: torch.Tensor) -> torch.Tensor:
    same_kind = next(kind for kind in DTYPES.values() if tensor.dtype in kind)
    return tensor.to(next((dtype for dtype in same_kind if dtype != tensor.dtype), torch.uint8))


ANY_SHAPE = drawn(*DTYPES, shapes=((), (0,), (3,), (2, 3), (2, 0)))
#: By promise: the output (drawn, or as it is), what is made of it, and what the reason says behind the output's name.
ERRORS: dict[str, dict[str, tuple[Any, Callable[[Any], Any], str]]] = {
    "wrong output": {
        "one element of a float tensor": (drawn("floating"), one_element(lambda x: x * 1.5 + 1), " "),
        "NaN in one element": (drawn("floating"), one_element(lambda x: x * math.nan), " "),
        "infinity in one element": (drawn("floating"), one_element(lambda x: x * 0 + math.inf), " "),
        "only the imaginary part of one element": (drawn("complex"), one_element(lambda x: x + 1j), " "),
        "one integer of a tensor": (drawn("integer"), one_element(lambda x: x + 1), " "),
        "one flipped bool": (drawn("bool"), one_element(lambda x: ~x), " "),
        "the dtype of a tensor": (drawn(*DTYPES), other_dtype, " "),
        "the shape of a tensor": (ANY_SHAPE, lambda tensor: tensor[None], " "),
        "a tensor replaced by a number": (drawn(*DTYPES, shapes=((),)), lambda tensor: tensor.item(), " "),
        "a number that is no tensor": (0.5, lambda _: 0.6, " "),
        "a complex number's imaginary part": (1 + 1j, lambda _: 1 - 1j, " "),
        "a whole number": (2**63, lambda _: 2**63 + 1, " "),
        "a number by a bool": (1, lambda _: True, " "),
        "a whole number by a float": (1, lambda _: 1.0, " "),
        "None by 0": (None, lambda _: 0, " "),
        "a set": ({1, 2}, lambda _: {1, 3}, " "),
    },
    "wrong structure": {
        "a missing key": ({"a": ONE, "b": TWO}, lambda y: {"a": ONE}, "['b'] is missing"),
        "an extra key": ({"a": ONE}, lambda y: {**y, "b": TWO}, "['b'] is not expected"),
        "a key of another type": ({1: ONE}, lambda y: {"1": ONE}, "[1] is missing"),
        "a list for a tuple": ((ONE,), list, " is list, not tuple"),
        "a dict for a mapping of another type": (OrderedDict(a=ONE), dict, " is dict, not collections.OrderedDict"),
        "a tuple for a namedtuple": (Pair(ONE, TWO), tuple, " is tuple, not "),
        "a tuple for what torch.max returns": (ONE.max(0), tuple, " is tuple, not torch.return_types.max"),
        "a dict for a dataclass": (Box(ONE, TWO), lambda y: {"left": ONE, "right": TWO}, " is dict, not "),
        "an empty list for an empty dict": ({}, lambda _: [], " is list, not dict"),
        "one tensor fewer in a list": ([ONE, ONE], lambda y: y[1:], "[1] is missing"),
        "no output at all": (ONE, lambda _: None, " is NoneType, not float32 [2]"),
        "another dict with the same flattened names": ({"a": {"b": ONE}}, lambda _: {"a.b": ONE}, "['a'] is missing"),
        "two tensors whose flattened names collide": (
            {"a": {"b": ONE}, "a.b": TWO},
            lambda _: {"a": {"b": TWO}, "a.b": ONE},
            "['a']['b'] ",
        ),
    },
}


@pytest.mark.parametrize(
    ("leaves", "plant", "says"),
    [
        pytest.param(*case, id=error, marks=promise(name))
        for name, cases in ERRORS.items()
        for error, case in cases.items()
    ],
)
def test_one_error_anywhere_in_a_nested_output(leaves, plant, says):
    @bounded(20)
    @given(AROUND, leaves if isinstance(leaves, st.SearchStrategy) else st.just(leaves))
    def check(levels, leaf):
        def output(value: Any) -> Any:
            for _, container in reversed(levels):
                value = container(value)
            return value

        right, copy = (leaf.make(), leaf.make(viewed=False)) if isinstance(leaf, Drawn) else (leaf, leaf)
        assert compared(output(right), output(copy)) == (None, 0.0)
        reason, _ = compared(output(right), output(plant(right)))
        assert reason is not None
        assert f"output{''.join(path for path, _ in levels)}{says}" in reason

    check()


SPARSE = torch.Tensor.to_sparse
LAYOUTS = {
    "sparse": SPARSE,
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1, :3]]),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "negative view": lambda x: torch._neg_view(x),
    "complex with conjugate bit": lambda x: torch.complex(x, x).conj(),
    "expanded": lambda x: x[:1].expand(5, 8),
    "8-bit float": lambda x: x.to(torch.float8_e4m3fn),
    "NumPy array": lambda x: Box(None, x.numpy().copy()),
    "NumPy number": lambda x: numpy.float32(x[0, 0]),
    "half complex": lambda x: torch.complex(x, x).to(torch.complex32),
}


@promise("wrong output")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    def forward(x):
        return {"a": LAYOUTS[layout](x), "b": x * 2}

    assert problem_of(forward) is None
    reason = problem_of(forward, run=lambda c: lambda: forward(c.inputs["x"] * 1.5) | {"b": c.inputs["x"] * 2})
    assert reason is not None
    assert "output['a']" in reason


@promise("wrong output")
@pytest.mark.parametrize("size", [1e-160, 1e200])
def test_extreme_magnitudes(size):
    def forward(x):
        return x.double() * size

    assert problem_of(forward) is None
    assert problem_of(forward, lambda y: y * (1 + 5e-5)) is None
    reason = problem_of(forward, lambda y: y * (1 + 2e-4))
    assert reason is not None
    assert "relative L2 error 0.0002 of output" in reason


@promise("wrong output")
def test_huge_beside_small():
    reason = problem_of(lambda x: {"big": x * 1e30, "small": x * 1e-6}, lambda y: {**y, "small": y["small"] * 2})
    assert reason is not None
    assert "output['small']" in reason
    assert "output['big']" not in reason


def half_infinite(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, -math.inf)


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def once(component: Component) -> Callable[[], Any]:
    factors = iter([1.0])
    return lambda: component.call() * next(factors, 1.5)


def stale(component: Component) -> Callable[[], Any]:
    output = component.call()
    return lambda: output


def changes_structure(component: Component) -> Callable[[], Any]:
    kinds = iter([list])
    return lambda: next(kinds, tuple)(component.call())


def overwrites(component: Component) -> Callable[[], Any]:
    def run():
        output = component.call()
        component.inputs["x"].zero_()
        return output

    return run


WEIGHT = nn.Parameter(torch.ones(3))


def aliased(x: torch.Tensor) -> Any:
    return {"input": x, "view": x[1:], "weight": WEIGHT, "twice": [x, x]}


def one_alias(output: Any) -> Any:
    return {**output, "twice": [output["twice"][0], output["twice"][1] * 2]}


def planted(name: str, forward: Callable[[torch.Tensor], Any], *says: str, **options: Any) -> Any:
    """Return a case of the promise `name`: the reference's forward, the changed step or eager, text of the reason."""
    return pytest.param(forward, options, says, id=f"{name}: {says[0][:60]}", marks=promise(name))


FLOAT = "float32 [4, 8] on cpu"
INFINITE = f"output ({FLOAT}) is infinite"
STRUCTURE, WRONG, REFERENCE, INPUTS = "wrong structure", "wrong output", "bad reference", "written inputs"


@pytest.mark.parametrize(
    ("forward", "options", "says"),
    [
        planted(
            STRUCTURE, torch.Tensor.to_sparse, "not float32 [4, 8] sparse_coo on cpu", wrong=lambda y: y.to_dense()
        ),
        planted(STRUCTURE, lambda x: [x], "output[0] cannot be compared: it has no", wrong=lambda y: [y[0].to("meta")]),
        planted(STRUCTURE, lambda x: (x,), "eager's own output in float32 has another", eager=lambda x: [x]),
        planted(STRUCTURE, lambda x: [x], "wrong from call 2 on: ", "output is tuple, not list", run=changes_structure),
        planted(WRONG, lambda x: torch.tensor([2**53 + 1]), "output", wrong=lambda y: y - 1),
        planted(
            *(WRONG, lambda x: x.double().exp(), "relative L2 error"),
            wrong=lambda y: y.float().double(),
            metric=Parity(floor=1e-12),
        ),
        planted(WRONG, lambda x: x * 0, "the reference is zero everywhere", wrong=lambda y: y + 1e-9),
        planted(WRONG, half_infinite, INFINITE, wrong=torch.abs),
        planted(WRONG, half_infinite, INFINITE, wrong=lambda y: y.flip(0)),
        planted(WRONG, half_infinite, INFINITE, wrong=lambda y: y.clamp(min=-1e9)),
        planted(WRONG, plus_one, f"parity: output ({FLOAT}) ", wrong=lambda y: y * math.nan, metric=Parity(floor=1e9)),
        planted(WRONG, plus_one, f"parity: output ({FLOAT}) ", wrong=lambda y: y * math.inf, metric=Parity(floor=1e9)),
        planted(WRONG, aliased, "output['twice'][1]", wrong=one_alias),
        planted(REFERENCE, lambda x: {"good": x, "bad": x.log()}, "the reference itself has NaN", "output['bad']"),
        planted(REFERENCE, lambda x: x.exp(), "eager's own output", eager=lambda x: x.exp() * math.inf),
        planted(REFERENCE, lambda x: x, "dtype=float32", wrong=lambda y: y * 0, eager=lambda x: x * 1.6),
        planted("stale output", plus_one, "output", run=stale),
        planted("stale output", plus_one, "wrong from call 2 on: relative L2 error 0.5 of output", run=once),
        planted(INPUTS, plus_one, f"inputs['x'] ({FLOAT})", run=overwrites),
        planted(INPUTS, lambda x: x.mul_(2), "inputs['x']", run=lambda c: lambda: c.inputs["x"] * 2),
    ],
)
def test_a_planted_error(forward, options, says):
    reason = problem_of(forward, **options)
    assert reason is not None
    for words in says:
        assert words in reason
    assert "nondeterministic" not in reason


@pytest.mark.parametrize("forward", [lambda x: x * 0, half_infinite, lambda x: x.mul_(2), aliased])
def test_eager_is_right(forward):
    assert problem_of(forward) is None


@pytest.mark.parametrize(("error", "passes"), [(0.04, True), (0.16, True), (0.18, False)])
def test_a_pipeline_may_have_the_error_of_a_stage_or_that_of_eager_twice(error, passes):
    """Eager's own error is 0.05, of 32 numbers, and a stage has a tolerance of 0.03."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))

    def delivered(factor):
        log = OutputLog()
        log.append(to_host(output={"stage": x * factor}))
        return log

    reference = Reference(Played(delivered(1.0)), Played(delivered(1.05)))
    for tolerance, right in ((0.03, passes), (0.2, True)):
        found = Parity().of_pipeline(delivered(1 + error), reference, torch.float32, tolerance)
        assert (found.problem is None) is right
        assert found.sections["parity"].calls == 1


@pytest.mark.parametrize("draw", [torch.zeros_like, torch.randn_like])
def test_nan_in_each_of_two_eager_calls_is_not_called_random(draw):
    def call(x):
        return {"bad": (x + draw(x)).log() * math.nan}

    component = component_of(call)
    reference = eager_reference(component)
    assert reference.nondeterminism(torch.float32) is None
    measured = Parity().measure(Subject(component, Step(component.call), reference, None, 0))
    assert measured.problem[1].startswith("parity: eager's own output in float32 is not finite")


@promise("rounding")
def test_integers_may_differ_as_eager_does():
    def share(elements):
        return lambda x: torch.arange(100) + (torch.arange(100) < elements) * 7

    near = share(5)
    assert problem_of(share(0), lambda _: share(10)(None), eager=near) is None
    reason = problem_of(share(0), lambda _: share(11)(None), eager=near)
    assert reason is not None
    assert "0.11 of the elements of output (int64 [100] on cpu) differ" in reason
    assert problem_of(share(0), eager=share(90)) is None, "just as eager's"
    assert problem_of(share(0), lambda _: share(89)(None), eager=share(90)) is not None


def recursive(x: torch.Tensor) -> Any:
    output: list[Any] = [x]
    output.append(output)
    return output


@promise("no comparison")
@pytest.mark.parametrize(
    ("forward", "says"),
    [
        (lambda x: (y for y in [x]), "returned generator"),
        (lambda x: {"a": [x, iter([x])]}, "output['a'][1]"),
        (lambda x: [x, {"a": x}.values()], "output[1]"),
        (lambda x: {"a": x.to("meta")}, "output['a']"),
        (lambda x: x[:0], "only empty tensors"),
        (lambda x: {"a": 1.5}, "no tensor"),
        (lambda x: torch.sparse_coo_tensor(torch.zeros(2, 1), x[0, :1], (2**20, 2**20)), "too large to be made dense"),
        (recursive, "contains itself"),
    ],
)
def test_outputs_that_cannot_be_compared(forward, says):
    with pytest.raises(InputError) as caught:
        learn(component_of(forward))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@promise("wrong structure")
@promise("wrong output")
def test_drift_sees_an_imaginary_part_and_names_an_output_of_another_dtype():
    component = component_of(lambda x: torch.complex(x, x))
    step = Step(lambda: torch.complex(component.inputs["x"], component.inputs["x"] * 1.5))
    measured = Drift(calls=3, tolerance=0.1).measure(Subject(component, step, None, None, 0))
    assert measured.sections["drift"].max == pytest.approx(0.5 / math.sqrt(2))
    assert measured.problem is not None
    component = component_of(lambda x: {"a": x})
    dtypes = iter([torch.float32, torch.float64])
    step = Step(lambda: {"a": component.inputs["x"].to(next(dtypes))})
    measured = Drift(calls=2).measure(Subject(component, step, None, None, 0))
    assert measured.problem is not None
    assert "call 1: output['a'] is float64 [4, 8] on cpu, not float32 [4, 8] on cpu" in measured.problem[1]


@promise("wrong output")
def test_training_of_complex_weights():
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    step = TrainingStep(model, partial(torch.optim.SGD, lr=0.1), TrainingOptions())
    start, ends = Snapshot(step), []
    for end in (1 + 1j, 1 + 2j):
        nn.init.constant_(model.weight, end)
        ends.append(Trajectory([1.0], Snapshot(step).vectors(), ()))
    assert compare_trajectories(ends[0], ends[0], start, TrainingOptions()).passed
    assert not compare_trajectories(ends[1], ends[0], start, TrainingOptions()).passed


def halves(*, only: bool) -> nn.Module:
    """Return layers in bfloat16, whose forward may refuse float32."""

    def forward(self, x):
        if only and x.dtype == torch.float32:
            raise RuntimeError("planted: only half precision is supported")
        return self.layers(x)

    torch.manual_seed(0)  # the tolerance follows from eager's own error
    return Net(forward, layers=nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).bfloat16())


@dataclass(frozen=True, kw_only=True)
class Off(Variant):
    """Return the module's output with an error of 5% in each number."""

    def __call__(self, component, folder) -> Step:
        return Step(run=lambda: component.call() * 1.05)


@promise("no float32")
@pytest.mark.parametrize(
    ("only", "free", "kind", "says"),
    [
        (False, 10_000, "fp32 eager on bfloat16 weights", "an fp32 copy (3.3e-05 GB) does not fit"),
        (True, 10**12, "eager bfloat16", "RuntimeError: planted: only half precision is supported"),
    ],
)
def test_without_a_float32_copy_the_report_says_what_a_result_was_compared_with(monkeypatch, only, free, kind, says):
    monkeypatch.setattr(reference, "free_bytes", lambda device: free)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    options = {"metrics": {"parity": Parity()}, "ceilings": "off", "quiet": True}
    result = profiling.profile(halves(only=only), {"x": x}, {"baseline": Recipe(), "off": Off()}, **options)
    record, off = result.records
    assert (record.status, record.parity.reference, off.status) == ("ok", kind, "failed")
    assert kind in str(result)
    (note,) = (note for note in record.notes if note.startswith(f"parity against {kind}: "))
    assert says in note
    if only:
        assert record.parity.tolerance == 4 * torch.finfo(torch.bfloat16).eps / 2
        assert "against the eager bfloat16 reference, allowed 0.01" in off.reason
