"""State under CUDA graphs: restored at its address, and named where a graph cannot follow it."""

import pytest

pytestmark = pytest.mark.gpu


def run(profile, kind):
    module = f"+component.steps.module={{_target_: stateful_nets.Steps, kind: {kind}}}"
    inputs = "+component.steps.inputs={x: {shape: [2, 8]}}"
    return profile("component=[]", module, inputs, "device=cuda", "variant=[baseline,cuda_graph,compile+cuda_graph]")


def test_a_cache_that_the_first_call_makes(profile):
    done = run(profile, "cache")
    assert done.code == 0, done.out + done.err
    assert {record.status for record in done.records.values()} == {"ok"}


def test_a_hidden_state_that_each_call_assigns(profile):
    records = run(profile, "hidden").records
    assert records["steps", "baseline"].status == "ok"
    refused = records["steps", "cuda_graph"]
    assert refused.status == "skipped"
    assert "`hidden` is assigned anew by each call, and a later call reads it" in (refused.reason or "")
