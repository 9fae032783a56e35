"""Put a checkpoint file into a module that is already where it will run, without a second copy of the weights.

`module.load_state_dict(file's tensors)` alone would do the same on a CPU. It is not enough on a GPU, where its `copy_`
converts dtypes on the host, nor for refusing NaN before a hook has used it. So the tensors are copied one by one, and
`load_state_dict` ends the job with the module's own tensors: it copies nothing anew and runs the module's hooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from profiling.core.checkpoints.fit import Shapes, compare, components_in, is_constant
from profiling.core.checkpoints.names import half
from profiling.core.checkpoints.reader import read
from profiling.errors import InputError


@dataclass(frozen=True)
class LoadReport:
    """What was loaded: how many tensors and bytes of the file, in which dtypes it stores them.

    `kept` are the constants the file does not hold, which the module keeps as its config made them.
    """

    path: Path
    sha256: str | None
    format: str
    tensors: int
    bytes: int
    dtypes: tuple[str, ...]
    kept: tuple[str, ...] = ()


def load_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a file's tensors under plain names: on the CPU, memory-mapped (but for PyTorch's legacy format).

    Raises InputError when the file is missing, damaged, not a state dict, or would run code (none is run).
    """
    return read(path).tensors


def load_into(
    module: nn.Module,
    path: Path,
    *,
    part: str | None = None,
    others: Mapping[str, Shapes] | None = None,
    sha256: str | None = None,
) -> LoadReport:
    """Copy a file's weights into `module`, on its device and in its dtype, and run its load hooks.

    `part` ("decoder" or "encoder") picks a half of an autoencoder's file. `others` are the shapes of the components
    the user may have meant instead. `sha256` is what the caller verified, for the report. All names must match; only
    `freqs` buffers may be absent, being constants that follow from the config.
    Raises InputError as `load_state_dict` does, for a file of another network, and for weights that are NaN, infinite
    or too large for the module's dtype (the module's weights are then a mixture). Raises ValueError for a module on
    the meta device.
    """
    targets = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    if any(target.is_meta for target in targets.values()):
        raise ValueError("the module is on the meta device: give it memory first (module.to_empty(device=...))")
    contents = read(path, targets)
    try:
        sources = half(contents.tensors, part, targets) if part else contents.tensors
        _check_fit(module, targets, sources)
    except InputError as error:
        raise InputError(f"checkpoint '{path}' {error}{_hint(contents.tensors, others or {})}") from None
    for name, source in sources.items():
        problem = _copy(targets[name], source)
        if problem:
            raise InputError(f"checkpoint '{path}': '{name}' {problem}")
    module.load_state_dict(module.state_dict(), strict=True)
    return LoadReport(
        path=path,
        sha256=sha256,
        format=contents.format,
        tensors=len(sources),
        bytes=sum(source.nbytes for source in sources.values()),
        dtypes=tuple(sorted({str(source.dtype).removeprefix("torch.") for source in sources.values()})),
        kept=tuple(name for name in targets if name not in sources),
    )


def _check_fit(module: nn.Module, targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> None:
    optional = {name for name, _ in module.named_buffers() if is_constant(name)}
    misfit = compare(_shapes(targets), _shapes(sources), optional)
    if misfit:
        raise InputError(f"does not fit {type(module).__name__}: {misfit}")


def _hint(tensors: Mapping[str, Tensor], others: Mapping[str, Shapes]) -> str:
    fitting = components_in(_shapes(tensors), others)
    return f". The file fits {' or '.join('component=' + name for name in fitting)}" if fitting else ""


@torch.no_grad()
def _copy(target: Tensor, source: Tensor) -> str | None:
    """Copy one tensor in place and return what is wrong with it, if anything."""
    if source.is_floating_point() != target.is_floating_point():
        return f"is {source.dtype} in the file, and the network computes with {target.dtype}"
    source = source.to(target.device)  # as stored: the device converts faster than the host, and host memory stays flat
    target.copy_(source)
    if not target.is_floating_point() or _finite(target):
        return None
    if _finite(source):
        return f"holds numbers too large for {target.dtype}: choose dtype=bfloat16 or float32"
    return "holds NaN or infinite numbers: the file is damaged or its training diverged"


def _finite(tensor: Tensor) -> bool:
    """Tell whether all numbers are finite; makes no temporary of the tensor's size."""
    if not tensor.numel():
        return True
    values = tensor.float() if tensor.element_size() == 1 else tensor  # float8 has no aminmax
    return bool(torch.stack(torch.aminmax(values)).isfinite().all())


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
