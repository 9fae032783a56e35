"""Signatures of calls, and layout and aliasing of static inputs; no GPU needed."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from profiling.graphs.captured_call import StaticInputs, same_view
from profiling.graphs.signature import signature

Pair = namedtuple("Pair", "a b")


@dataclass
class Box:
    x: torch.Tensor
    scale: float


def key(*args, **kwargs):
    return signature(args, kwargs)[0]


X = torch.arange(24.0).view(4, 6)
C = torch.complex(X, X)

DIFFERENT = {
    "shape": (X, X[:3]),
    "dtype": (X, X.double()),
    "strides": (X, X.t().contiguous().t()),
    "requires grad": (X, X.clone().requires_grad_()),
    "value": (1, 2),
    "type of a value": (1, True),
    "int and float": (1, 1.0),
    "structure": ([X], (X,)),
    "names": ({"a": X}, {"b": X}),
    "length": ([X, X.clone()], [X, X.clone(), X.clone()]),
    "none": (None, X),
    "a dataclass's plain field": (Box(X, 1.0), Box(X, 2.0)),
    "named tuple and tuple": (Pair(X, X.clone()), (X, X.clone())),
    "zero and minus zero": (0.0, -0.0),
    "conjugated": ((C, C), (C, C.conj())),
    "alignment of what overlaps": ((X.view(-1)[2:6], X.view(-1)[3:7]), (X.view(-1)[:4], X.view(-1)[1:5])),
    "the same tensor twice": ((X, X), (X, X.clone())),
    "where a view lies": ((X, X[1:]), (X, X[:3])),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_different_calls_have_different_keys(case):
    one, other = DIFFERENT[case]
    assert key(one) == key(one)
    assert key(one) != key(other)
    assert key(x=one) != key(y=one)


def test_values_of_tensors_are_not_part_of_the_key_and_modes_are():
    assert key(X, scale=2) == key(X + 1, scale=2)
    base = X.clone() + 3
    assert key(X, X[1:]) == key(base, base[1:]), "views of each other, as before"
    keys = {key(X)}
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            keys.add(key(X))
    assert len(keys) == 3
    # Of an object the identity counts: what it holds is read where it lies, and another one has other tensors.
    for value, other in (({1, 2}, {1, 2}), (object(), object()), (nn.Linear(1, 1), nn.Linear(1, 1))):
        assert key(value) == key(value)
        assert key(value) != key(other)
    _, leaves = signature((X, [X + 1, {"z": X + 2}]), {"b": Box(X + 3, 1.0)})
    assert [float(leaf[0, 0]) for leaf in leaves] == [0, 1, 2, 3], "in a fixed order"


BASE = torch.arange(60.0)


#: Inputs, and the pairs of them whose addresses meet.
LAYOUTS = {
    "transposed": ([BASE.view(6, 10).t()], ()),
    "strided": ([BASE.view(6, 10)[:, ::2]], ()),
    "expanded": ([BASE[:6].view(6, 1).expand(6, 5)], ()),
    "twice": ([BASE, BASE], [(0, 1)]),
    "view and base": ([BASE, BASE[10:20]], [(0, 1)]),
    "interleaved": ([BASE[::2], BASE[1::2]], [(0, 1)]),
    "three, two of them meet": ([BASE[:20], BASE[40:], BASE[10:30]], [(0, 2)]),
    "two dtypes of one memory": ([BASE, BASE.view(torch.int32)[3:7]], [(0, 1)]),
    "no elements": ([BASE[:0], BASE.clone()], ()),
    "a scalar": ([torch.tensor(2.0)], ()),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_static_inputs_have_values_layout_and_aliasing(case):
    given, meet = LAYOUTS[case]
    static = StaticInputs(given).tensors
    for leaf, mine in zip(given, static, strict=True):
        assert (mine.shape, mine.stride(), mine.dtype) == (leaf.shape, leaf.stride(), leaf.dtype)
        assert torch.equal(mine, leaf)
        if leaf.numel():
            assert mine.untyped_storage().data_ptr() != leaf.untyped_storage().data_ptr()
    for i, j in meet:
        assert static[j].data_ptr() - static[i].data_ptr() == given[j].data_ptr() - given[i].data_ptr()


def test_new_values_are_copied_in_and_changed_ones_back():
    base, other = torch.zeros(10), torch.ones(4)
    given = [base, base[2:5], other]
    static = StaticInputs(given)
    base.copy_(torch.arange(10.0))
    static.copy_in(given)
    assert torch.equal(static.tensors[1], torch.arange(2.0, 5.0))
    static.tensors[0].fill_(7)
    static.copy_in(static.tensors)
    assert bool((static.tensors[0] == 7).all())
    assert static.changed(given) == {0, 1}
    static.copy_back(given, {0})
    assert bool((base == 7).all())
    given = torch.arange(12.0).view(3, 4)[1:]
    static = StaticInputs([given]).tensors[0]
    assert torch.equal(same_view(static[:, 1::2], static, given), given[:, 1::2])
    assert same_view(static.t(), static, given).data_ptr() == given.data_ptr(), "that view of the caller's tensor"


@pytest.mark.parametrize("views", [False, True])
def test_static_inputs_are_inference_tensors_where_the_callers_are(views):
    """A compiled call would compile once more for the others."""
    ordinary = torch.zeros(4)
    with torch.inference_mode():
        inference = torch.zeros(4)
        for given in (ordinary, inference):
            static = StaticInputs([given, given[:2]] if views else [given])
            assert [each.is_inference() for each in static.tensors] == [given.is_inference()] * (1 + views)
            given += 1
            static.copy_in([given, given[:2]] if views else [given])
            assert torch.equal(static.tensors[0], given)
            static.tensors[0].add_(1)
            static.copy_back([given], {0})
            assert float(given[0]) == 2
            given.zero_()


def test_inputs_that_require_grad_have_static_inputs_that_do():
    given = torch.ones(3, requires_grad=True)
    inputs = StaticInputs([given])
    (static,) = inputs.tensors
    assert static.requires_grad
    assert static.is_leaf
    inputs.copy_in([given])
    assert not inputs._buffers[0].requires_grad
