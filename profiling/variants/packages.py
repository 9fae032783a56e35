"""Files of ahead-of-time compilers: their names, and the path by which cells of a run share them.

A package takes minutes to make, and cells that differ only in their capture (`aot_inductor` and
`aot_inductor+cuda_graph`) need the same one. The run names a folder in the environment for each component and each
recipe with its options, without the capture (`profiling.run.compile_caches`). The first cell puts its package there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from profiling.components.spec import PACKAGES_FOLDER
from profiling.components.trees import tensors_in

CHUNK_BYTES = 1 << 24  # of a tensor, that a checksum reads at a time


def new_file(folder: Path, name: str) -> Path:
    """Create `folder` and return the path of a new file in it: `name`, with a number if that exists."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = Path(name)
    number, file = 2, folder / plain
    while file.exists():
        number, file = number + 1, folder / f"{plain.stem}_{number}{plain.suffix}"
    return file


def shared_path(
    program: torch.export.ExportedProgram, inputs: Mapping[str, Any], options: Mapping[str, Any], suffix: str
) -> Path | None:
    """Return where cells share the package of an exported program; None: the run shares no packages.

    In the folder of a component and recipe, the name is a digest of the inputs' dtypes, shapes and strides, the
    compiler's options, the program's text (a realtime cell has several modules), and the fingerprint of the weights:
    name, form and a checksum over all bytes, which is computed on their device.
    """
    folder = os.environ.get(PACKAGES_FOLDER)
    if not folder:
        return None
    weights = {**program.state_dict, **program.constants}
    key = [
        *(_form(tensor) for tensor in tensors_in(inputs)),
        *(f"{name}={value!r}" for name, value in sorted(options.items())),
        *(str(program), str(program.call_spec)),
        *(f"{name} {_form(each)} {_checksum(each)}" for name in weights for each in plain_tensors(weights[name])),
    ]
    return Path(folder, hashlib.blake2b("\0".join(key).encode(), digest_size=16).hexdigest() + suffix)


def _form(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.stride()} {tensor.dtype} {tensor.device}"


def plain_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the plain tensors of a value: itself, or those inside a tensor subclass such as quantised weights."""
    if hasattr(value, "__tensor_flatten__"):
        for name in value.__tensor_flatten__()[0]:
            yield from plain_tensors(getattr(value, name))
    elif isinstance(value, Tensor):
        yield value


def _checksum(tensor: Tensor) -> int:
    """Return the sum of the tensor's 32-bit words, each times an odd number for its position, modulo 2^64.

    A word that changes changes it, and so do two words of a chunk that change places.
    """
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for chunk in tensor.detach().contiguous().view(-1).view(torch.uint8).split(CHUNK_BYTES):
        words = pad(chunk, (0, -len(chunk) % 4)).view(torch.int32)  # a copy, so that words begin at a whole address
        total = 3 * total + (words * (2 * torch.arange(len(words), device=tensor.device) + 1)).sum()
    return int(total)


def link_or_copy(source: Path, target: Path) -> None:
    """Make the file available at `target`: by a hard link, or by a copy on another file system."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileExistsError:  # another cell made the same
        pass
    except OSError:
        shutil.copyfile(source, target)
