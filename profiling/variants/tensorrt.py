"""TensorRT by torch_tensorrt (the extra `tensorrt`), written against the source of version 2.14.0 and never run."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from profiling.errors import DID_NOTHING, InputError, NothingChangedError, did_you_mean, missing_package
from profiling.results.explanations import Package
from profiling.variants.aot_inductor import by_shape, exported, grouped
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.inductor import COMPILED_STEPS
from profiling.variants.packages import new_file
from profiling.variants.recipe import AnyTransform, Compiler, Outcome


@dataclass(frozen=True, kw_only=True)
class TensorRT(Compiler):
    """Compile with `torch.compile(backend="tensorrt")`, which builds an engine for each supported part.

    `dynamic` is that of torch.compile. `cuda_graphs` lets torch_tensorrt capture each engine, again for each new shape.
    `options` are fields of torch_tensorrt's CompilationSettings.
    """

    dynamic: bool | None = None
    cuda_graphs: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_graphs(self) -> str | None:
        """The option that turns on CUDA graphs of torch_tensorrt, or None."""
        return "cuda_graphs: true" if self.cuda_graphs else None

    def misfit(self, transforms: Sequence[AnyTransform], capture: CudaGraph | None) -> str | None:
        """Return why a capture cannot be combined with it: engines run on streams of torch_tensorrt."""
        own = f"{type(self).__name__} cannot be captured from outside. Write capture: null, and cuda_graphs: true."
        return None if capture is None else own

    def unavailable(self, device: torch.device) -> str | None:
        """Return how to install torch_tensorrt if it is missing, or that `device` is no CUDA device, or None."""
        no_gpu = None if device.type == "cuda" else f"TensorRT needs a CUDA device, this run is on {device.type}"
        return missing_package("torch_tensorrt") or no_gpu

    def flags(self, folder: Path) -> ExitStack:
        """Set torch_tensorrt's mode for CUDA graphs; closing the stack restores it. InputError: an unknown option."""
        trt = importlib.import_module("torch_tensorrt")  # registers its back end of torch.compile
        known = [each.name for each in fields(trt.dynamo.CompilationSettings) if each.name != "dryrun"]
        for name in self.options:
            if name not in known:  # torch_tensorrt would ignore it
                raise InputError(f"options.{name} is unknown or builds no engine.{did_you_mean(name, known)}")
        with ExitStack() as stack:
            stack.enter_context(COMPILED_STEPS)
            stack.callback(trt.runtime.set_cudagraphs_mode, trt.runtime.get_cudagraphs_mode())
            trt.runtime.set_cudagraphs_mode(self.cuda_graphs and self.package_suffix is None)
            return stack.pop_all()

    def compile(
        self, module: nn.Module, examples: Sequence[Mapping[str, Any]], folder: Path, written: Mapping[str, Tensor]
    ) -> Outcome:
        """Compile by calling; with CUDA graphs, until those are recorded too. NothingChangedError: no engine."""
        call = torch.compile(module, backend="tensorrt", dynamic=self.dynamic, options=dict(self.options))
        with _reports() as reports:
            for inputs in examples:
                for _ in range(3 if self.cuda_graphs else 1):
                    call(**inputs)
        return _outcome(call, reports)


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

    def compile(
        self, module: nn.Module, examples: Sequence[Mapping[str, Any]], folder: Path, written: Mapping[str, Tensor]
    ) -> Outcome:
        """Export, build engines, save and load. SkippedError: not exportable, or no engine was built."""
        trt, calls, packages = importlib.import_module("torch_tensorrt"), [], []
        with ExitStack() as stack, _reports() as reports:
            groups = grouped(module, examples, dynamic=self.dynamic)
            for group in groups:
                started, program = perf_counter(), exported(module, group)
                exported_at, inputs = perf_counter(), dict(program.example)
                file = new_file(folder, f"{type(module).__name__}.pt2")
                # The program has the ranges of its axes. torch_tensorrt.compile would drop the inputs by name.
                compiled = trt.dynamo.compile(program.program, kwarg_inputs=inputs, **dict(self.options))
                trt.save(compiled, str(file), kwarg_inputs=inputs, dynamic_shapes=program.shapes)
                built_at, call = perf_counter(), trt.load(str(file)).module()
                packages.append(
                    Package(
                        file=str(file.relative_to(folder.parents[1])),
                        bytes=file.stat().st_size,
                        dynamic=program.axes,
                        export_s=exported_at - started,
                        compile_s=built_at - exported_at,
                        load_s=perf_counter() - built_at,
                    )
                )
                graphed = trt.runtime.enable_cudagraphs(compiled) if self.cuda_graphs else nullcontext(call)
                calls.append(stack.enter_context(graphed))
            return _outcome(by_shape(groups, calls), reports, packages=tuple(packages), close=stack.pop_all().close)


@contextmanager
def _reports() -> Iterator[list[str]]:
    """Collect the reports that torch_tensorrt logs on the graphs that it compiles in the block."""
    reports: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        reports.append(record.getMessage())
        return False  # pages of text, not to be printed

    logger = logging.getLogger("torch_tensorrt.dynamo._DryRunTracker")
    with ExitStack() as stack:
        stack.callback(logger.setLevel, logger.level)
        stack.callback(logger.removeFilter, collect)
        logger.addFilter(collect)
        logger.setLevel(logging.DEBUG)
        yield reports


def _outcome(call: Callable[..., Any], reports: Sequence[str], **other: Any) -> Outcome:
    """Return the outcome of compiling with the counts in the reports. NothingChangedError: no engine."""
    text = "\n".join(reports)
    counts = [(int(a), int(b)) for a, b in re.findall(r"(\d+) Total Operators, of which (\d+) operators", text)]
    engines = len(re.findall(r"TRT Engine #\d+ - Submodule name: ", text))
    in_torch, missing = len(re.findall(r"^Node: ", text, re.M)), re.findall(r"^ *(\S+): (\d+)$", text, re.M)
    of, supported = (sum(each) for each in zip((0, 0), *counts, strict=True))
    notes = [f"{supported} of {of} operators have a converter: {engines} engines, {in_torch} nodes run in torch"]
    if missing:
        notes.append(f"without a converter: {', '.join(f'{name} ({count})' for name, count in dict.fromkeys(missing))}")
    if engines == 0:
        raise NothingChangedError(f"TensorRT: {DID_NOTHING}: no engine was built ({'; '.join(notes)})")
    return Outcome(call, changed=engines, notes=tuple(notes), **other)
