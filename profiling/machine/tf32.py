"""TF32: whether float32 matrix products, convolutions and RNNs may round what they read to fewer bits.

torch has two interfaces to one setting. `fp32_precision` has a value for each backend and operator, which inherit; the
older `allow_tf32` and `set_float32_matmul_precision` have flags of their own beside it, and reading them raises where
the two differ. So everything here is read through the newer one, and the older flags are kept equal to it, because
modules and torch's own contexts (`torch.backends.cudnn.flags`) read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: (backend, operator) of each value, those that others inherit from first.
_INHERITED = (("generic", "all"), ("cuda", "all"), ("mkldnn", "all"))
_CUDA = tuple(("cuda", operator) for operator in ("matmul", "conv", "rnn"))
_CPU = tuple(("mkldnn", operator) for operator in ("matmul", "conv", "rnn"))


def tf32_allowed() -> bool:
    """Return whether float32 matrix products on CUDA may use TF32."""
    return _precision("cuda", "matmul") == "tf32"


def set_tf32(allowed: bool) -> None:
    """Allow TF32 for float32 matrix products, convolutions and RNNs on CUDA, or forbid it, for the whole process."""
    if _older(torch.backends.cuda.matmul) is not allowed:
        if not allowed:
            torch.set_float32_matmul_precision("highest")  # also on a CPU, where a module may have asked for bfloat16
        torch.backends.cuda.matmul.allow_tf32 = allowed
    if _older(torch.backends.cudnn) is not allowed:
        torch.backends.cudnn.allow_tf32 = allowed
    # Compiled convolutions read the value for all of CUDA, which may allow what the flags forbid.
    _set("tf32" if allowed else "ieee", _CUDA if allowed else (("cuda", "all"), *_CUDA))


@contextmanager
def kept_tf32() -> Iterator[None]:
    """Restore the settings of both interfaces after the block."""
    backends: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
    older = [(backend, _older(backend)) for backend in backends]
    medium = older[0][1] and _precision("mkldnn", "matmul") == "bf16"
    before: dict[tuple[str, str], str] = {}
    for key in _INHERITED:  # a value that is unset reads as the one that it inherits, until that is unset too
        before[key] = _precision(*key)
        _set("none", [key])
    before |= {key: _precision(*key) for key in (*_CUDA, *_CPU)}
    for key in _INHERITED:
        _set(before[key], [key])
    try:
        yield
    finally:
        for backend, allowed in older:
            if allowed is not None:
                backend.allow_tf32 = allowed
        if medium:  # what allows bfloat16 on a CPU as well
            torch.set_float32_matmul_precision("medium")
        for key, precision in before.items():
            _set(precision, [key])


@contextmanager
def strict_float32() -> Iterator[None]:
    """Compute float32 products in float32 inside the block: no TF32, and on a CPU no bfloat16 either."""
    with kept_tf32():
        set_tf32(False)
        _set("ieee", (("mkldnn", "all"), *_CPU))
        yield


def _precision(backend: str, operator: str) -> str:
    # Not by `torch.backends`: assigning `mkldnn.fp32_precision` there sets the value of all backends.
    return torch._C._get_fp32_precision_getter(backend, operator)


def _set(precision: str, keys: Iterable[tuple[str, str]]) -> None:
    for backend, operator in keys:
        torch._C._set_fp32_precision_setter(backend, operator, precision)


def _older(backend: Any) -> bool | None:
    """Return what the older flag of a backend says; None where it differs from the newer interface, and raises."""
    try:
        return backend.allow_tf32
    except RuntimeError:
        return None
