"""Compiles the Triton kernels that a module launches, side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch._library.triton import set_wrap_triton_enabled
from torch._subclasses.fake_tensor import FakeTensorMode

from profiling.components.trees import map_tensors, tensors_in


def compile_kernels(call: Callable[..., Any], inputs: Mapping[str, Any]) -> None:
    """Compile the Triton kernels that `call(**inputs)` launches, side by side: a call compiles one after the other.

    It is called on fake tensors, where a launch only compiles. What that cannot reach (an operator without a fake
    form, a kernel that is tuned or does not compile, a Triton without this mode) is left to the first real call, as
    all would be without this.
    """
    if not any(each.is_cuda for each in tensors_in(inputs)):
        return
    try:
        from triton.runtime._async_compile import AsyncCompileMode  # pyright: ignore[reportMissingImports]
        from triton.runtime.autotuner import Autotuner  # pyright: ignore[reportMissingImports]
        from triton.runtime.jit import JITFunction  # pyright: ignore[reportMissingImports]
    except ImportError:
        return

    launch = JITFunction.run

    def compiled(kernel: Any, *given: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if warmup:
            return launch(kernel, *given, grid=grid, warmup=True, **options)
        # A dtype stands for a tensor that is aligned as those of torch's allocator are.
        forms = (each.dtype if isinstance(each, Tensor) else each for each in given)
        return kernel.warmup(*forms, grid=grid, **options)

    with (
        suppress(Exception),
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads,
        AsyncCompileMode(threads, ignore_errors=True),
        set_wrap_triton_enabled(False),
        patch.object(JITFunction, "run", compiled),
        patch.object(Autotuner, "run", lambda *_, **__: None),
        FakeTensorMode(allow_non_fake_inputs=True) as fake,
    ):
        call(**map_tensors(fake.from_tensor, dict(inputs)))
