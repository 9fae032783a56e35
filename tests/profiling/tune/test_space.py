"""The recipes that steps make together."""

from contextlib import nullcontext, suppress

import pytest
from planted_recipes import space_of
from test_conf import composed

from profiling.components.instantiate import instantiate
from profiling.errors import InputError
from profiling.run.job import as_recipe
from profiling.tune.__main__ import checked
from profiling.tune.space import Space
from profiling.variants.recipe import Recipe


def shipped(*overrides):
    return checked(composed("component=[image_decoder]", *overrides, target="tune"))


def test_a_recipe_merges_its_steps_in_their_order():
    _, space = shipped()
    chosen = frozenset(("cuda_graph", "compile", "pdl", "channels_last", "freezing"))
    assert space.name(chosen) == "channels_last+compile+freezing+pdl+cuda_graph"
    recipe = space.recipe(chosen)
    assert [each["_target_"] for each in recipe["transforms"]] == ["profiling.variants.transforms.ChannelsLast"]
    assert recipe["compiler"]["options"] == {"freezing": True, "triton.enable_pdl": True}
    assert recipe["capture"]["warmup"] == 3
    assert space.chosen(space.name(chosen)) == chosen


def test_every_shipped_recipe_that_is_probed_can_be_made():
    config, _ = shipped()
    assert len(config.variants) > 30
    for name, node in config.variants.items():
        with suppress(InputError) if name in config.refusable else nullcontext():
            assert isinstance(instantiate(as_recipe(node), name), Recipe)


def test_neighbours_have_one_step_more_or_an_alternative():
    space = space_of("a", "b", "c", "d", a={"group": "g"}, b={"group": "g"}, d={"needs": ["a"]})
    names = lambda chosen: sorted(map(space.name, space.neighbours(frozenset(chosen))))  # noqa: E731
    assert names("") == ["a", "b", "c"]
    assert names("a") == ["a+c", "a+d", "b"]
    assert names("acd") == ["b+c"], "without a, d does nothing"
    assert {step: space.name(each) for step, each in space.without_each(frozenset("acd")).items()} == {
        "a": "c",
        "c": "a+d",
        "d": "a+c",
    }


def test_pairs_that_refuse_each_other_are_in_no_recipe():
    space = space_of("a", "b", "c")
    apart = Space(space.steps, apart=frozenset([frozenset("ab")]))
    assert sorted(map(apart.name, apart.neighbours(frozenset("a")))) == ["a+c"]
    assert sorted(map(apart.name, apart.neighbours(frozenset("c")))) == ["a+c", "b+c"]


def test_an_inexact_step_needs_a_limit_which_becomes_the_tolerance():
    nodes = {"int8": {"transforms": [{"_target_": "q"}], "inexact": True}, "b": {"capture": {"_target_": "c"}}}
    assert "max_rel_l2=0.03" in Space.read(nodes, None).excluded()["int8"]
    space = Space.read(nodes, 0.05)
    assert space.excluded() == {}
    assert space.recipe(frozenset(("int8", "b")))["tolerance"] == 0.05
    assert space.recipe(frozenset("b"))["tolerance"] is None


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ({}, "leaves nothing to search"),
        ({"a": {"seconds": 1}}, "changes nothing"),
        ({"a+b": {"capture": {"_target_": "c"}}}, "Rename the step"),
        ({"a": {"captures": {}}}, "step.a.captures is unknown"),
        ({"a": {"capture": {"_target_": "c"}, "seconds": -1}}, "step.a.seconds"),
        ({"a": {"capture": {"_target_": "c"}, "device": "gpu"}}, "device=gpu: must be cuda, cpu or null"),
        ({"a": {"capture": {"_target_": "c"}, "needs": ["a"]}}, "a needs a. Take one"),
        (
            {name: {"capture": {"_target_": "c"}, "needs": [{"a": "b", "b": "a"}[name]]} for name in "ab"},
            "a needs b needs a",
        ),
    ],
)
def test_a_step_that_is_none_is_refused(nodes, says):
    with pytest.raises(InputError, match=says.replace("+", r"\+")):
        Space.read(nodes, None)


def test_why_a_step_is_left_out_has_no_end_of_its_own():
    nodes = {"option": {"compiler": {"options": {"freezing": True}}, "needs": ["compiler"]}}
    assert Space.read(nodes, None).excluded() == {"option": "needs compiler, which is not among the steps"}
    near = {**nodes, "compile": {"compiler": {"_target_": "c"}}}
    assert Space.read(near, None).excluded()["option"].endswith("among the steps. Did you mean 'compile'?")


def test_seconds_are_scaled_by_what_was_measured_for_the_step_or_its_kind():
    space = space_of(
        "a",
        "b",
        "slow",
        "slower",
        **{
            "a": {"seconds": 2.0},
            "b": {"seconds": 1.0},
            "slow": {"compiler": {"_target_": "c"}, "seconds": 30.0},
            "slower": {"compiler": {"options": {"x": 1}}, "seconds": 60.0},
        },
    )
    both = frozenset({"a", "slow"})
    assert space.seconds(both, {}) == 32.0
    assert space.seconds(both, {}, 0.25) == 8.0
    assert space.seconds(both, {frozenset("a"): 1.0}, 0.25) == 1.0 + 7.5, (
        "what a transform takes says nothing of compilers"
    )
    measured = {both: 16.0}
    assert space.seconds(frozenset({"slow", "slower"}), measured) == 45.0
    assert space.seconds(frozenset("b"), measured) == 0.5
