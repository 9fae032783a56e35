"""The dtypes of a module: the cast for a run, what stays in float32, autocast, and the forms of the reference."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode

from profiling.components.trees import map_tensors
from profiling.errors import InputError

#: How a module is called: as the run does; all of it in float32; or with its weights in the run's dtype, each of which
#: is widened to float32 for the operation that reads it, so that no float32 copy of the module is needed.
Form = Literal["run", "float32", "upcast"]

#: Half-precision dtypes, which a reference computes in float32.
HALF = (torch.bfloat16, torch.float16)
#: Dtypes that a cast changes; float8 and integers of quantised weights are not numbers to be rounded.
_CAST = (*HALF, torch.float32, torch.float64)
#: Names of floating dtypes in torch's messages, in small letters: those of C++ and Python.
_FLOATING = {
    **{"half": "float16", "float": "float32", "double": "float64"},
    **{name: name for name in ("float16", "float32", "float64", "bfloat16")},
}
#: Functions that read where a tensor lies; a copy of it is freed before the address is used.
_ADDRESSES = ("data_ptr", "untyped_storage", "storage", "__dlpack__", "__cuda_array_interface__")


def cast_module(module: nn.Module, form: Form, cast: str, dtype: torch.dtype, device: torch.device) -> None:
    """Cast a module in place to a form; `cast` is the component's `cast`, and `dtype` the run's dtype.

    Raises:
        InputError: the module's forward cannot be run under autocast, or in the form `upcast`.

    """
    if form == "float32":
        _convert(module, torch.float32, torch.float32, dtype)
    elif form == "upcast":
        _convert(module, dtype if cast == "module" else None, torch.float32, dtype)
        call_under(module, WeightsInFloat32)
    elif cast == "module":
        _convert(module, dtype, dtype, dtype)
    elif cast == "autocast" and dtype in HALF:
        call_under(module, functools.partial(torch.autocast, device.type, dtype))


def _convert(
    module: nn.Module, parameters: torch.dtype | None, buffers: torch.dtype | None, dtype: torch.dtype
) -> None:
    """Cast floating parameters and buffers in place, None: not at all; those that keep float32 are never narrowed."""
    kept = {id(tensor): tensor for tensor in kept_in_float32(module, dtype)}  # the tensors, so that no id is reused

    def converted(tensor: Tensor) -> Tensor:
        target = parameters if isinstance(tensor, nn.Parameter) else buffers
        if target is None or tensor.dtype not in _CAST or (id(tensor) in kept and tensor.itemsize > target.itemsize):
            return tensor
        return tensor.to(target)

    # Not `module.to`: it makes complex tensors real, and libraries refuse it or warn.
    module._apply(converted)


def kept_in_float32(module: nn.Module, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield the floating tensors that transformers and diffusers load in float32 for a model in `dtype`.

    In any model of the two libraries inside `module` these are buffers that are not saved (rotary frequencies), and
    what `_keep_in_fp32_modules` and `_keep_in_fp32_modules_strict` name. transformers applies the first list to float16
    only, and has the second for bfloat16 too.
    """
    for part in module.modules():
        if not hasattr(part, "_keep_in_fp32_modules"):
            continue
        library: Any = part
        lists = [getattr(library, "_keep_in_fp32_modules_strict", None)]
        if dtype == torch.float16 or not hasattr(library, "_keep_in_fp32_modules_strict"):
            lists.append(library._keep_in_fp32_modules)
        names = {name for each in lists for name in ([each] if isinstance(each, str) else each or ())}
        listed = re.compile("|".join(rf"(^|\.){re.escape(name)}(\.|$)" for name in sorted(names)) or "(?!)")
        saved = library.state_dict(keep_vars=True).keys()
        for name, tensor in (*library.named_parameters(), *library.named_buffers()):
            if tensor.is_floating_point() and (listed.search(name) or name not in saved):
                yield tensor


