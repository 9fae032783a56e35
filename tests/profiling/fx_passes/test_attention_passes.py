"""Passes for attention: the library's kernel for plain operations, and simpler masks."""

import math

import pytest
import torch
from fixed_component import Net
from fx_networks import applied, calls, normal
from torch.nn import functional as F

from profiling.fx_passes.attention import ReplaceAttention, SimplifyMasks
from profiling.fx_passes.folding import FoldConstants

Q, K, V = normal(2, 3, 5, 4), normal(2, 3, 7, 4, seed=1), normal(2, 3, 7, 6, seed=2)
ADDED = normal(2, 1, 5, 7, seed=3)
HIDDEN = normal(5, 7, seed=4) > 1


def wide(self, q, k, v):
    weights = F.softmax(q @ k.transpose(-1, -2) / 2, dim=-1, dtype=torch.float64).to(q.dtype)
    return F.dropout(weights, 0.1, self.training) @ v


def through_bmm(self, q, k, v):
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.permute(0, 2, 1)) * 0.3, -1), v)


def through_baddbmm(self, q, k, v):
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    room = q.new_empty(1, 1, 1)
    return torch.bmm(torch.baddbmm(room, q, k.mT, beta=0, alpha=0.3).softmax(-1), v)


FORMS = {
    "plain": lambda self, q, k, v: (q @ k.mT).softmax(-1) @ v,
    "scaled after": lambda self, q, k, v: torch.softmax(torch.matmul(q, k.transpose(2, 3)) * 0.3, dim=3).matmul(v),
    "scaled twice": lambda self, q, k, v: ((q * 0.3) @ (k.transpose(-2, -1) * 2) / 1.5).softmax(-1) @ v,
    "added mask": lambda self, q, k, v: (q @ k.mT * 0.3 + self.added).softmax(-1) @ v,
    "mask first": lambda self, q, k, v: (self.added + q @ k.mT).softmax(-1) @ v,
    "filled": lambda self, q, k, v: (q @ k.mT * 0.3).masked_fill(self.hidden, -math.inf).softmax(-1) @ v,
    "where": lambda self, q, k, v: torch.where(self.hidden, -math.inf, q @ k.mT).softmax(-1) @ v,
    "where not": lambda self, q, k, v: torch.where(~self.hidden, q @ k.mT, -math.inf).softmax(-1) @ v,
    "wide softmax": wide,
    "bmm": through_bmm,
    "baddbmm": through_baddbmm,
}


def masked(forward):
    return Net(forward, added=ADDED, hidden=HIDDEN)


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_attention_are_replaced(name):
    traced, counts = applied([ReplaceAttention()], masked(FORMS[name]), q=Q, k=K, v=V)
    assert counts == [1]
    counted = calls(traced)
    assert counted["scaled_dot_product_attention"] == 1
    assert not counted.keys() & {"softmax", "matmul", "baddbmm", "masked_fill", "where", "dropout"}


OTHERS = {
    "other dim": lambda self, q, k, v: (q @ k.mT).softmax(-2) @ v,
    "weights returned": lambda self, q, k, v: ((w := (q @ k.mT).softmax(-1)) @ v, w),
    "scaled after the mask": lambda self, q, k, v: ((q @ k.mT + self.added) * 2).softmax(-1) @ v,
    "finite fill": lambda self, q, k, v: (q @ k.mT).masked_fill(self.hidden, -2.0).softmax(-1) @ v,
    "mask of another dtype": lambda self, q, k, v: (q @ k.mT + self.added.float()).softmax(-1) @ v,
    "heads broadcast": lambda self, q, k, v: (q @ k[:, :1].mT).softmax(-1) @ v[:, :1],
    "scaled by a tensor": lambda self, q, k, v: (q @ k.mT * q.mean()).softmax(-1) @ v,
    "two dims": lambda self, q, k, v: (q[0, 0] @ k[0, 0].mT).softmax(-1) @ v[0, 0],
    "a bool is added": lambda self, q, k, v: (q @ k.mT + self.hidden).softmax(-1) @ v,
    "scores become integers": lambda self, q, k, v: (q @ k.mT).to(torch.int64).double().softmax(-1) @ v,
    "weights of 8 bits": lambda self, q, k, v: (q @ k.mT).softmax(-1).to(torch.float8_e4m3fn).double() @ v,
    "turned around": lambda self, q, k, v: ((q * -0.3) @ k.mT).softmax(-1) @ v,
    "written queries": lambda self, q, k, v: ((w := q * 1), (s := w @ k.mT), w[0].mul_(2), s.softmax(-1) @ v)[::3],
    "active dropout": lambda self, q, k, v: F.dropout((q @ k.mT).softmax(-1), 1.0, training=True) @ v,
    "a mask that widens": lambda self, q, k, v: (q[:1] @ k[:1].mT + self.added).softmax(-1) @ v[:1],
}


