"""Which options a `_target_` takes, how a wrong one is said, and which errors are those of the device."""

import functools
from typing import Any, NotRequired, TypedDict, Unpack

import pytest
import torch
from torch import nn

from profiling.components.instantiate import (
    accepted_names,
    instantiate,
    is_device_failure,
    is_out_of_memory,
    partial_of,
)
from profiling.errors import InputError


class Options(TypedDict):
    generator: torch.Generator
    scale: NotRequired[float]


def typed(module, *, batch, **options: Unpack[Options]):
    return batch, options


@torch.no_grad()
def decorated(module, *, batch, **options: "Unpack[Options]"):
    return batch, options


def for_type_checkers(module, batch: "NotDefinedHere"):  # noqa: F821
    return batch


def anything(module, **options: Any):
    return options


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


class Cache:
    """Takes a config first, and any options, as caches of a library do."""

    def __init__(self, config, length, **options):
        self.config = config


def raises_itself():
    error = RuntimeError("planted")
    raise error from error


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (typed, ("module", "batch", "generator", "scale")),
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
        (node(typed, batch=2, generator=None), "^here.generator: .* by this tool. Remove the key"),
        (node(anything, inner=node(Net, widht=3)), r"^here\.inner\.widht: .*Did you mean 'width'"),
        (node(anything, parts=[1, node(Net, widht=3)]), r"^here\.parts\[1\]\.widht: "),
        (node(Cache, config={"_target_": "builtins.dict"}), r"^here\.config: .*Cache is called with the module in the"),
    ],
)
def test_a_wrong_option_is_named_before_the_call(options, says):
    with pytest.raises(InputError, match=says):
        partial_of(options, "here", given=("generator",), positional=1)


def test_a_function_of_any_options_gets_all_of_them():
    made = partial_of(node(anything, bach=2, _class_name="x"), "here", given=("generator",), positional=1)
    assert made(None, generator=1) == {"bach": 2, "_class_name": "x", "generator": 1}
    assert instantiate(node(explicit_behind_a_decorator, module=1, batch=2, extra=3), "here") == (3, 2)


@pytest.mark.parametrize(
    ("inner", "says"),
    [
        ({"_target_": f"{__name__}.anythin"}, r"has no 'anythin'. Did you mean 'anything'"),
        (node(anything), "needs the argument module. Add module: VALUE, or _partial_: true"),
        ({"_target_": "nowhere.f"}, "nowhere.f: there is no module 'nowhere'"),
    ],
)
def test_what_is_wrong_with_a_node_in_a_list_names_that_node(inner, says):
    recipe = {"_target_": "profiling.variants.recipe.Recipe", "transforms": [{"_target_": "torch.nn.Identity"}, inner]}
    with pytest.raises(InputError, match=rf"^variant.mine.transforms\[1\]: .*{says}"):
        instantiate(recipe, "variant.mine")
    recipe["transforms"][1] = node(anything, _partial_=True, rank=3)
    assert instantiate(recipe, "variant.mine").transforms[1].keywords == {"rank": 3}


def test_an_error_that_was_raised_from_itself():
    with pytest.raises(InputError, match=r"^here: .*raises_itself: RuntimeError: planted") as raised:
        instantiate(node(raises_itself), "here")
    assert not is_out_of_memory(raised.value.__cause__)


def wrapped(error):
    """Return what a compiler makes of an error of its own."""
    outer = ValueError("backend='inductor' raised")
    outer.__cause__ = error
    return outer


OUT_OF_MEMORY = {
    "torch": torch.OutOfMemoryError("no room"),
    "Python": MemoryError(),
    "system": OSError(12, "Cannot allocate memory"),
    "C++": RuntimeError("std::bad_alloc"),
    "driver": torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be reported later"),
    "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cuDNN": RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    "CPU": RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried …"),
    "CPU, Windows": RuntimeError("[enforce fail at alloc_cpu.cpp:83] DefaultCPUAllocator: not enough memory: …"),
    "compiler": wrapped(RuntimeError("CUDA error: out of memory")),
}


def test_out_of_memory_in_the_words_of_each_library():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    for error in (*OUT_OF_MEMORY.values(), raised.value):
        assert is_out_of_memory(error), error
        assert is_device_failure(error), error
    for other in (
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`",
        "out of resource: shared memory, Required: 262144, Hardware limit: 232448",
    ):
        assert not is_out_of_memory(RuntimeError(other)), other
