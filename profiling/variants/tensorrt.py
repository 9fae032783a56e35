"""The compilers TensorRT and AOTTensorRT through torch_tensorrt (the extra `tensorrt`).

Written against the source of torch_tensorrt 2.14.0, never run with it. Tests use a stand-in with its signatures, which
are recorded from the wheel.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from profiling.components.instantiate import is_device_failure
from profiling.components.trees import dotted, keyed_leaves
from profiling.errors import DID_NOTHING, InputError, did_you_mean, missing_package, reason_of
from profiling.results.record import Package
from profiling.trace.counters import nothing_compiled, snapshot
from profiling.variants.aot_inductor import (
    ByShape,
    exported,
    place_of,
    shapes_of,
    sizes_of,
)
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.inductor import RECOMPILE_LIMIT
from profiling.variants.packages import new_file
from profiling.variants.recipe import AnyTransform, Compiler, Outcome

#: Options that cannot be chosen, and why.
_NO_OPTIONS = {
    "dryrun": "its report is read from each compile, and a dry run builds no engine",
    "device": "engines are built for the device of the run",
    "enable_cross_compile_for_windows": "engines are run here",
}
#: Most operators without a converter that a remark names.
_NAMED = 10


@dataclass(frozen=True, kw_only=True)
class TensorRT(Compiler):
    """Compile with `torch.compile(backend="tensorrt")`, which builds an engine for each supported part.

    `dynamic` is that of torch.compile. `cuda_graphs` lets torch_tensorrt capture each engine, again for each new shape.
    `options` are fields of torch_tensorrt's CompilationSettings.

    Raises:
        InputError: an option that cannot be chosen.

    """

    dynamic: bool | None = None
    cuda_graphs: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the options that can be checked without torch_tensorrt."""
        for name in self.options:
            if name in _NO_OPTIONS:
                raise InputError(f"options.{name}: {_NO_OPTIONS[name]}. Leave it out.")

    @property
    def own_graphs(self) -> str | None:
        """The option that turns on CUDA graphs of torch_tensorrt, or None."""
        return "cuda_graphs: true" if self.cuda_graphs else None

    def misfit(self, transforms: Sequence[AnyTransform], capture: CudaGraph | None) -> str | None:
        """Return why a capture cannot be combined with it: engines run on streams of torch_tensorrt."""
        if capture is None:
            return None
        return (
            f"{type(self).__name__} runs its engines on streams of its own, which cannot be captured from outside. "
            "Write capture: null, and cuda_graphs: true for the CUDA graphs of torch_tensorrt."
        )

    def unavailable(self, device: torch.device) -> str | None:
        """Return how to install torch_tensorrt if it is missing, or that `device` is no CUDA device, or None."""
        missing = missing_package("torch_tensorrt")
        if missing is not None:
            return missing
        return None if device.type == "cuda" else f"TensorRT needs a CUDA device, this run is on {device.type}"

    def flags(self, folder: Path) -> ExitStack:
        """Set torch_tensorrt's mode for CUDA graphs; closing the stack restores it and drops compiled code."""
        runtime = _torch_tensorrt().runtime
        with ExitStack() as stack:
            stack.callback(torch._dynamo.reset)
            stack.enter_context(RECOMPILE_LIMIT)
            stack.callback(runtime.set_cudagraphs_mode, runtime.get_cudagraphs_mode())
            runtime.set_cudagraphs_mode(self.cuda_graphs and self.package_suffix is None)
            return stack.pop_all()

    def compile(self, module: nn.Module, examples: Sequence[Mapping[str, Any]], folder: Path) -> Outcome:
        """Compile by calling; with CUDA graphs, until those are recorded too.

        Raises:
            InputError: torch_tensorrt has no such option.
            RuntimeError: nothing was compiled, or no engine was built.

        """
        self._check_options()
        call = torch.compile(module, backend="tensorrt", dynamic=self.dynamic, options=dict(self.options))
        before = snapshot()
        with _reports() as reports:
            for inputs in examples:
                for _ in range(3 if self.cuda_graphs else 1):
                    call(**inputs)
        if snapshot().since(before).graphs == 0:
            raise RuntimeError(nothing_compiled())
        return Outcome(call, changed=_engines(reports), notes=_remarks(reports))

    def _check_options(self) -> None:
        # torch_tensorrt ignores names that it does not know.
        known = [each.name for each in fields(_torch_tensorrt().dynamo.CompilationSettings)]
        for name in self.options:
            if name not in known:
                raise InputError(f"options.{name}: torch_tensorrt has no such option.{did_you_mean(name, known)}")


