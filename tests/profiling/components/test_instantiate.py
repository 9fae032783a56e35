"""Which options a `_target_` takes, and how a wrong one is said."""

import functools
from typing import Any, NotRequired, TypedDict, Unpack

import pytest
import torch
from torch import nn

from profiling.components.instantiate import accepted_names, instantiate, partial_of
from profiling.errors import InputError


class Options(TypedDict):
    generator: torch.Generator
    scale: NotRequired[float]


def typed(module, *, batch, **options: Unpack[Options]):
    return batch, options


def quoted(module, *, batch, **options: "Unpack[Options]"):
    return batch, options


def for_type_checkers(module, batch: "NotDefinedHere"):  # noqa: F821
    return batch


def anything(module, **options: Any):
    return options


@torch.no_grad()
def decorated(module, *, batch, **options: Unpack[Options]):
    return batch, options


def takes_more(function):
    @functools.wraps(function)
    def call(*args, extra=0, **kwargs):
        return extra, function(*args, **kwargs)

    return call


@takes_more
def explicit_behind_a_decorator(module, batch):
    return batch


class Net(nn.Module):
    def __init__(self, width: int = 8, inner: Any = None) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (typed, ("module", "batch", "generator", "scale")),
        (quoted, ("module", "batch", "generator", "scale")),
        (decorated, ("module", "batch", "generator", "scale")),
        (for_type_checkers, ("module", "batch")),
        (Net, ("width", "inner")),
        (anything, None),
        (explicit_behind_a_decorator, None),
        (dict, None),
    ],
)
def test_the_options_of_a_target(target, names):
    assert accepted_names(target) == names


def node(target: Any, **options: Any) -> dict[str, Any]:
    return {"_target_": f"{__name__}.{target.__qualname__}", **options}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (node(typed, bach=2), r"^here\.bach: .*no option 'bach'\. Did you mean 'batch'\? It takes batch, scale\.$"),
        (node(decorated, batch=2, scael=1), "Did you mean 'scale'"),
        (node(typed, batch=2, generator=None), "^here.generator: .* by this tool. Remove the key"),
        (node(anything, generator=None), "by this tool"),
        (node(anything, inner=node(Net, widht=3)), r"^here\.inner\.widht: .*Did you mean 'width'"),
        (node(anything, parts=[1, node(Net, widht=3)]), r"^here\.parts\[1\]\.widht: "),
    ],
)
def test_a_wrong_option_is_named_before_the_call(options, says):
    with pytest.raises(InputError, match=says):
        partial_of(options, "here", given=("generator",), positional=1)


def test_a_function_of_any_options_gets_all_of_them():
    made = partial_of(node(anything, bach=2, _class_name="x"), "here", given=("generator",), positional=1)
    assert made(None, generator=1) == {"bach": 2, "_class_name": "x", "generator": 1}
    assert instantiate(node(explicit_behind_a_decorator, module=1, batch=2, extra=3), "here") == (3, 2)


def _to_be_called(module, rank=2):
    return module


@pytest.mark.parametrize(
    ("inner", "says"),
    [
        ({"_target_": f"{__name__}._to_be_calld"}, r"has no '_to_be_calld'. Did you mean '_to_be_called'"),
        ({"_target_": f"{__name__}._to_be_called"}, "needs the argument module. Add module: VALUE, or _partial_: true"),
        ({"_target_": "nowhere.f"}, "nowhere.f: there is no module 'nowhere'"),
    ],
)
def test_what_is_wrong_with_a_node_in_a_list_names_that_node(inner, says):
    node = {"_target_": "profiling.variants.recipe.Recipe", "transforms": [{"_target_": "torch.nn.Identity"}, inner]}
    with pytest.raises(InputError, match=rf"^variant.mine.transforms\[1\]: .*{says}"):
        instantiate(node, "variant.mine")
    node["transforms"][1] = {"_target_": f"{__name__}._to_be_called", "_partial_": True, "rank": 3}
    assert instantiate(node, "variant.mine").transforms[1].keywords == {"rank": 3}
