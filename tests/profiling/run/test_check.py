"""check=true: what it says of a call, in every target, and that it times nothing."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from as_user import OUTSIDE, outcome_of
from fixed_component import Net
from playing import component_of
from torch import nn

from profiling.components.trajectory import learn
from profiling.run.check import check_call

CPU = ("device=cpu", "threads=1", "isolation=none")


@pytest.fixture
def check(tmp_path):
    return partial(outcome_of, tmp_path / "run", "check=true", quick=CPU)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """A check of several components at once."""
    folder = tmp_path_factory.mktemp("check")
    words = ("component=[counts,net,position,passed,assigns_state]", "variant=[baseline,compile]", "check=true")
    outcome = outcome_of(folder / "run", *words, quick=CPU)
    assert outcome.code == 0, outcome.err
    assert len(outcome.records) == 5, "one for all variants"
    return outcome


def call_of(outcome, name):
    return outcome.records[name, "check"].check.calls[name]


def says(outcome, *sentences):
    text = " ".join(outcome.out.split())
    for sentence in sentences:
        assert sentence in text


def test_a_component(outcome):
    record = outcome.records["counts", "check"]
    assert (record.metrics.wall_ms, record.prepare) == (None, None)
    call = call_of(outcome, "counts")
    (given,) = call.inputs
    assert (given.path, given.dtype, given.shape, given.device) == ("x", "float32", (16, 8), "cpu")
    assert [each.dtype for each in call.outputs] == ["float32"]
    assert (call.parameter_bytes, call.parameter_dtypes) == (288, {"float32": 72})
    assert {each.path: each.changed for each in call.state} == {"calls": True, "scale": False}
    assert call.captured is None
    code = (OUTSIDE / "faulty_modules.py").read_text().splitlines()
    line = next(number for number, text in enumerate(code, 1) if "[x[:" in text)
    assert {(each.hinders, each.line) for each in call.obstacles} == {("cuda_graph", line), ("compile", line)}
    says(outcome, "72 float32", "a call changes calls.", f"faulty_modules.py:{line}", "nothing was timed")
    assert "Answer" not in outcome.out


def test_a_component_that_can_be_captured(outcome):
    call = call_of(outcome, "net")
    assert call.obstacles == ()
    says(outcome, "no capture can be tried here", "one call is 1 graph, without a break")
    assert {each.path for each in call.outputs} == {"answer.picture", "answer.score", "hidden.0", "hidden.1.0"}


def test_state_that_is_assigned_and_a_module_that_is_not_compiled(outcome):
    call = call_of(outcome, "assigns_state")
    assert {each.path: (each.shape, each.changed) for each in call.state} == {"hidden": ((1, 1, 8), True)}
    assert [each.hinders for each in call.obstacles] == ["cuda_graph", "compile"]
    assert call.compiled_graphs == 0
    says(outcome, "a call changes hidden.", "`hidden` is assigned anew by each call")
    says(outcome, "LSTM (measure it with cuda_graph)")


def test_what_calls_change_is_printed(outcome):
    says(
        outcome,
        "`pos` 1 → 2 → 3 → 4 → …: torch.compile may compile once a value; a CUDA graph freezes it",
        "inputs that the call writes to (state: carried over from call to call): inputs['cache']",
        "weights that the call writes to: layer.weight",
    )
    call = call_of(outcome, "position")
    (obstacle,) = call.obstacles
    assert obstacle.hinders == "cuda_graph"
    assert obstacle.reason.startswith("`pos` is a Python number that each call changes (1 → 2")
    assert "self.pos.add_(1)" in obstacle.advice
    assert (call.calls, call.warm_calls) == (8, 1)


def checked(module, **others):
    def make(generator):
        return {"x": torch.randn(4, 8, generator=generator), **others}

    component = component_of(module, make)
    with torch.inference_mode():
        learn(component)
        return check_call(component)


def test_the_state_of_a_cache_among_the_inputs_is_listed_and_each_tensor_once():
    def forward(self, x, cache):
        cache.rows.add_(x)
        return cache.rows * self.scale + cache.at

    cache = SimpleNamespace(rows=torch.zeros(4, 8), at=torch.zeros(()))
    call = checked(Net(forward, scale=torch.ones(())), cache=cache)
    paths = {"scale": False, "inputs['cache'].rows": True, "inputs['cache'].at": False}
    assert [(each.path, each.changed) for each in call.state] == [*paths.items()]
    assert [each.path for each in call.inputs] == ["x", "cache"]


def routed(self, x):
    """Send rows to experts in a loop, by values: Dynamo breaks its graph there and gives up the function."""
    out = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        rows = (x.argmax(-1) % 2 == number).nonzero().squeeze(-1)
        out.index_copy_(0, rows, expert(x[rows]))
    return out


def test_a_function_that_dynamo_leaves_eager_names_the_graph_break():
    call = checked(Net(routed, experts=nn.ModuleList(nn.Linear(8, 8) for _ in range(2))))
    (reason,) = [each.reason for each in call.obstacles if each.hinders == "compile"]
    assert "nonzero" in reason
    assert reason.endswith("; in a loop, so Dynamo leaves the whole function eager")


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_sparse_buffer():
    """It has no address of its own."""
    call = checked(Net(lambda self, x: self.edges @ x, edges=torch.eye(4).to_sparse_csr()))
    assert [(each.path, each.shape, each.changed) for each in call.state] == [("edges", (4, 4), False)]
    (obstacle,) = call.obstacles
    assert (obstacle.hinders, "sparse" in obstacle.reason) == ("compile", True)


def test_a_pipeline_stage_by_stage(check):
    outcome = check("pipeline=mine", target="realtime")
    assert outcome.code == 0, outcome.err
    (record,) = outcome.records.values()
    assert list(record.check.calls) == ["first", "second"]
    assert record.realtime is None


def test_a_training_step(check):
    outcome = check("component=[resnet50_training]", "scale=tiny", target="training_step")
    assert outcome.code == 0, outcome.err
    (record,) = outcome.records.values()
    (call,) = record.check.calls.values()
    assert [each.shape for each in call.outputs] == [()]
    assert [each.hinders for each in call.obstacles] == ["compile"]  # the backward pass


def test_every_point_of_a_sweep(check):
    outcome = check("component=[net]", "values=[1,2]", "together=false", target="shape_sweep")
    calls = [record.check.calls[name] for (name, _), record in outcome.records.items()]
    assert [call.inputs[0].shape for call in calls] == [(1, 8), (2, 8)]
