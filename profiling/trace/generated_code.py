"""Keeps the code that inductor generates in the run folder, in files a person can open and run.

Inductor writes its code into its cache, so the cache is what is moved: a fresh one inside the run folder also makes the
compile a real one, which prepare time wants anyway. With `benchmark_kernel` every Triton kernel's file times
itself when run (`python <file>` prints ms, GB and GB/s), and every graph's file times the whole generated graph.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest import mock

from profiling.errors import InputError

Kind = Literal["graph", "triton", "cpp"]

# The function right below inductor's decorator: helper functions may stand before it, a user's own after it.
_TRITON_NAME = re.compile(r"^@triton_heuristics\..*?^@triton\.jit\s+def (\w+)\(", re.MULTILINE | re.DOTALL)
_CPP_KERNEL = re.compile(r"^(cpp_\w+) = async_compile\.cpp_pybinding\(.*?'''(.*?)'''", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class KernelFile:
    """A generated file: `file` is relative to the folder that was listed; `runnable` ones time themselves when run."""

    name: str
    file: str
    kind: Kind
    runnable: bool


@contextmanager
def kept_kernels(folder: Path) -> Iterator[None]:
    """Make inductor write what it generates into `folder`, with benchmark code and unique names, until the end.

    It must span everything that compiles (`torch.compile` is lazy: the first calls too). Inductor's flags, its cache
    folders and its in-memory caches are put back afterwards. The compiled step goes on working.

    Raises:
        InputError: `folder` holds files already; their code would be found in the cache and not be compiled.

    """
    # Here, not above: listing kernels and reading records need no compiler.
    from torch._inductor import config
    from torch._inductor.utils import clear_caches

    folder = folder.absolute()
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            f"kernels cannot be kept in {folder}: it holds files already. Delete it, or use a new run folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Triton's folder is named too: inductor would set it by itself, and leave it set.
    places = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    flags = {"benchmark_kernel": True, "triton.unique_kernel_names": True}
    clear_caches()  # code already loaded in this process would not be written again
    try:
        with mock.patch.dict(os.environ, places), config.patch(flags):
            yield
    finally:
        clear_caches()


def list_kernels(folder: Path) -> tuple[KernelFile, ...]:
    """List the generated files under `folder`: graphs first, then kernels, by name. Empty where nothing compiled.

    A `graph` is the Python that runs one compiled graph, named for its file, since inductor numbers graphs only within
    a frame; `triton` and `cpp` are single kernels, named as in a trace. `.cpp` files cannot be run by themselves.
    """
    sources = {path: path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*/*.py"))}
    graphs = {path: text for path, text in sources.items() if "def benchmark_compiled_module(" in text}
    # A C++ kernel's file calls it `kernel`; the name that traces show stands in the graph, beside the same source.
    names = [(name, body.strip()) for text in graphs.values() for name, body in _CPP_KERNEL.findall(text)]
    found = [_kernel_file(folder, path, path.stem, "graph", text) for path, text in graphs.items()]
    for path, text in sources.items():
        if path not in graphs and (match := _TRITON_NAME.search(text)):
            found.append(_kernel_file(folder, path, match.group(1), "triton", text))
    for path in sorted(folder.glob("*/*.cpp")):
        text = path.read_text(encoding="utf-8", errors="replace")
        # The file goes on with bindings for Python. Those that match no kernel are probes of the processor.
        if name := next((name for name, body in names if text.strip().startswith(body)), None):
            found.append(_kernel_file(folder, path, name, "cpp", text))
    order = ("graph", "triton", "cpp")
    return tuple(sorted(found, key=lambda kernel: (order.index(kernel.kind), kernel.name, kernel.file)))


def _kernel_file(folder: Path, path: Path, name: str, kind: Kind, text: str) -> KernelFile:
    runnable = path.suffix == ".py" and "__main__" in text
    return KernelFile(name, path.relative_to(folder).as_posix(), kind, runnable)