def floating_dtype(tensors: Iterable[Tensor], default: torch.dtype) -> torch.dtype:
    """Return the dtype of most of the floating elements of `tensors`."""
    sizes = Counter[torch.dtype]()
    for tensor in filter(torch.is_floating_point, tensors):
        sizes[tensor.dtype] += tensor.numel()
    return max(sizes, key=lambda dtype: sizes[dtype], default=default)


def parameter_dtypes(module: nn.Module) -> dict[str, int]:
    """Return the number of parameters by dtype, most first."""
    sizes = Counter[str]()
    for parameter in module.parameters():
        sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return dict(sizes.most_common())


def bytes_to_float32(module: nn.Module) -> tuple[int, int]:
    """Return the bytes of the module in float32, and how many more that is than it takes now."""
    tensors = (*module.parameters(), *module.buffers())
    changed = [tensor for tensor in tensors if tensor.dtype in HALF]
    total = sum(tensor.nbytes for tensor in tensors) + sum(2 * tensor.numel() for tensor in changed)
    return total, sum(2 * tensor.numel() for tensor in changed)


def mixes_dtypes(error: BaseException) -> bool:
    """Return whether an operator of torch refused operands of different floating dtypes; each has words of its own."""
    names = {
        _FLOATING.get(name, name) for name in re.findall(r"[a-z]+[0-9]*", str(error).lower().replace("tensor", ""))
    }
    return "mixed dtype" in str(error) or len(names & set(_FLOATING.values())) > 1


def call_under(module: nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> Callable[[], None]:
    """Let every call of the module run under `context()`, however a variant calls it; return what undoes it.

    The module gets a subclass of its class with another `forward`. It stays the same object, copies of it keep the
    context, and torch.compile traces through it.

    Raises:
        InputError: the forward that is called is not that of its class.

    """
    kind: Any = type(module)
    if "forward" in vars(module) or isinstance(module, torch.jit.ScriptModule):
        raise InputError(
            f"{kind.__name__}.forward is not that of its class (it is scripted, or a hook of a library replaced it), "
            "so its calls cannot run under autocast. Use cast: module, or cast: none."
        )

    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with context():
            return kind.forward(self, *args, **kwargs)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    module.__class__ = type(kind.__name__, (kind,), {**names, "forward": forward})

    def undo() -> None:
        module.__class__ = kind

    return undo


class WeightsInFloat32(TorchFunctionMode):
    """While it is entered, a function of torch reads half-precision tensors as float32 copies of them.

    Weights look as if they were float32, also for code that asks for their dtype. Copies live as long as the call that
    reads them. A tensor that a call writes to is not copied.

    Raises:
        RuntimeError: code reads the address of a weight, as a kernel of its own does.

    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            value = func(*args)
            if isinstance(value, torch.dtype) and _is_weight(args[0]):
                return torch.float32
            return func(_widened(args[0])) if isinstance(value, Tensor) else value
        if name in _ADDRESSES and args and _is_weight(args[0]):
            raise RuntimeError(f"it reads the address of a weight ({name})")
        if isinstance(func, OpOverload | OpOverloadPacket):  # one of these may write to any argument
            return func(*map_tensors(_widened_weight, args), **map_tensors(_widened_weight, kwargs))
        written = args[:1] if _writes(name) else ()
        output = {"out": kwargs["out"]} if "out" in kwargs else {}
        return func(*written, *map_tensors(_widened, args[len(written) :]), **map_tensors(_widened, kwargs) | output)


def _writes(name: str) -> bool:
    """Return whether a function of this name writes to its first argument."""
    if name.endswith("__"):
        operator = name.removeprefix("__i").removesuffix("__")
        return name in ("__set__", "__setitem__") or (name.startswith("__i") and hasattr(Tensor, f"__{operator}__"))
    return name.endswith("_")


def _is_weight(tensor: Any) -> bool:
    return type(tensor) is nn.Parameter and tensor.dtype in HALF


def _widened_weight(tensor: Tensor) -> Tensor:
    return tensor.float() if _is_weight(tensor) else tensor


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if type(tensor) in (Tensor, nn.Parameter) and tensor.dtype in HALF else tensor
