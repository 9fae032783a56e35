"""torch.compile, with every option from YAML.

The default mode has no CUDA graphs, so that its row differs from `baseline` by the compiler alone, and from
`compile_cuda_graph` by the capture alone. `reduce-overhead` and `max-autotune` bring CUDA graphs of inductor's own.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._inductor import cpp_builder, exc

from profiling.components.component import Component
from profiling.errors import InputError, did_you_mean
from profiling.trace.counters import CompileCounters, snapshot
from profiling.trace.generated_code import kept_kernels
from profiling.variants.variant import EagerStep, Step, Variant


@cache
def missing_toolchain() -> str | None:
    """Return what torch.compile lacks to build C++ on this machine and how to install it, or None."""
    try:
        cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return "torch.compile needs a C++ compiler on a CPU: apt-get install g++"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "torch.compile needs Python's headers on a CPU: apt-get install python3-dev"
    return None


#: Why a step under torch.compile ran without one compiled graph.
COMPILES_NOTHING = (
    "torch.compile compiled nothing and ran eagerly: it refuses torch.nn.LSTM, GRU and RNN (measure those with "
    "cuda_graph), TORCH_COMPILE_DISABLE or TORCHDYNAMO_DISABLE is set, or the module has torch.compiler.disable"
)


class _RecompileLimit:
    """While any compiled step is open, dynamo raises past its limit, where it would run eagerly and only log that.

    Steps may be closed in any order, so each of them cannot restore what it found.
    """

    def __init__(self) -> None:
        self._open, self._patch = 0, ExitStack()

    def __enter__(self) -> None:
        if self._open == 0:
            patch = torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True)
            self._patch.enter_context(patch)
        self._open += 1

    def __exit__(self, *_: object) -> None:
        self._open -= 1
        if self._open == 0:
            self._patch.close()


_RECOMPILE_LIMIT = _RecompileLimit()


@dataclass(frozen=True, kw_only=True)
class Compile(Variant):
    """Compile the module with `torch.compile`; the fields are its arguments, `options` those of inductor.

    `keep_kernels` writes inductor's code into the run folder.

    Raises:
        InputError: an unknown mode or option, or `options` together with a `mode`, which torch refuses.

    """

    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    keep_kernels: bool = False

    def __post_init__(self) -> None:
        """Check the options, which torch.compile would refuse minutes later."""
        modes = torch._inductor.list_mode_options()
        if self.mode is not None and self.mode not in modes:
            raise InputError(
                f"mode={self.mode!r}: torch.compile has no such mode, only {', '.join(modes)}."
                f"{did_you_mean(self.mode, modes)}"
            )
        if self.mode not in (None, "default") and self.options:
            raise InputError(f"torch.compile accepts a mode or options, not both: drop mode={self.mode} or options.")
        known = torch._inductor.list_options()
        for name in self.options:
            if name not in known:
                raise InputError(f"options.{name}: inductor has no such option.{did_you_mean(name, known)}")

    def unavailable(self, device: torch.device) -> str | None:
        """Return what a CPU run lacks: CUDA for a mode with CUDA graphs, else inductor's C++ toolchain."""
        if device.type != "cpu":
            return None
        return f"mode={self.mode} needs a CUDA device" if self.has_cuda_graphs() else missing_toolchain()

    def has_cuda_graphs(self) -> bool:
        """Return whether the mode or the options bring CUDA graphs of inductor's own."""
        options = torch._inductor.list_mode_options(self.mode) if self.mode else self.options
        return bool(options.get("triton.cudagraphs", False))

    def flags(self, folder: Path) -> ExitStack:
        """Set the global flags that the options need; closing the stack restores them."""
        with ExitStack() as stack:
            stack.callback(torch._dynamo.reset)  # the next variant must not reuse what this one compiled
            stack.enter_context(_RECOMPILE_LIMIT)
            if self.keep_kernels:
                stack.enter_context(kept_kernels(folder))
            return stack.pop_all()

    def compiled(self, module: nn.Module) -> Callable[..., Any]:
        """Return the module under torch.compile, which compiles at its first call."""
        default = self.mode in (None, "default")
        # Explicitly off, since an environment variable can put CUDA graphs into inductor's defaults.
        options = {"triton.cudagraphs": False, **self.options} if default else None
        return torch.compile(
            module, mode=None if default else self.mode, fullgraph=self.fullgraph, dynamic=self.dynamic, options=options
        )

    def __call__(self, component: Component, folder: Path) -> Step:
        """Compile by calling; where a mode brings CUDA graphs, call until those are recorded too."""
        with self.flags(folder) as flags:
            before = snapshot()
            module, cuda_graphs = self.compiled(component.module), self.has_cuda_graphs()
            *extra_steps, run = [
                partial(_new_step, module, inputs) if cuda_graphs else partial(module, **inputs)
                for inputs in (*component.extra_inputs, component.inputs)
            ]
            for step in (*extra_steps, run):
                for _ in range(3 if cuda_graphs else 1):  # graph trees warm up, then record, then replay
                    step()
            self.check(snapshot().since(before), component.module)
            return Step(
                run=run,
                close=flags.pop_all().close,  # flags stay set until then: a recompile must use the same ones
                extra_steps=tuple(extra_steps),
                eager_step=None if cuda_graphs else EagerStep(run),
            )

    def check(self, counters: CompileCounters, module: nn.Module) -> None:
        """Check that the step of `module` is compiled as promised; `counters` are those of preparing it.

        Raises:
            RuntimeError: nothing was compiled, or inductor skipped CUDA graphs that the mode promises.

        """
        if counters.graphs == 0 and not _has_compiled_code(module):
            raise RuntimeError(COMPILES_NOTHING)
        if self.has_cuda_graphs() and (counters.cudagraph_skips or not counters.cudagraph_captures):
            raise RuntimeError(
                f"inductor skipped {counters.cudagraph_skips} of the CUDA graphs that mode={self.mode} promises: "
                "trace=true records the reasons, variant=[compile] needs no CUDA graphs"
            )


def _has_compiled_code(module: nn.Module) -> bool:
    """Return whether Dynamo holds code for the module's forward: another stage may have the same class and sizes."""
    code = getattr(getattr(module.forward, "__func__", module.forward), "__code__", None)
    return code is not None and len(_debug_get_cache_entry_list(code)) > 0


def _new_step(module: Callable[..., Any], inputs: Mapping[str, Any]) -> Any:
    # Without this mark inductor's graph trees continue the last call and keep its outputs alive.
    torch.compiler.cudagraph_mark_step_begin()
    return module(**inputs)
