"""The recipes that steps make together."""

import pytest
from planted_recipes import space_of
from test_conf import composed

from profiling.cli.groups import step_nodes
from profiling.components.instantiate import instantiate
from profiling.run.job import as_recipe
from profiling.tune.__main__ import checked
from profiling.tune.space import Space
from profiling.variants.recipe import Recipe
from profiling.variants.steps import read_steps


def test_recipes_of_the_shipped_steps_can_be_made_and_merge_them_in_their_order():
    config, space, _ = checked(composed("component=[image_decoder]", target="tune"))
    assert len(config.variants) == 1 + len(space.steps)
    for name, node in config.variants.items():
        assert isinstance(instantiate(as_recipe(node), name), Recipe)
    chosen = frozenset(("cuda_graph", "compile", "pdl", "channels_last", "freezing"))
    assert space.name(chosen) == "channels_last+compile+freezing+pdl+cuda_graph"
    assert space.chosen(space.name(chosen)) == chosen
    exact = {each for each, step in space.steps.items() if step.kind == "transform" and step.rules.tolerance is None}
    assert space.together() == exact | {"compile", "cuda_graph"}, "they fit together, also in the name of a file"


def test_a_search_tries_all_steps_but_those_that_say_that_they_are_not_to_be_searched():
    _, space, left_out = checked(composed("component=[image_decoder]", "max_rel_l2=0.1", target="tune"))
    every = read_steps(step_nodes())
    assert left_out == {}
    assert every.keys() - space.steps.keys() == {"tensorrt", "aot_tensorrt", "inductor_graphs", "tensorrt_graphs"}
    assert list(space.steps) == [name for name in every if name in space.steps], "in the order of their YAML"
    own = {"mine": {"_target_": "a"}, "asked": {"_target_": "a", "rules": {"search": False}}}
    assert Space.of(read_steps({**step_nodes(), **own}), None, 0.1).steps.keys() == {*space.steps, "mine"}
    assert list(Space.of(read_steps(own), ["asked"], None).steps) == ["asked"]


def test_options_of_steps_are_part_of_the_config_that_a_resumed_search_must_have():
    plain, other = (
        checked(composed("component=[image_decoder]", "steps=[compile]", *more, target="tune"))[0].source
        for more in ((), ("step.compile.dynamic=true",))
    )
    assert plain["variant"].keys() == other["variant"].keys() == {"baseline", "compile"}
    assert plain["variant"]["compile"] != other["variant"]["compile"]


def test_neighbours_have_one_step_more_or_an_alternative():
    rules = {"a": {"group": "g"}, "b": {"group": "g"}, "d": {"needs": ["a"]}}
    space = space_of("a", "b", "c", "d", **rules)
    names = lambda chosen: sorted(map(space.name, space.neighbours(frozenset(chosen))))  # noqa: E731
    assert names("") == ["a", "b", "c"]
    assert names("a") == ["a+c", "a+d", "b"]
    assert names("acd") == ["b+c"], "without a, d does nothing"
    assert {step: space.name(each) for step, each in space.without_each(frozenset("acd")).items()} == {
        "a": "c",
        "c": "a+d",
        "d": "a+c",
    }


def test_alternatives_are_divided_among_searches_side_by_side():
    compilers = {name: {"kind": "compiler", "group": "c", "seconds": 30.0} for name in ("one", "two", "three")}
    layouts = {name: {"group": "l"} for name in ("left", "right")}
    space = space_of("a", *layouts, *compilers, "option", **layouts, **compilers, option={"needs": ["two"]})
    shares = lambda number: ["+".join(each.steps) for each in space.shares(number)]  # noqa: E731
    assert shares(1) == ["+".join(space.steps)]
    assert shares(2) == ["a+left+right+one+three", "a+left+right+option+two"], "those that take longest are divided"
    assert shares(4) == ["a+left+one", "a+right+one", "a+left+right+option+two", "a+left+right+three"]
    assert len(shares(9)) == 6, "there are no more combinations"
    assert len(space_of("a", "b").shares(2)) == 1


def test_an_inexact_step_needs_a_limit_which_becomes_the_tolerance():
    steps = read_steps({"int8": {"_target_": "q", "rules": {"tolerance": 0.1}}, "b": {"_target_": "c"}})
    assert "max_rel_l2=0.03" in Space.of(steps, ["int8", "b"], None).excluded()["int8"]
    space = Space.of(steps, ["int8", "b"], 0.05)
    assert space.excluded() == {}
    assert space.recipe(frozenset(("int8", "b")))["tolerance"] == 0.05
    assert space.recipe(frozenset("b"))["tolerance"] is None


@pytest.mark.parametrize(("others", "near"), [({}, ""), ({"compile": {"_target_": "c"}}, ". Did you mean 'compile'?")])
def test_why_an_option_without_its_compiler_is_left_out(others, near):
    nodes = {"option": {"options": {"freezing": True}, "rules": {"needs": ["compiler"]}}, **others}
    space = Space.of(read_steps(nodes), [*nodes], None)
    assert space.excluded() == {"option": f"needs compiler, which is not among the steps{near}"}


def test_seconds_are_scaled_by_what_was_measured_for_the_step_or_its_kind():
    compilers = {"slow": {"kind": "compiler", "seconds": 30.0}, "slower": {"kind": "compiler", "seconds": 60.0}}
    rules = {"a": {"seconds": 2.0}, "b": {"seconds": 1.0}, **compilers}
    space = space_of(*rules, **rules)
    both = frozenset({"a", "slow"})
    assert space.seconds(both, {}) == 32.0
    assert space.seconds(both, {}, 0.25) == 8.0
    assert space.seconds(both, {frozenset("a"): 1.0}, 0.25) == 1.0 + 7.5, "a transform says nothing of compilers"
    measured = {both: 16.0}
    assert space.seconds(frozenset({"slow", "slower"}), measured) == 45.0
    assert space.seconds(frozenset("b"), measured) == 0.5
