"""torch.compile, with every option from YAML.

The default mode holds no CUDA graphs, so that its row differs from `baseline` by the compiler alone and from
`compile_cuda_graph` by the capture alone; `reduce-overhead` and `max-autotune` bring CUDA graphs of their own.
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
from torch._inductor import cpp_builder, exc

from profiling.components.component import Component
from profiling.errors import InputError, did_you_mean
from profiling.trace.counters import CompileCounters, snapshot
from profiling.trace.generated_code import kept_kernels
from profiling.variants.variant import EagerStep, Step, Variant


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


@dataclass(frozen=True, kw_only=True)
class Compile(Variant):
    """Compile the module with `torch.compile`; the fields are its arguments, `options` goes to inductor as it is.

    Raises:
        InputError: a mode that torch does not know, or `options` together with a `mode`, which torch refuses.

    """

    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    keep_kernels: bool = False

    def __post_init__(self) -> None:
        """Refuse at once what torch.compile would refuse minutes later."""
        modes = torch._inductor.list_mode_options()
        if self.mode is not None and self.mode not in modes:
            raise InputError(
                f"mode={self.mode!r} is no mode of torch.compile ({', '.join(modes)}).{did_you_mean(self.mode, modes)}"
            )
        if self.mode not in (None, "default") and self.options:
            raise InputError(f"torch.compile takes a mode or options, not both: drop mode={self.mode} or the options.")
        known = torch._inductor.list_options()
        for name in self.options:
            if name not in known:
                raise InputError(f"options.{name} is no option of inductor.{did_you_mean(name, known)}")

    def unavailable(self, device: torch.device) -> str | None:
        """Return what is missing on a CPU: CUDA where the mode wants its graphs, else inductor's C++ toolchain."""
        if device.type != "cpu":
            return None
        return f"mode={self.mode} needs a CUDA device" if self.has_cuda_graphs() else missing_toolchain()

    def has_cuda_graphs(self) -> bool:
        """Say whether the mode or the options bring CUDA graphs of inductor's own."""
        options = torch._inductor.list_mode_options(self.mode) if self.mode else self.options
        return bool(options.get("triton.cudagraphs", False))

    def flags(self, folder: Path) -> ExitStack:
        """Set the global flags that the options ask for; closing the stack puts them back."""
        with ExitStack() as stack:
            stack.callback(torch._dynamo.reset)  # the next to compile meets none of what this one compiled
            # Past its limit dynamo would run the module eagerly and say so in a log only.
            stack.enter_context(torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True))
            if self.keep_kernels:
                stack.enter_context(kept_kernels(folder))
            return stack.pop_all()

    def compiled(self, module: nn.Module) -> Callable[..., Any]:
        """Return the module under torch.compile; it compiles at its first call."""
        default = self.mode in (None, "default")
        # Said outright, since an environment variable can put CUDA graphs into inductor's defaults.
        options = {"triton.cudagraphs": False, **self.options} if default else None
        return torch.compile(
            module, mode=None if default else self.mode, fullgraph=self.fullgraph, dynamic=self.dynamic, options=options
        )

    def __call__(self, component: Component, folder: Path) -> Step:
        """Compile by calling; where a mode brings CUDA graphs, call until those are recorded too."""
        with self.flags(folder) as flags:
            before = snapshot()
            module, inputs = self.compiled(component.module), component.inputs
            steps = [
                partial(_marked, module, given) if self.has_cuda_graphs() else partial(module, **given)
                for given in (*component.extra_inputs, inputs)
            ]
            for run in steps:
                for _ in range(3 if self.has_cuda_graphs() else 1):  # graph trees warm up, then record, then replay
                    run()
            self.check(snapshot().since(before))
            # The flags stay until the step is closed: a recompile must meet the same ones.
            run = steps[-1]
            eager = None if self.has_cuda_graphs() else EagerStep(run)
            return Step(run=run, close=flags.pop_all().close, extra_steps=tuple(steps[:-1]), eager_step=eager)

    def check(self, happened: CompileCounters) -> None:
        """Refuse to pass something else off as compiled.

        Raises:
            RuntimeError: nothing was compiled, or CUDA graphs that the mode promises were given up.

        """
        if happened.graphs == 0:
            raise RuntimeError(
                "torch.compile compiled nothing and ran eagerly: unset TORCH_COMPILE_DISABLE and TORCHDYNAMO_DISABLE, "
                "and take torch.compiler.disable off the module"
            )
        if self.has_cuda_graphs() and (happened.cudagraph_skips or not happened.cudagraph_captures):
            raise RuntimeError(
                f"inductor gave up {happened.cudagraph_skips} of the CUDA graphs that mode={self.mode} promises: "
                "trace=true shows why, variant=[compile] does without"
            )


def _marked(module: Callable[..., Any], inputs: Mapping[str, torch.Tensor]) -> Any:
    # Without the mark, inductor's graph trees take this call for a continuation of the last one and keep its outputs.
    torch.compiler.cudagraph_mark_step_begin()
    return module(**inputs)