@pytest.mark.parametrize(
    ("forward", "inputs", "stays"),
    [
        # Keys that come transposed are transposed back, those of equal dims where the code does.
        (lambda self, q, k, v: (q @ k).softmax(-1) @ v, (Q, K.mT.contiguous(), V), {"transpose": 1}),
        (
            lambda self, q, k, v: (q @ k.transpose(1, 2)).softmax(-1) @ v,
            [normal(4, 4, 4, 4, seed=seed) for seed in range(3)],
            {"transpose": 2},
        ),
        # A factor makes floats of integers.
        (lambda self, q, k, v: ((q * 0.3) @ k.mT).softmax(-1) @ v, ((9 * Q).long(), K.float(), V.float()), {"mul": 1}),
    ],
)
def test_what_the_kernel_does_not_do_stays(forward, inputs, stays):
    traced, counts = applied([ReplaceAttention()], Net(forward), 1e-6, **dict(zip("qkv", inputs, strict=True)))
    assert (counts, {name: calls(traced)[name] for name in stays}) == ([1], stays)


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_are_kept(name):
    assert applied([ReplaceAttention()], masked(OTHERS[name]), q=Q, k=K, v=V)[1] == [0]


def attention(mask):
    return Net(lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, scale=0.3), mask=mask)


TRIANGLE = torch.ones(7, 7, dtype=torch.bool).tril()
NEARLY = TRIANGLE.clone()
NEARLY[2, 4] = True


def filled(value):
    return torch.zeros(7, 7).double().masked_fill(~TRIANGLE, value)


@pytest.mark.parametrize(
    ("mask", "kept"),
    [
        (TRIANGLE.expand(2, 1, 7, 7), "is_causal"),
        (filled(-math.inf)[None, None], "is_causal"),
        (filled(torch.finfo(torch.float64).min), "is_causal"),
        (torch.ones(7, 7, dtype=torch.bool), None),
        (torch.zeros(1, 1, 1, 7).double(), None),
    ],
)
def test_causal_and_empty_masks_become_arguments(mask, kept):
    traced, counts = applied([SimplifyMasks()], attention(mask), q=normal(2, 3, 7, 4), k=K, v=V)
    assert counts == [1]
    (node,) = traced.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
    assert node.kwargs == {"scale": 0.3} | ({kept: True} if kept else {})


@pytest.mark.parametrize(
    "mask",
    [NEARLY, TRIANGLE.mT, TRIANGLE.double(), filled(-1e4), torch.stack((TRIANGLE, NEARLY)).unsqueeze(1)],
    ids=["one more", "above", "ones are added", "not low enough", "one of two"],
)
def test_other_masks_are_kept(mask):
    assert applied([SimplifyMasks()], attention(mask.clone()), q=normal(2, 3, 7, 4), k=K, v=V)[1] == [0]


def test_a_computed_causal_mask_becomes_is_causal():
    def forward(self, q, k, v):
        mask = torch.full((7, 7), -math.inf, dtype=q.dtype).triu(1)
        return (q @ k.mT / 2 + mask).softmax(-1) @ v

    passes = [FoldConstants(), ReplaceAttention(), SimplifyMasks()]
    traced, counts = applied(passes, Net(forward), q=normal(2, 3, 7, 4), k=K, v=V)
    assert counts == [2, 1, 1]
    assert calls(traced) == {"scaled_dot_product_attention": 1}
