"""Expressions of steps, and the recipes that they stand for."""

import pytest

from profiling.cli.groups import named_recipes, short_names, step_nodes
from profiling.errors import InputError
from profiling.results.record import BASELINE
from profiling.variants.steps import parse, read_steps, recipe

SHIPPED = read_steps(step_nodes())


def test_steps_are_applied_in_the_order_of_their_kinds_and_transforms_as_written():
    written = "compile+cuda_graph+pdl+int8_weights"
    assert "+".join(parse(written, SHIPPED)) == "int8_weights+compile+pdl+cuda_graph"
    for written in ("fx_passes+channels_last", "channels_last+fx_passes"):
        assert "+".join(parse(written, SHIPPED)) == written
    assert parse(BASELINE, SHIPPED) == ()
    assert recipe((), SHIPPED) == {"transforms": [], "names": [], "compiler": None, "capture": None, "tolerance": None}


def test_options_are_merged_into_the_compiler_and_the_largest_tolerance_counts():
    steps = read_steps(step_nodes() | {"rough": {"_target_": "my.rough", "rules": {"tolerance": 0.3}}})
    made = recipe(parse("rough+int8_weights+compile+pdl+max_autotune", steps), steps)
    assert [each["_target_"] for each in made["transforms"]] == ["my.rough", "profiling.variants.quantize.Quantize"]
    assert made["compiler"]["options"] == {"triton.enable_pdl": True, "max_autotune": True}
    assert all("rules" not in each for each in (*made["transforms"], made["compiler"]))
    assert (made["names"], made["capture"], made["tolerance"]) == (["rough", "int8_weights"], None, 0.3)


def test_a_short_name_is_its_expression():
    for short, written in short_names().items():
        assert [*named_recipes([short])] == [*named_recipes([written])] == [written], "they are written in order"


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("compile+cuda_grph", "there is no step 'cuda_grph'. Did you mean 'cuda_graph'"),
        ("compile+compile", "the step compile twice"),
        ("compile+regional", "compile and regional exclude each other"),
        ("compile+cuda_graph+inductor_graphs", "cuda_graph and inductor_graphs exclude each other"),
        ("freezing+compile", "freezing needs aot_inductor. Write aot_inductor+freezing"),
        ("", "there is no step ''"),
    ],
)
def test_steps_that_do_not_fit_are_refused_by_name(written, says):
    with pytest.raises(InputError) as refused:
        parse(written, SHIPPED)
    assert says in str(refused.value)


def test_two_captures_without_a_group_are_refused():
    steps = read_steps({name: {"_target_": name, "rules": {"kind": "capture"}} for name in "ab"})
    with pytest.raises(InputError, match="a and b are both a capture"):
        parse("a+b", steps)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ({"a": {"rules": {"seconds": 1}}}, "changes nothing"),
        ({"a+b": {"_target_": "c"}}, "Rename the step"),
        ({"a": {"_target_": "c", "rules": {"secnds": 1}}}, "step.a.rules.secnds is unknown"),
        ({"a": {"_target_": "c", "rules": {"seconds": -1}}}, "step.a.rules.seconds"),
        ({"a": {"_target_": "c", "rules": {"tolerance": -1}}}, "step.a.rules.tolerance"),
        ({"a": {"_target_": "c", "rules": {"device": "gpu"}}}, "step.a.rules.device"),
        ({"a": {"_target_": "c", "rules": {"kind": "option"}}}, "Remove its _target_"),
        ({"a": {"x": 1, "rules": {"kind": "capture"}}}, "Give it a _target_"),
        ({"a": {"options": {}}}, "or name that compiler: rules: {needs: [compile]}"),
        ({"a": {"_target_": "c", "rules": {"needs": ["a"]}}}, "a needs a. Take one"),
        (
            {name: {"_target_": "c", "rules": {"needs": [{"a": "b", "b": "a"}[name]]}} for name in "ab"},
            "a needs b needs a",
        ),
    ],
)
def test_a_step_that_is_none_is_refused(nodes, says):
    with pytest.raises(InputError) as refused:
        read_steps(nodes)
    assert says in str(refused.value)
