"""Can inductor compile on this CPU? It calls a C++ compiler and includes Python's headers."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

from torch._inductor import cpp_builder, exc


@cache
def missing_toolchain() -> str | None:
    """Return what is missing and how to get it, or None when torch.compile can build C++ here."""
    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return "torch.compile needs a C++ compiler on a CPU and finds none: apt-get install g++"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "torch.compile needs Python's headers on a CPU and finds none: apt-get install python3-dev"
    return None
