"""Parity: a wrong output is never passed as right."""

import math
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table import promise
from torch import nn

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
from profiling.variants.variant import Step

bounded = settings(
    max_examples=20, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


class Net(nn.Module):
    """A module whose forward is a function of its input."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def component_of(function: Callable[[torch.Tensor], Any], dtype: torch.dtype = torch.float32) -> Component:
    def make(generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(4, 8, generator=generator, dtype=torch.float32).to(dtype)}

    inputs = make(torch.Generator().manual_seed(0))
    return Component("net", Net(function), inputs, make, torch.device("cpu"), dtype, 1, "random")


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


# --- one planted error anywhere in a nested output

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Box:
    left: Any
    right: Any


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
    view: str = "none"

    def make(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        if self.dtype.is_floating_point or self.dtype.is_complex:
            wide = torch.complex128 if self.dtype.is_complex else torch.float64
            tensor = torch.randn(self.shape, generator=generator, dtype=wide).to(self.dtype)
            if self.seed % 5 == 0 and tensor.numel() > 2 and not self.dtype.is_complex:
                tensor.view(-1)[-1] = -math.inf  # as in a mask
        else:
            tensor = torch.randint(0, 2 if self.dtype is torch.bool else 100, self.shape, generator=generator)
            tensor = tensor.to(self.dtype)
        if self.view == "transposed":
            return tensor.T.contiguous().T if tensor.ndim == 2 else tensor
        if self.view == "strided":
            return torch.stack([tensor, tensor], dim=-1)[..., 1]
        if self.view == "conj" and self.dtype.is_complex:
            return tensor.conj().clone().conj()
        return tensor


def drawn(*kinds: str, shapes: tuple[tuple[int, ...], ...] = ((), (3,), (2, 3))) -> st.SearchStrategy[Drawn]:
    dtypes = [dtype for kind in kinds for dtype in DTYPES[kind]]
    views = st.sampled_from(["none", "transposed", "strided", "conj"])
    return st.builds(Drawn, st.sampled_from(dtypes), st.sampled_from(shapes), st.integers(0, 99), views)


ANY_TENSOR = drawn(*DTYPES, shapes=((), (0,), (3,), (2, 3), (2, 0)))
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.floats(allow_nan=False))
KEYS = st.lists(st.sampled_from(["a", "b", "a.b", "['a']", "", 0, 1, ("a", 0)]), min_size=4, max_size=4, unique=True)
MAPPINGS, SEQUENCES, RECORDS = (dict, OrderedDict), (list, tuple, deque), (Pair, Box, SimpleNamespace)


def container(kind: type, keys: list[Any], values: list[Any]) -> tuple[Any, list[str]]:
    """Return a container of the values, and how Python code gets each of them."""
    if kind in MAPPINGS:
        used = keys[: len(values)]
        return kind(zip(used, values, strict=True)), [f"[{key!r}]" for key in used]
    if kind in SEQUENCES:
        return kind(values), [f"[{index}]" for index in range(len(values))]
    values = [*values, None, None][:2]
    return kind(**dict(zip(("left", "right"), values, strict=True))), [".left", ".right"]


@st.composite
def around(draw: Callable[..., Any]) -> tuple[Callable[[Any], Any], str]:
    """Draw what surrounds an output: a function that builds all of it anew, and the path in it."""
    levels = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from((*MAPPINGS, *SEQUENCES, *RECORDS)))
        beside = draw(st.lists(st.one_of(ANY_TENSOR, PLAIN), max_size=1 if kind in RECORDS else 3))
        levels.append((kind, draw(KEYS), beside, draw(st.integers(0, len(beside)))))

    def build(inner: Any) -> Any:
        for kind, keys, beside, position in reversed(levels):
            values = [leaf.make() if isinstance(leaf, Drawn) else leaf for leaf in beside]
            values.insert(position, inner)
            inner, _ = container(kind, keys, values)
        return inner

    path = "output"
    for kind, keys, beside, position in levels:
        path += container(kind, keys, [*beside, None])[1][position]
    return build, path


def compared(right: Any, other: Any) -> tuple[str | None, float | None]:
    """Compare a step that returns `other` with a reference that returned `right`; return reason and error."""
    expected = Played(OutputLog())
    for _ in range(2):
        expected.log.append(to_host(output=right, inputs={}))
    named = {"dtype": torch.float32, "frames_per_call": 1, "weights": "random", "warm_calls": 0}
    component = Component("net", nn.Identity(), {}, lambda _: {}, torch.device("cpu"), **named)
    subject = Subject(component, Step(lambda: other), Reference(expected, expected), None, 0)
    measured = Parity().measure(subject)
    encode_sections(**measured.sections)
    error = max((leaf.rel_l2 or leaf.differing or 0.0 for leaf in measured.sections["parity"].outputs), default=0.0)
    return (measured.problem[1] if measured.problem else None), error


@bounded
@given(around(), st.one_of(ANY_TENSOR, PLAIN))
def test_an_equal_output_is_right_with_error_0(surroundings, leaf):
    build, _ = surroundings
    right = build(leaf.make() if isinstance(leaf, Drawn) else leaf)
    other = build(replace(leaf, view="none").make() if isinstance(leaf, Drawn) else leaf)
    assert compared(right, other) == (None, 0.0)


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


TENSOR_ERRORS = {
    "one element of a float tensor": (drawn("floating"), one_element(lambda x: x * 1.5 + 1)),
    "NaN in one element": (drawn("floating"), one_element(lambda x: x * math.nan)),
    "infinity in one element": (drawn("floating"), one_element(lambda x: x * 0 + math.inf)),
    "only the imaginary part of one element": (drawn("complex"), one_element(lambda x: x + 1j)),
    "one integer of a tensor": (drawn("integer"), one_element(lambda x: x + 1)),
    "one flipped bool": (drawn("bool"), one_element(lambda x: ~x)),
    "the dtype of a tensor": (drawn(*DTYPES), other_dtype),
    "the shape of a tensor": (drawn(*DTYPES), lambda tensor: tensor[None]),
    "the shape of an empty tensor": (drawn(*DTYPES, shapes=((0,), (2, 0))), lambda tensor: tensor[None]),
    "a tensor replaced by a number": (drawn(*DTYPES, shapes=((),)), lambda tensor: tensor.item()),
}


@promise("wrong output")
@pytest.mark.parametrize("error", [pytest.param(error, id=error) for error in TENSOR_ERRORS])
def test_one_wrong_tensor_anywhere_in_a_nested_output(error):
    leaves, plant = TENSOR_ERRORS[error]

    @bounded
    @given(around(), leaves)
    def check(surroundings, leaf):
        build, path = surroundings
        reason, _ = compared(build(leaf.make()), build(plant(leaf.make())))
        assert reason is not None
        assert f"{path} " in reason

    check()


PLAIN_ERRORS = {
    "a number that is no tensor": (0.5, 0.6),
    "a complex number's imaginary part": (1 + 1j, 1 - 1j),
    "a whole number": (2**63, 2**63 + 1),
    "a number by a bool": (1, True),
    "a whole number by a float": (1, 1.0),
    "text": ("x", "y"),
    "None by 0": (None, 0),
    "a set": ({1, 2}, {1, 3}),
}


@promise("wrong output")
@pytest.mark.parametrize(("right", "wrong"), [pytest.param(*pair, id=error) for error, pair in PLAIN_ERRORS.items()])
def test_one_wrong_value_anywhere_in_a_nested_output(right, wrong):
    @bounded
    @given(around())
    def check(surroundings):
        build, path = surroundings
        assert compared(build(right), build(right)) == (None, 0.0)
        reason, _ = compared(build(right), build(wrong))
        assert reason is not None
        assert f"{path} " in reason

    check()


ONE, TWO = torch.ones(2), torch.ones(2) * 2
STRUCTURE_ERRORS = {
    "a missing key": ({"a": ONE, "b": TWO}, {"a": ONE}, "['b'] is missing"),
    "an extra key": ({"a": ONE}, {"a": ONE, "b": TWO}, "['b'] is not expected"),
    "a renamed key": ({"a": ONE}, {"b": ONE}, "['a'] is missing"),
    "a key of another type": ({1: ONE}, {"1": ONE}, "[1] is missing"),
    "a list for a tuple": ((ONE,), [ONE], " is list, not tuple"),
    "a dict for a mapping of another type": (OrderedDict(a=ONE), {"a": ONE}, " is dict, not collections.OrderedDict"),
    "a tuple for a namedtuple": (Pair(ONE, TWO), (ONE, TWO), " is tuple, not "),
    "a tuple for what torch.max returns": (ONE.max(0), tuple(ONE.max(0)), " is tuple, not torch.return_types.max"),
    "a dict for a dataclass": (Box(ONE, TWO), {"left": ONE, "right": TWO}, " is dict, not "),
    "an empty list for an empty dict": ({}, [], " is list, not dict"),
    "one tensor fewer in a list": ([ONE, ONE], [ONE], "[1] is missing"),
    "no output at all": (ONE, None, " is NoneType, not float32 [2]"),
    "one dict for another with the same flattened names": ({"a": {"b": ONE}}, {"a.b": ONE}, "['a'] is missing"),
    "two tensors whose flattened names collide, exchanged": (
        {"a": {"b": ONE}, "a.b": TWO},
        {"a": {"b": TWO}, "a.b": ONE},
        "relative L2 error 1 of ",
    ),
}


@promise("wrong structure")
@pytest.mark.parametrize(
    ("right", "wrong", "says"), [pytest.param(*case, id=error) for error, case in STRUCTURE_ERRORS.items()]
)
def test_a_wrong_structure_anywhere_in_a_nested_output(right, wrong, says):
    @bounded
    @given(around())
    def check(surroundings):
        build, path = surroundings
        assert compared(build(right), build(right)) == (None, 0.0)
        reason, _ = compared(build(right), build(wrong))
        assert reason is not None
        assert (says if says.endswith(" of ") else path + says) in reason

    check()


# --- tensors that are compared in a way of their own


def sparse(dense: torch.Tensor) -> torch.Tensor:
    return dense.to_sparse()


def nested(dense: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor([dense[0], dense[1, :3]])


def quantized(dense: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)


@dataclass
class Holder:
    """A dataclass with content that is no tensor."""

    array: Any


LAYOUTS = {
    "sparse": sparse,
    "nested": nested,
    "quantized": quantized,
    "negative view": lambda x: torch._neg_view(x),
    "complex with conjugate bit": lambda x: torch.complex(x, x).conj(),
    "expanded": lambda x: x[:1].expand(5, 8),
    "8-bit float": lambda x: x.to(torch.float8_e4m3fn),
    "NumPy array": lambda x: Holder(x.numpy().copy()),
    "NumPy number": lambda x: numpy.float32(x[0, 0]),
    "attribute of an object": lambda x: SimpleNamespace(mean=x, name="latent"),
    "half complex": lambda x: torch.complex(x, x).to(torch.complex32),
}


@promise("wrong output")
@pytest.mark.parametrize(
    "form", [pytest.param(form, id=name)
             for name, form in LAYOUTS.items()]
)  # fmt: skip
def test_layouts(form):
    def forward(x):
        return {"a": form(x), "b": x * 2}

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


FLOAT = "float32 [4, 8] on cpu"
#: By promise: the planted error, the reference's forward, the changed step (or changed eager call), text of the reason.
PLANTED: dict[str, dict[str, tuple[Callable[[torch.Tensor], Any], dict[str, Any], tuple[str, ...]]]] = {
    "wrong structure": {
        "a dense tensor for a sparse one": (
            sparse,
            {"wrong": lambda y: y.to_dense()},
            ("not float32 [4, 8] sparse_coo on cpu",),
        ),
        "a tensor without values": (
            lambda x: [x],
            {"wrong": lambda y: [y[0].to("meta")]},
            ("output[0] cannot be compared: it has no values",),
        ),
        "of eager": (
            lambda x: (x,),
            {"eager": lambda x: [x]},
            ("eager's own output in float32 has another structure",),
        ),
        "from the second call on": (
            lambda x: [x],
            {"run": changes_structure},
            ("wrong from call 2 on: ", "output is tuple, not list"),
        ),
    },
    "wrong output": {
        "a large integer": (lambda x: torch.tensor([2**53 + 1]), {"wrong": lambda y: y - 1}, ("output",)),
        "float64 by way of float32": (
            lambda x: x.double().exp(),
            {"wrong": lambda y: y.float().double(), "metric": Parity(floor=1e-12)},
            ("relative L2 error",),
        ),
        "a reference of zeros": (lambda x: x * 0, {"wrong": lambda y: y + 1e-9}, ("the reference is zero everywhere",)),
        "another sign of infinity": (half_infinite, {"wrong": torch.abs}, (f"output ({FLOAT}) is infinite",)),
        "infinity elsewhere": (half_infinite, {"wrong": lambda y: y.flip(0)}, (f"output ({FLOAT}) is infinite",)),
        "no infinity": (half_infinite, {"wrong": lambda y: y.clamp(min=-1e9)}, (f"output ({FLOAT}) is infinite",)),
        "NaN, whatever is allowed": (
            lambda x: x + 1,
            {"wrong": lambda y: y * math.nan, "metric": Parity(floor=1e9)},
            (f"parity: output ({FLOAT}) ",),
        ),
        "infinity, whatever is allowed": (
            lambda x: x + 1,
            {"wrong": lambda y: y * math.inf, "metric": Parity(floor=1e9)},
            (f"parity: output ({FLOAT}) ",),
        ),
        "one of two aliases": (
            aliased,
            {"wrong": lambda y: {**y, "twice": [y["twice"][0], y["twice"][1] * 2]}},
            ("output['twice'][1]",),
        ),
    },
    "bad reference": {
        "it has NaN": (lambda x: {"good": x, "bad": x.log()}, {}, ("output['bad']", "the reference itself has NaN")),
        "eager overflows": (lambda x: x.exp(), {"eager": lambda x: x.exp() * math.inf}, ("eager's own output",)),
        "eager is too far": (lambda x: x, {"wrong": lambda y: y * 0, "eager": lambda x: x * 1.6}, ("dtype=float32",)),
    },
    "stale output": {
        "that of the old inputs": (lambda x: x + 1, {"run": stale}, ("output",)),
        "right only once": (lambda x: x + 1, {"run": once}, ("wrong from call 2 on: relative L2 error 0.5 of output",)),
    },
    "written inputs": {
        "that eager leaves": (lambda x: x + 1, {"run": overwrites}, (f"inputs['x'] ({FLOAT})",)),
        "that eager overwrites": (
            lambda x: x.mul_(2),
            {"run": lambda component: lambda: component.inputs["x"] * 2},
            ("inputs['x']",),
        ),
    },
}


@pytest.mark.parametrize(
    ("forward", "options", "says"),
    [
        pytest.param(*case, id=f"{name}: {what}", marks=promise(name))
        for name, cases in PLANTED.items()
        for what, case in cases.items()
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


# --- the reference itself


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


INCOMPARABLE = {
    "forward returns a generator": (lambda x: (y for y in [x]), "returned generator"),
    "an iterator inside an output": (lambda x: {"a": [x, iter([x])]}, "output['a'][1]"),
    "a view of a dict's values in an output": (lambda x: [x, {"a": x}.values()], "output[1]"),
    "an output on the meta device": (lambda x: {"a": x.to("meta")}, "output['a']"),
    "an output of empty tensors only": (lambda x: x[:0], "only empty tensors"),
    "an output without a tensor": (lambda x: {"a": 1.5}, "no tensor"),
    "a sparse output that is too large to be made dense": (
        lambda x: torch.sparse_coo_tensor(torch.zeros(2, 1), torch.ones(1), (2**20, 2**20)),
        "too large to be made dense",
    ),
}


@promise("no comparison")
@pytest.mark.parametrize(("forward", "says"), [pytest.param(*case, id=name) for name, case in INCOMPARABLE.items()])
def test_outputs_that_cannot_be_compared(forward, says):
    with pytest.raises(InputError) as caught:
        learn(component_of(forward))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@promise("no comparison")
def test_recursive_output():
    def forward(x):
        output = [x]
        output.append(output)
        return output

    with pytest.raises(InputError, match="contains itself"):
        learn(component_of(forward))


# --- the brothers of the check


@promise("wrong output")
def test_drift_of_an_imaginary_part():
    component = component_of(lambda x: torch.complex(x, x))
    step = Step(lambda: torch.complex(component.inputs["x"], component.inputs["x"] * 1.5))
    measured = Drift(calls=3, tolerance=0.1).measure(Subject(component, step, None, None, 0))
    assert measured.sections["drift"].max == pytest.approx(0.5 / math.sqrt(2))
    assert measured.problem is not None


@promise("wrong structure")
def test_drift_names_the_output():
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
    step = TrainingStep(model, torch.optim.SGD(model.parameters(), lr=0.1), TrainingOptions())
    start, ends = Snapshot(step), []
    for end in (1 + 1j, 1 + 2j):
        nn.init.constant_(model.weight, end)
        after = Snapshot(step)
        ends.append(Trajectory([1.0], after.weights(), after.statistics(), ()))
    assert compare_trajectories(ends[0], ends[0], start, TrainingOptions()).passed
    assert not compare_trajectories(ends[1], ends[0], start, TrainingOptions()).passed
