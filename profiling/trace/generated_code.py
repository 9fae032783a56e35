"""Keeps the code that inductor generates in the run folder, as files that can be read and run.

Inductor writes its code into its cache, so the cache folder is set to one in the run folder. That folder is empty, so
the compile is a cold start. With `benchmark_kernel` each Triton kernel's file times itself when run (`python FILE`
prints ms, GB and GB/s), and each graph's file times the generated graph.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiling.errors import InputError
from profiling.results.explanations import KernelFile

# Matches the function below inductor's decorator: helper functions precede it, the user's own kernels follow it.
_TRITON_NAME = re.compile(r"^@triton_heuristics\..*?^@triton\.jit\s+def (\w+)\(", re.MULTILINE | re.DOTALL)
_CPP_KERNEL = re.compile(r"^(cpp_\w+) = async_compile\.cpp_pybinding\(.*?'''(.*?)'''", re.MULTILINE | re.DOTALL)


@contextmanager
def kept_kernels(folder: Path) -> Iterator[None]:
    """Inside the block, make inductor write generated code into `folder`, with benchmark code and unique kernel names.

    The block must contain everything that compiles, including the first calls, because `torch.compile` is lazy.
    Inductor's flags, cache folders and in-memory caches are restored at its end; compiled code stays usable.

    Raises:
        InputError: `folder` is not empty: inductor would load that code from it and compile nothing.

    """
    # Imported here because listing kernels needs no compiler.
    from torch._inductor import config
    from torch._inductor.utils import clear_caches

    folder = folder.absolute()
    if folder.is_dir() and any(folder.iterdir()):
        raise InputError(
            f"Generated code cannot be kept in {folder}: the folder is not empty. Delete it, or use a new run folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    # Triton's folder is set too: inductor would set it, and leave it set.
    folders = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    before = {name: os.environ.get(name) for name in folders}
    clear_caches()  # code that this process has loaded would not be written again
    try:
        os.environ.update(folders)
        with config.patch({"benchmark_kernel": True, "triton.unique_kernel_names": True}):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        clear_caches()


def list_kernels(folder: Path) -> tuple[KernelFile, ...]:
    """Return the generated files, named relative to `folder`: graphs first, then kernels. Empty if nothing compiled.

    A `graph` is the Python code of a compiled graph, named after its file because inductor numbers graphs only within a
    frame. `triton` and `cpp` are single kernels, named as in a trace. A `cpp` file is not runnable.
    """
    sources = {path: path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*/*.py"))}
    graphs = {path: text for path, text in sources.items() if "def benchmark_compiled_module(" in text}
    # A C++ kernel is called `kernel` in its file; its name in traces is in the graph's file, beside the same source.
    names = [(name, body.strip()) for text in graphs.values() for name, body in _CPP_KERNEL.findall(text)]
    files = [_kernel_file(folder, path, path.stem, "graph") for path in graphs]
    for path, text in sources.items():
        if path not in graphs and (match := _TRITON_NAME.search(text)):
            files.append(_kernel_file(folder, path, match.group(1), "triton"))
    for path in sorted(folder.glob("*/*.cpp")):
        text = path.read_text(encoding="utf-8", errors="replace")
        # Bindings for Python follow the kernel. Files that match no kernel are probes of the processor.
        if name := next((name for name, body in names if text.strip().startswith(body)), None):
            files.append(_kernel_file(folder, path, name, "cpp"))
    order = ("graph", "triton", "cpp")
    return tuple(sorted(files, key=lambda kernel: (order.index(kernel.kind), kernel.name, kernel.file)))


def _kernel_file(folder: Path, path: Path, name: str, kind: str) -> KernelFile:
    return KernelFile(name=name, file=path.relative_to(folder).as_posix(), kind=kind)
