"""Files of ahead-of-time compilers: their names, and those that cells of a run share.

Cells that compile the same code (`aot_inductor` and `aot_inductor_cuda_graph`) need the same package, which takes
minutes to make. The run names a folder in the environment (`profiling.run.compile_caches`). The first cell leaves its
package there; a later one with the same program, weights and options copies it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from profiling.components.spec import PACKAGES_FOLDER

_PIECE = 1 << 26  # bytes that are hashed at a time


def new_file(folder: Path, name: str) -> Path:
    """Create `folder` and return the path of a new file in it: `name`, with a number if that exists."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = Path(name)
    number, file = 2, folder / plain
    while file.exists():
        number, file = number + 1, folder / f"{plain.stem}_{number}{plain.suffix}"
    return file


def shared_path(program: torch.export.ExportedProgram, options: Mapping[str, Any], suffix: str) -> Path | None:
    """Return where cells share the package of a program compiled with `options`; None if this run shares none.

    The name is a digest of the graph, the values of its weights and constants, the options and torch's version.
    """
    folder = os.environ.get(PACKAGES_FOLDER)
    if not folder:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for text in _texts(program, options):
        digest.update(text.encode() + b"\0")
    for name, value in sorted({**program.state_dict, **program.constants}.items()):
        digest.update(f"{name} {type(value).__name__}\0".encode())
        for tensor in _plain(value):
            digest.update(f"{tensor.shape} {tensor.dtype}\0".encode())
            for piece in tensor.detach().contiguous().view(-1).view(torch.uint8).split(_PIECE):
                digest.update(piece.cpu().numpy().data)
    return Path(folder, f"{digest.hexdigest()}{suffix}")


def _plain(value: Any) -> Iterator[Tensor]:
    """Yield the tensors that hold the numbers of `value`: those inside a subclass, as of quantised weights."""
    if hasattr(value, "__tensor_flatten__"):
        for name in value.__tensor_flatten__()[0]:
            yield from _plain(getattr(value, name))
    elif isinstance(value, Tensor):
        yield value


def _texts(program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> Iterator[str]:
    yield torch.__version__
    yield json.dumps(dict(options), sort_keys=True, default=repr)
    yield str(program.graph_signature)
    yield str(program.range_constraints)
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield str(part.graph)
            # The shape, dtype and device of each input, which the graph's text lacks.
            yield str([node.meta.get("val") for node in part.graph.nodes if node.op == "placeholder"])


def share(file: Path, shared: Path) -> None:
    """Leave a package for later cells: as a second name of the file, or as a copy on another file system."""
    shared.parent.mkdir(parents=True, exist_ok=True)
    _link_or_copy(file, shared)


def fetch(shared: Path, file: Path) -> bool:
    """Put the package that an earlier cell left at `file`; return False if there is none."""
    if not shared.exists():
        return False
    _link_or_copy(shared, file)
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    part = target.with_name(f"{target.name}.part{os.getpid()}")
    try:
        os.link(source, part)
    except OSError:
        shutil.copyfile(source, part)
    part.replace(target)  # at once: cells on other devices look for it meanwhile
