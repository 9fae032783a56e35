"""Files of ahead-of-time compilers: their names, and those that cells of a run share.

Cells that compile the same code (`aot_inductor` and `aot_inductor_cuda_graph`) need the same package, which takes
minutes to make. The run names a folder in the environment (`profiling.run.compile_caches`), one for each component and
compiler. The first cell puts its package there; a later one with the same program, weights and options takes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from profiling.components.spec import PACKAGES_FOLDER
from profiling.components.trees import tensors_in

_CHUNK_BYTES = 1 << 26  # that are hashed at a time


def new_file(folder: Path, name: str) -> Path:
    """Create `folder` and return the path of a new file in it: `name`, with a number if that exists."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = Path(name)
    number, file = 2, folder / plain
    while file.exists():
        number, file = number + 1, folder / f"{plain.stem}_{number}{plain.suffix}"
    return file


def shared_path(program: torch.export.ExportedProgram, options: Mapping[str, Any], suffix: str) -> Path | None:
    """Return where cells share the package of a program compiled with `options`; None: the run shares no packages.

    The name is a digest of the program, the values of its weights, and the options. The rest of what a package
    depends on (the device, versions, inductor's global settings, code of custom operators) is the same in a run.
    """
    folder = os.environ.get(PACKAGES_FOLDER)
    if not folder:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for text in _key_texts(program, options):
        digest.update(text.encode() + b"\0")
    for name, value in sorted({**program.state_dict, **program.constants}.items()):
        digest.update(f"{name} {type(value).__name__}\0".encode())
        for tensor in _inner_tensors(value):
            digest.update(_form(tensor).encode() + b"\0")
            for chunk in tensor.detach().contiguous().view(-1).view(torch.uint8).split(_CHUNK_BYTES):
                digest.update(chunk.cpu().numpy().data)
    return Path(folder, f"{digest.hexdigest()}{suffix}")


def _key_texts(program: torch.export.ExportedProgram, options: Mapping[str, Any]) -> Iterator[str]:
    yield json.dumps(dict(options), sort_keys=True, default=repr)
    yield str(program.call_spec)  # the form of arguments and output
    yield str(program.graph_signature)
    yield str(program.range_constraints)
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield str(part.graph)
            inputs = (node.meta.get("val") for node in part.graph.nodes if node.op == "placeholder")
            yield str([[_form(tensor) for tensor in tensors_in(value)] or repr(value) for value in inputs])


def _form(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.stride()} {tensor.dtype} {tensor.device}"


def _inner_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the plain tensors of a value: itself, or those inside a tensor subclass such as quantised weights."""
    if hasattr(value, "__tensor_flatten__"):
        for name in value.__tensor_flatten__()[0]:
            yield from _inner_tensors(getattr(value, name))
    elif isinstance(value, Tensor):
        yield value


def share(file: Path, shared: Path) -> None:
    """Make a package available to later cells: by a hard link, or by a copy on another file system."""
    shared.parent.mkdir(parents=True, exist_ok=True)
    _link_or_copy(file, shared)


def fetch(shared: Path, file: Path) -> bool:
    """Put the package that an earlier cell shared at `file`; return False if there is none."""
    if not shared.exists():
        return False
    _link_or_copy(shared, file)
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{uuid4().hex}.part")  # renamed when complete, for cells that look meanwhile
    try:
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
