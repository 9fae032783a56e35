"""The compiler torch.compile with inductor, with every option from YAML.

The default mode has no CUDA graphs, so that `compile` differs from `baseline` by the compiler alone, and from
`compile+cuda_graph` by the capture alone. `reduce-overhead` and `max-autotune` bring CUDA graphs of inductor's own.

Importing torch's compiler takes seconds, and checking the options of a run does not need it. So the functions that need
it import it, and a cell does so before its preparation is timed (`Cell.variant`, `start_workers`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from time import perf_counter
from types import MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from profiling.components.trees import dotted, form_of, keyed_leaves
from profiling.errors import InputError, NothingChangedError, SkippedError, did_you_mean, printable
from profiling.results.explanations import ShapeCompile
from profiling.trace.counters import (
    CompileCounters,
    nothing_compiled,
    recompile_reason,
    recompiles_in_each_call,
    snapshot,
    unsupported,
)
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.recipe import AnyTransform, Compiler, Outcome


@cache
def missing_toolchain() -> str | None:
    """Return what this machine lacks to build C++ for torch.compile, with the command that installs it, or None."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    try:
        subprocess.run([compiler, "--version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "torch.compile needs a C++ compiler on a CPU: apt-get install g++"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return "torch.compile needs Python's headers on a CPU: apt-get install python3-dev"
    return None


def find_vector_instructions() -> None:
    """Find out, once for this process and its forks, which vector instructions the CPU has.

    Inductor compiles and loads a small library for each kind that the processor names, as torch may have been built
    without them: 17 s on two cores with torch 2.13 and an empty cache. Where torch's own kernels use AVX-512, it was
    built with them, and they are taken as they are named.
    """
    from torch._inductor.config import cpp
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    if cpp.vec_isa_ok is None and torch.backends.cpu.get_cpu_capability() == "AVX512":
        cpp.vec_isa_ok = True
    pick_vec_isa()


def _inductor() -> ModuleType:
    import torch._inductor

    return torch._inductor


def check_known(options: Mapping[str, Any]) -> None:
    """Check the names of inductor's options.

    Raises:
        InputError: inductor has no such option.

    """
    known = _inductor().list_options() if options else {}
    for name, value in options.items():
        if name in known:
            continue
        inner = [f"{name}.{each}" for each in value if f"{name}.{each}" in known] if isinstance(value, Mapping) else []
        if inner:  # what a command line makes of options.triton.enable_pdl=true
            raise InputError(
                f"options.{name}: the names of inductor's options are not nested. Write '{inner[0]}' as one key: "
                f"'+step.compile.options={{{inner[0]}: VALUE}}', with the quotes."
            )
        raise InputError(f"options.{name}: inductor has no such option.{did_you_mean(str(name), known)}")


def idle_option(options: Mapping[str, Any], device: torch.device) -> str | None:
    """Return why one of inductor's `options` changes nothing on `device`, or None.

    With such an option the cell would be another variant under this one's name.
    """
    if not options.get("triton.enable_pdl"):
        return None
    nvidia = device.type == "cuda" and torch.version.hip is None
    if nvidia and torch.cuda.get_device_capability(device) >= (9, 0):
        return None
    return (
        "options.triton.enable_pdl changes nothing here: programmatic dependent launch needs an NVIDIA GPU of compute "
        "capability 9.0 or later. Leave the option out."
    )


class _CompiledSteps:
    """While a compiled step is open, dynamo raises at its recompile limit, where it would run eagerly.

    Steps may be closed in any order, so a step cannot restore the value that it found. What one compiled is forgotten
    at its end, so that the next variant does not reuse it.
    """

    def __init__(self) -> None:
        self._open, self._patch = 0, ExitStack()

    def __enter__(self) -> None:
        if self._open == 0:
            from torch._dynamo.config import patch

            self._patch.enter_context(patch(recompile_limit=64, fail_on_recompile_limit_hit=True))
        self._open += 1

    def __exit__(self, *_: object) -> None:
        self._open -= 1
        if self._open == 0:
            self._patch.close()
        if not sys.is_finalizing():  # a step that its program never closes ends with the interpreter
            torch._dynamo.reset()


COMPILED_STEPS = _CompiledSteps()


@dataclass(frozen=True, kw_only=True)
class Inductor(Compiler):
    """Compile the module with `torch.compile`; the fields are its arguments, `options` those of inductor.

    `regional` compiles repeated blocks once for each kind, and leaves the rest eager; with `rest` the parts between the
    blocks are compiled, too, without `fullgraph`. `dynamic: null` then means false, so that blocks of different sizes
    do not share slower code for any size. `keep_kernels` writes inductor's code into the run folder.

    Raises:
        InputError: an unknown mode or option, `options` together with a `mode`, which torch refuses, or `rest` without
        `regional`.

    """

    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    regional: bool = False
    rest: bool = False
    keep_kernels: bool = False

    def __post_init__(self) -> None:
        if self.mode not in (None, "default") and self.mode not in (modes := _inductor().list_mode_options()):
            raise InputError(
                f"mode={self.mode!r}: torch.compile has no such mode, only {', '.join(modes)}."
                f"{did_you_mean(self.mode, modes)}"
            )
        if self.mode not in (None, "default") and self.options:
            raise InputError(f"torch.compile accepts a mode or options, not both: drop mode={self.mode} or options.")
        if self.rest and not self.regional:
            raise InputError("compiler: rest: true needs regional: true. Set both, or rest: false.")
        check_known(self.options)

    @property
    def own_graphs(self) -> str | None:
        """The mode or option that turns on CUDA graphs of inductor's own, or None."""
        if self.mode not in (None, "default") and _inductor().list_mode_options(self.mode).get("triton.cudagraphs"):
            return f"mode={self.mode}"
        return "options.triton.cudagraphs" if self.options.get("triton.cudagraphs") else None

    def misfit(self, transforms: Sequence[AnyTransform], capture: CudaGraph | None) -> str | None:
        """Return why CUDA graphs of inductor's own cannot be combined with regions or a capture, or None."""
        if self.regional and self.own_graphs is not None:
            return (
                f"{self.own_graphs} would replay a CUDA graph for each block of regional: true. Capture the whole "
                "call: mode=default (or max-autotune-no-cudagraphs) with a capture."
            )
        if capture is None or self.own_graphs is None:
            return None
        return (
            f"{self.own_graphs} brings CUDA graphs of inductor's own, which cannot be captured again. Write "
            "capture: null, or use mode=default (of max-autotune: max-autotune-no-cudagraphs)."
        )

    def unavailable(self, device: torch.device) -> str | None:
        """Return which option changes nothing here, or what a CPU run lacks: CUDA for CUDA graphs, a C++ toolchain."""
        if device.type != "cpu":
            return idle_option(self.options, device)
        if self.own_graphs:
            return f"{self.own_graphs} needs a CUDA device"
        return idle_option(self.options, device) or missing_toolchain()

    def start_workers(self, device: torch.device) -> None:
        """Import the compiler, and start the processes that compile Triton kernels: the first graph needs both.

        That takes seconds. Inductor itself starts the processes at its first graph for a GPU, and compiles its kernels
        one by one until they run.
        """
        import_module("torch._inductor.compile_fx")  # a compiler of the user's own may be derived from this one
        if device.type == "cuda":
            from torch._inductor.async_compile import maybe_warm_pool

            maybe_warm_pool()

    @contextmanager
    def flags(self, folder: Path) -> Iterator[None]:
        """Set the global flags that the options need in the block."""
        with COMPILED_STEPS, kept_kernels(folder) if self.keep_kernels else nullcontext():
            yield

    def compile(
        self, module: nn.Module, examples: Sequence[Mapping[str, Any]], folder: Path, written: Mapping[str, Tensor]
    ) -> Outcome:
        """Compile by calling; where a mode brings CUDA graphs, call until those are recorded too.

        Raises:
            RuntimeError: nothing was compiled, or inductor skipped CUDA graphs that the mode promises.

        """
        if self.regional:
            return self._compile_blocks(module, examples)
        before, missing = snapshot(), unsupported()
        call = self._compiled(module)
        if self.own_graphs is not None:
            call = partial(_new_step, call)
        # Graph trees warm up, then record, then replay.
        shapes = first_calls(call, examples, times=1 if self.own_graphs is None else 3)
        counters = snapshot().since(before)
        self._check(counters, module, missing)
        return Outcome(call, changed=counters.graphs, shapes=shapes)

    def _compile_blocks(self, module: nn.Module, examples: Sequence[Mapping[str, Any]]) -> Outcome:
        blocks = repeated_blocks(module)
        if not blocks:
            raise SkippedError(
                f"compiler: regional: true compiles repeated blocks once, and {type(module).__name__} has none "
                "(modules of one class and of the same sizes in a ModuleList or a Sequential). Write regional: false."
            )
        rest = replace(self, fullgraph=False)._compiled(module) if self.rest else None
        before, missing = snapshot(), unsupported()
        with ExitStack() as stack:
            regions = _Regions(module, blocks, self._compiled, rest)
            stack.callback(regions.close)
            shapes = first_calls(regions, examples)
            regions.is_compiling, called = False, list(regions.called.values())
            if not called:
                raise SkippedError(
                    "compiler: regional: true compiles the forward of repeated blocks, and a call of "
                    f"{type(module).__name__} reaches the forward of none of them ({_classes(blocks)}). Write "
                    "regional: false."
                )
            graphs = snapshot().since(before).graphs
            if graphs == 0 and not _has_compiled_code(called[0]):
                raise NothingChangedError(nothing_compiled(missing))
            stack.pop_all()
        parts = graphs - regions.graphs
        note = f"graphs compiled: {regions.graphs} for {len(called)} repeated blocks ({_classes(called)})"
        if parts:
            note += f", {parts} for the parts between them"
        else:
            note += "; the rest is eager"
            note += ", although rest: true: what calls blocks in a loop is not compiled" if self.rest else ""
        return Outcome(regions, changed=graphs, notes=(note,), close=regions.close, shapes=shapes)

    def _compiled(self, module: Callable[..., Any]) -> Callable[..., Any]:
        """Return the module, or a method of it, under torch.compile, which compiles at its first call."""
        default = self.mode in (None, "default")
        # Explicitly off: an environment variable can turn CUDA graphs on by default.
        options = {"triton.cudagraphs": False, **self.options} if default else None
        dynamic = False if self.regional and self.dynamic is None else self.dynamic
        compiled = torch.compile(
            module, mode=None if default else self.mode, fullgraph=self.fullgraph, dynamic=dynamic, options=options
        )
        return partial(_named_recompiles, compiled)

    def _check(self, counters: CompileCounters, module: nn.Module, missing: Mapping[str, int]) -> None:
        if counters.graphs == 0 and not _has_compiled_code(module):
            raise NothingChangedError(nothing_compiled(missing))
        if self.own_graphs is not None and (counters.cudagraph_skips or not counters.cudagraph_captures):
            raise RuntimeError(
                f"{self.own_graphs}: inductor captured {counters.cudagraph_captures} CUDA graphs and skipped "
                f"{counters.cudagraph_skips}; trace=true records the reasons, variant=[compile] uses none"
            )


def first_calls(
    call: Callable[..., Any], examples: Sequence[Mapping[str, Any]], times: int = 1
) -> tuple[ShapeCompile, ...]:
    """Call `times` times with each of `examples`; return the seconds and graphs of each first call."""
    forms = [{f"{dotted(keys)} {form_of(leaf)}": None for keys, leaf in keyed_leaves(inputs)} for inputs in examples]
    calls = []
    for inputs, form in zip(examples, forms, strict=True):
        before, started = snapshot(), perf_counter()
        for _ in range(times):
            call(**inputs)
        seconds, new = perf_counter() - started, snapshot().since(before)
        words = printable(", ".join(each for each in form if any(each not in other for other in forms)), 200)
        calls.append(ShapeCompile(inputs=words, seconds=seconds, graphs=new.graphs, recompiles=new.recompiles))
    return tuple(calls)


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the modules in a list with another one of the same class and sizes, without looking inside them.

    A module that is in its list twice is repeated, too. Layers of torch.nn do not count as blocks.
    """
    blocks: dict[int, nn.Module] = {}
    pending = [module]
    while pending:
        parent = pending.pop()
        children = [child for child in parent._modules.values() if child is not None]  # children() lists each once
        kinds = Counter(map(_kind, children)) if isinstance(parent, nn.ModuleList | nn.Sequential) else {}
        for child in children:
            if kinds.get(_kind(child), 0) > 1 and not type(child).__module__.startswith("torch.nn."):
                blocks[id(child)] = child
            else:
                pending.append(child)
    return list(blocks.values())


def _kind(module: nn.Module) -> Hashable:
    """Return what blocks that share compiled code have in common: class and parameter sizes."""
    return type(module), tuple((name, each.shape, each.dtype) for name, each in module.named_parameters())


class _Regions:
    """A module whose blocks run compiled if it is called through this object, and eagerly if called directly.

    `compiled` compiles a method. `rest` is the module under torch.compile, which splits its graph at each block, and
    leaves a function that calls blocks in a loop eager. None: all but the blocks is eager. While `is_compiling`, blocks
    that are reached are `called` (others may only keep tensors, such as caches), and `graphs` compiled for them.
    """

    def __init__(
        self,
        module: nn.Module,
        blocks: Sequence[nn.Module],
        compiled: Callable[..., Any],
        rest: Callable[..., Any] | None,
    ) -> None:
        self._call, self._active, self._closing = rest or module, False, ExitStack()
        self.is_compiling, self.graphs = True, 0
        self.called: dict[int, nn.Module] = {}
        call_block = self._call_block if rest is None else torch.compiler.disable(self._call_block)
        forms: dict[Callable[..., Any], Callable[..., Any]] = {}  # by method: torch.compile takes 10 ms
        for block in blocks:
            hooks = block._forward_hooks or block._forward_pre_hooks
            method = block._call_impl if hooks else block.forward
            if isinstance(method, MethodType) and method.__self__ is block:
                function = method.__func__
                form = partial(forms.get(function) or forms.setdefault(function, compiled(function)), block)
            else:  # a forward of the instance
                form = compiled(method)
            block._compiled_call_impl = partial(call_block, block, form)
            self._closing.callback(vars(block).pop, "_compiled_call_impl", None)
            if rest is not None:  # of a module without hooks Dynamo inlines the forward without looking at that
                self._closing.callback(block.register_forward_pre_hook(lambda *_: None).remove)
        self.close = self._closing.close

    def __call__(self, /, *args: Any, **inputs: Any) -> Any:
        self._active = True
        try:
            return self._call(*args, **inputs)
        finally:
            self._active = False

    def _call_block(self, block: nn.Module, form: Callable[..., Any], /, *args: Any, **inputs: Any) -> Any:
        if not self._active:
            return block._call_impl(*args, **inputs)
        if not self.is_compiling:
            return form(*args, **inputs)
        self.called[id(block)] = block
        before = snapshot()
        output = form(*args, **inputs)
        self.graphs += snapshot().since(before).graphs
        return output


def _classes(blocks: Iterable[nn.Module]) -> str:
    return ", ".join(dict.fromkeys(type(block).__name__ for block in blocks))


def _has_compiled_code(module: nn.Module) -> bool:
    """Return whether Dynamo has code for the module's forward, perhaps from a stage with the same blocks."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    code = getattr(getattr(module.forward, "__func__", module.forward), "__code__", None)
    return code is not None and len(_debug_get_cache_entry_list(code)) > 0


def _named_recompiles(compiled: Callable[..., Any], /, *args: Any, **inputs: Any) -> Any:
    """Call a compiled module; where it was compiled as often as torch allows, say which value it is compiled for."""
    from torch._dynamo.exc import FailOnRecompileLimitHit

    try:
        return compiled(*args, **inputs)
    except FailOnRecompileLimitHit as error:
        raise RuntimeError(recompiles_in_each_call(recompile_reason())) from error


def _new_step(module: Callable[..., Any], /, **inputs: Any) -> Any:
    # Without this mark inductor's graph trees continue the last call and keep its outputs alive.
    torch.compiler.cudagraph_mark_step_begin()
    return module(**inputs)


@contextmanager
def kept_kernels(folder: Path) -> Iterator[None]:
    """Inside the block, make inductor write generated code into `folder`, with benchmark code and unique kernel names.

    The folder is inductor's cache meanwhile, so that the compile is a cold start. A Triton kernel's file times itself
    when it is run (`python FILE` prints ms, GB and GB/s), that of a graph times the graph. The block must contain
    everything that compiles, including the first calls, because `torch.compile` is lazy.
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
