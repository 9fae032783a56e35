"""Keeps the code that inductor generates in the run folder, as files that can be read and run.

Inductor writes its code into its cache, so the cache folder is set to one in the run folder. That folder is empty, so
the compile is a cold start. With `benchmark_kernel` each Triton kernel's file times itself when run (`python FILE`
prints ms, GB and GB/s), and each graph's file times the generated graph.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiling.errors import InputError


@contextmanager
def kept_kernels(folder: Path) -> Iterator[None]:
    """Inside the block, make inductor write generated code into `folder`, with benchmark code and unique kernel names.

    The block must contain everything that compiles, including the first calls, because `torch.compile` is lazy.
    Inductor's flags, cache folders and in-memory caches are restored at its end; compiled code stays usable.

    Raises:
        InputError: `folder` is not empty: inductor would load that code from it and compile nothing.

    """
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