@dataclass(frozen=True, kw_only=True)
class AOTTensorRT(TensorRT):
    """Export the module, build its engines, save them into the run folder, and run what was loaded from there.

    For several shapes, `dynamic` makes one file for the range from the smallest to the largest size of each axis;
    without it there is a file for each shape. With `cuda_graphs`, torch_tensorrt wraps the compiled module, not the
    loaded one: a graph for each engine, or of the whole call if parts run in torch, recorded again at a new shape.
    """

    package_suffix: ClassVar[str | None] = ".pt2"
    runs_no_python: ClassVar[bool] = True

    dynamic: bool = True  # pyright: ignore[reportIncompatibleVariableOverride] - its options have another meaning

    def compile(self, module: nn.Module, examples: Sequence[Mapping[str, Any]], folder: Path) -> Outcome:
        """Export, build engines, save and load.

        Raises:
            InputError: an input is no tensor.
            SkippedError: the module cannot be exported.
            RuntimeError: torch_tensorrt failed, or built no engine.

        """
        self._check_options()
        with ExitStack() as stack, _reports() as reports:
            groups = [examples] if self.dynamic else [[each] for each in examples]
            made = [(group[-1], *self._built(module, group, folder, stack)) for group in groups]
            engines = _engines(reports)
            call = made[0][1] if len(made) == 1 else ByShape({shapes_of(each): call for each, call, _ in made})
            return Outcome(
                call,
                changed=engines,
                notes=_remarks(reports),
                packages=tuple(package for _, _, package in made),
                close=stack.pop_all().close,
            )

    def _built(
        self, module: nn.Module, examples: Sequence[Mapping[str, Any]], folder: Path, stack: ExitStack
    ) -> tuple[Callable[..., Any], Package]:
        trt = _torch_tensorrt()
        for keys, leaf in keyed_leaves(examples[-1]):
            if not isinstance(leaf, Tensor):
                raise InputError(
                    f"compiler: AOTTensorRT takes inputs that are tensors, and {dotted(keys)} is "
                    f"{type(leaf).__name__}. Use TensorRT."
                )
        started = perf_counter()
        program = exported(module, examples)
        export_s, started = perf_counter() - started, perf_counter()
        try:
            # torch_tensorrt.compile(ir="dynamo") drops kwarg_inputs if it gets an ExportedProgram.
            compiled = trt.dynamo.compile(
                program.program, kwarg_inputs=_input_ranges(trt, examples), **dict(self.options)
            )
            file = new_file(folder, f"{type(module).__name__}.pt2")
            trt.save(compiled, str(file), kwarg_inputs=dict(program.example), dynamic_shapes=program.shapes)
        except Exception as error:
            if is_device_failure(error):
                raise
            raise RuntimeError(f"torch_tensorrt raised {reason_of(error)}{place_of(error)}") from error
        compile_s, started = perf_counter() - started, perf_counter()
        call = trt.load(str(file)).module()
        load_s = perf_counter() - started
        if self.cuda_graphs:
            call = stack.enter_context(trt.runtime.enable_cudagraphs(compiled))
        package = Package(
            file=str(file.relative_to(folder.parents[1])),
            bytes=file.stat().st_size,
            export_s=export_s,
            compile_s=compile_s,
            load_s=load_s,
            dynamic=program.axes,
        )
        return call, package


