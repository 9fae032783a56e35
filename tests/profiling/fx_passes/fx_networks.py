"""The comparison that each test of a pass makes."""

from collections import Counter
from dataclasses import replace
from unittest.mock import Mock, patch

import torch

from profiling.components.outputs import mismatch, to_host
from profiling.components.trees import tensors_in
from profiling.fx_passes import nodes
from profiling.fx_passes.nodes import propagate
from profiling.fx_passes.tracer import trace


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def f32(*shape):
    return normal(*shape, seed=1, dtype=torch.float32)


def applied(passes, module, tolerance=1e-10, **inputs):
    """Apply passes, check the output against eager on these inputs and on others, return module and counts.

    What is known of nodes from fake tensors is compared with what a real run shows.
    """
    module = module.eval()
    traced, counts = trace(module, inputs), []
    for each in passes:
        traced = each(traced)
        counts.append(traced.meta["replaced"])
        propagate(traced, inputs)
        traced.graph.lint()
    assert_as_a_real_run_shows(traced, inputs)
    others = {name: x.flip(-1) for name, x in inputs.items()}
    with torch.no_grad():
        for given in (inputs, others):
            assert_same(traced(**given), module(**given), tolerance)
    return traced, counts


def assert_as_a_real_run_shows(traced, inputs):
    """Fake tensors suffice, and nodes have the info that a run on real tensors writes, whatever ids memory has."""
    known = described(traced, inputs)
    with patch.object(nodes, "FakeTensorMode", side_effect=RuntimeError("no fake tensors")) as without:
        assert described(traced, inputs) == known
    assert without.called


def described(traced, inputs):
    """Return what is known of each node; strides only where they count, which padding one batch ignores."""
    with patch.object(nodes, "_LOG") as log:
        propagate(traced, inputs)
    assert log.debug.called == isinstance(nodes.FakeTensorMode, Mock)
    numbers, rows = {0: 0}, []
    for node in traced.graph.nodes:
        families = [numbers.setdefault(each, len(numbers)) for each in node.meta["families"]]
        written = sorted(numbers[each] for each in node.meta["written"])
        if info := node.meta["info"]:
            stride = [size > 1 and step for size, step in zip(info.shape, info.stride, strict=True)]
            info = replace(info, family=None, stride=None if "pad" in node.name and info.shape[0] == 1 else stride)
        rows.append((node.name, info, families, written, node.meta["is_written"], node.meta["random"]))
    return rows


def assert_same(output, reference, tolerance):
    assert mismatch(to_host(output=output), to_host(output=reference)) is None
    for actual, expected in zip(tensors_in(output), tensors_in(reference), strict=True):
        assert (actual.double() - expected.double()).norm() <= tolerance * expected.double().norm()


def assert_as_exact_in_bfloat16(a_pass, module, x):
    """Check that the pass leaves an error of at most twice the library's, against float64."""
    x = x.bfloat16()
    expected = module.bfloat16().double()(x=x.double()).detach()
    module.bfloat16()
    traced, counts = applied([a_pass], module, 1e-2, x=x)
    own, library = (float((each.double() - expected).norm()) for each in (traced(x=x), module(x=x)))
    assert (counts, traced(x=x).dtype) == ([1], torch.bfloat16)
    assert own < 2 * library


def calls(traced):
    """Count a graph's calls by the name of what is called."""
    return Counter(getattr(n.target, "__name__", n.target) for n in traced.graph.nodes if n.op.startswith("call"))