def _torch_tensorrt() -> Any:
    """Import torch_tensorrt, which registers its back end of torch.compile."""
    return importlib.import_module("torch_tensorrt")


def _input_ranges(trt: Any, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last of the examples, with each tensor whose sizes differ replaced by a range of shapes.

    Raises:
        InputError: sizes differ inside a nested input.

    """
    ranges = dict(examples[-1])
    for keys, shapes in sizes_of(examples).items():
        if len(set(shapes)) == 1:
            continue
        name = dotted(keys)
        tensor = ranges.get(name)
        if not isinstance(tensor, Tensor):
            raise InputError(f"compiler: {name} is nested, and differs in size. Write dynamic: false.")
        ranges[name] = trt.Input(
            min_shape=tuple(map(min, zip(*shapes, strict=True))),
            opt_shape=tuple(tensor.shape),
            max_shape=tuple(map(max, zip(*shapes, strict=True))),
            dtype=tensor.dtype,
            name=name,
        )
    return ranges


# What torch_tensorrt reports on a graph.
# ---------------------------------------------------------------------------------


@dataclass
class _Report:
    """What TensorRT took of a graph: counts of operators, of those with a converter, of engines and of nodes left."""

    operators: int
    supported: int
    engines: int
    in_torch: int
    unsupported: Counter[str]


@contextmanager
def _reports() -> Iterator[list[_Report]]:
    """Collect the reports that torch_tensorrt logs on the graphs that it compiles in the block."""
    reports: list[_Report] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reports.extend(read_report(record.getMessage()))

    logger, handler = logging.getLogger("torch_tensorrt.dynamo._DryRunTracker"), Handler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False  # pages of text
    try:
        yield reports
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def read_report(text: str) -> list[_Report]:
    """Return the report in `text`, a message of torch_tensorrt's dry run tracker; empty if it is no report."""
    totals = re.search(r"consists of (\d+) Total Operators, of which (\d+) operators are supported", text)
    if totals is None:
        return []
    unsupported = _paragraph(text, "The following ops are currently unsupported or excluded from conversion")
    in_torch = _paragraph(text, "The following nodes are currently set to run in Torch")
    counts = (line.rpartition(": ") for line in unsupported)
    return [
        _Report(
            operators=int(totals[1]),
            supported=int(totals[2]),
            engines=len(re.findall(r"TRT Engine #\d+ - Submodule name: ", text)),
            in_torch=sum(line.startswith("Node: ") for line in in_torch),
            unsupported=Counter({name: int(count) for name, _, count in counts if count.isdecimal()}),
        )
    ]


def _paragraph(text: str, title: str) -> list[str]:
    """Return the lines between the one that begins with `title` and the next blank one."""
    _, _, rest = text.partition(title)
    return [line.strip() for line in rest.split("\n\n")[0].splitlines()[1:] if line.strip()]


def _engines(reports: Sequence[_Report]) -> int:
    """Return the number of engines.

    Raises:
        RuntimeError: there are none.

    """
    engines = sum(report.engines for report in reports)
    if engines == 0:
        found = "; ".join(_remarks(reports)) or "no graph has as many supported operators as min_block_size"
        raise RuntimeError(f"TensorRT: {DID_NOTHING}: no engine was built ({found})")
    return engines


def _remarks(reports: Sequence[_Report]) -> tuple[str, ...]:
    """Return the counts of all graphs in words."""
    if not reports:
        return ()
    operators, supported, engines, in_torch = (
        sum(getattr(report, name) for report in reports) for name in ("operators", "supported", "engines", "in_torch")
    )
    lines = [f"{supported} of {operators} operators have a converter: {engines} engines, {in_torch} nodes run in torch"]
    missing = sum((report.unsupported for report in reports), Counter[str]())
    if missing:
        names = [f"{name} ({count})" for name, count in missing.most_common(_NAMED)]
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        lines.append(f"without a converter: {', '.join(names)}{more}")
    return tuple(lines)
