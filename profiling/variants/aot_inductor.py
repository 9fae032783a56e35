"""The compiler AOTInductor: torch.export, a `.pt2` package in the run folder, and torch's loader for it.

A package holds a copy of the weights, and no CUDA graphs. When it is loaded, buffers that its program writes to
(caches, positions) are bound to those of the module, so that resetting the module resets the package.
"""

from __future__ import annotations

import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor, fx, nn
from torch._inductor import cpp_builder
from torch._library.triton import triton_ops_to_kernels
from torch.export.graph_signature import OutputKind, TensorArgument
from torch.utils._pytree import tree_map, treespec_dumps

from profiling.components.effects import storage_of
from profiling.components.instantiate import is_device_failure
from profiling.components.trees import dotted, keyed_leaves, tensors_in
from profiling.components.user_code import is_user_code
from profiling.errors import InputError, SkippedError, causes, printable, reason_of
from profiling.fx_passes.passes import name_of
from profiling.results.explanations import Package
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.inductor import check_known, idle_option, missing_toolchain
from profiling.variants.packages import link_or_copy, new_file, shared_path
from profiling.variants.recipe import AnyTransform, Compiler, Outcome
from profiling.variants.rewrite import Rewritten

_SUFFIX = ".pt2"
#: Options that cannot be chosen, and why.
_NO_OPTIONS = {
    "triton.cudagraphs": "a package holds no CUDA graphs. Give the recipe a capture",
    "aot_inductor.output_path": "packages are written to the run folder. Leave it out",
    "aot_inductor.package_constants_in_so": "a package without its weights cannot be called. Leave it out",
}
#: Without these, inductor makes constants of small buffers, for example of a position.
_KEEP_BUFFERS = {"always_keep_tensor_constants": True, "joint_graph_constant_folding": False}


@dataclass(frozen=True, kw_only=True)
class AOTInductor(Compiler):
    """Export the module, compile it into a package, load the package, and run what was loaded.

    For several shapes, `dynamic` makes one package in which the axes that differ are dynamic; without it there is a
    package for each shape. `strict` exports through Dynamo. `options` are those of inductor.

    Raises:
        InputError: an unknown option, or one that a package cannot have.

    """

    package_suffix: ClassVar[str | None] = _SUFFIX
    runs_no_python: ClassVar[bool] = True

    dynamic: bool = True
    strict: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.options:
            if name in _NO_OPTIONS:
                raise InputError(f"options.{name}: {_NO_OPTIONS[name]}.")
        check_known(self.options)

    def misfit(self, transforms: Sequence[AnyTransform], capture: CudaGraph | None) -> str | None:
        """Return which transform's quantisation `freezing` would undo, or None."""
        undone = [each for each in transforms if getattr(each, "dequantises_in_calls", False)]
        if not self.options.get("freezing") or not undone:
            return None
        return (
            f"options.freezing would dequantise the weights of {name_of(undone[0])} when the package is made, so that "
            "calls read as many bytes as without quantisation. Leave out one of the two."
        )

    def unavailable(self, device: torch.device) -> str | None:
        """Return which option changes nothing here, or what is missing to build packages: C++ code, also for a GPU."""
        return idle_option(self.options, device) or missing_toolchain()

    def compile(
        self, module: nn.Module, examples: Sequence[Mapping[str, Any]], folder: Path, written: Mapping[str, Tensor]
    ) -> Outcome:
        """Export, package and load: once for all shapes, or for each.

        Raises:
            InputError: the examples differ in more than sizes, and `dynamic` is true.
            SkippedError: the module cannot be exported, or a package cannot return what it returns or follow its state.
            RuntimeError: inductor cannot package the exported program.

        """
        state = _written_members(module, written)
        groups = grouped(module, examples, dynamic=self.dynamic)
        made = [self._package(module, group, folder, state) for group in groups]
        return Outcome(
            by_shape(groups, [call for call, _, _ in made]),
            changed=len(made),
            notes=tuple(dict.fromkeys(note for _, _, notes in made for note in notes)),
            packages=tuple(package for _, package, _ in made),
        )

    def _package(
        self, module: nn.Module, examples: Sequence[Mapping[str, Any]], folder: Path, state: Mapping[str, Tensor]
    ) -> tuple[Callable[..., Any], Package, list[str]]:
        """Return the loaded package, to which `state` is bound, its section of the record, and remarks."""
        started = perf_counter()
        exporting = exported(module, examples, strict=self.strict)
        program, example = exporting.program, exporting.example
        _check_output(program)
        export_s, started = perf_counter() - started, perf_counter()
        options: dict[str, Any] = {
            # Precompiled headers: with the empty cache of a cell they take longer than they save.
            "aot_inductor.precompile_headers": False,
            **self.options,
            **(_KEEP_BUFFERS if state else {}),
            "aot_inductor.custom_op_libs": [
                *(self.options.get("aot_inductor.custom_op_libs") or ()),
                *_missing_libstdcxx(),
            ],
        }
        file = new_file(folder, f"{type(module).__name__}{_SUFFIX}")
        name, shared = str(file.relative_to(folder.parents[1])), shared_path(program, example, options, _SUFFIX)
        cached = shared is not None and shared.exists()
        if shared is not None and cached:
            link_or_copy(shared, file)
        else:
            with _one_line("inductor cannot package what was exported", RuntimeError):
                torch._inductor.aoti_compile_and_package(program, package_path=str(file), inductor_configs=options)
            if shared is not None:
                link_or_copy(file, shared)
        compile_s, started = perf_counter() - started, perf_counter()
        # torch's loader has crashed processes; then this is the last line of the log.
        print(f"loading {name}", file=sys.stderr, flush=True)
        device = next((tensor.device.index for tensor in tensors_in(example)), None)
        with _one_line(f"torch cannot load {name}", RuntimeError):
            # The locks of a multi-threaded runner cannot be captured.
            runner = torch._inductor.aoti_load_package(
                str(file), run_single_threaded=True, device_index=-1 if device is None else device
            )
        bound = {each: state[each] for each in sorted(runner.get_constant_fqns()) if each in state}
        if bound:
            runner.load_constants(bound, check_full_update=False, user_managed=True)
        package = Package(
            file=name,
            bytes=file.stat().st_size,
            export_s=export_s,
            compile_s=compile_s,
            load_s=perf_counter() - started,
            dynamic=exporting.axes,
            cached=cached,
        )
        shares = [f"buffers that calls change are shared with the module: {', '.join(bound)}"] if bound else []
        return runner, package, [*own_operators(program), *shares]


def _missing_libstdcxx() -> list[str]:
    """Return what to link a package to where g++ finds no `libstdc++.so` and would link a copy into the package.

    Such a package crashes the process when it is loaded. It parses the device with std::regex, which looks up parts of
    the locale by index, and its copy numbers them otherwise than the libstdc++ of the process.
    """

    def finds(library: str) -> bool:  # g++ repeats the name of a file that it does not find
        command = [cpp_builder.get_cpp_compiler(), f"-print-file-name={library}"]
        return Path(subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()).is_absolute()

    copied = sys.platform == "linux" and not finds("libstdc++.so") and finds("libstdc++.so.6")
    return [":libstdc++.so.6"] if copied else []  # `-l:NAME` links to the file NAME


# What a program calls, returns and writes to. ----------------------------------------------------------------------


def own_operators(program: torch.export.ExportedProgram) -> Iterator[str]:
    """Yield a remark that names the operators which a process must register before it loads the package."""
    parts = program.graph_module.modules()  # some are nested (under autocast, for example)
    targets = {node.target for part in parts if isinstance(part, fx.GraphModule) for node in part.graph.nodes}
    # What can be decomposed (torchao's operators) is not in the package; kernels of a `triton_op` are.
    of_torch = ("aten", "prim", "prims", "export", "_export", "inductor", "quantized", "higher_order")
    called = [each for each in targets if isinstance(each, torch._ops.OpOverload) and each.namespace not in of_torch]
    own = [each for each in called if not each._can_decompose() and not triton_ops_to_kernels.get(each.name())]
    if own:
        yield f"register these operators before loading the package: {', '.join(sorted(map(str, own)))}"


def _check_output(program: torch.export.ExportedProgram) -> None:
    """Check that a package can return what the program returns; inductor fails late, and does not say what to change.

    Raises:
        SkippedError: it returns an object of a class without a registered name, or a value other than a tensor.

    """
    try:
        treespec_dumps(program.call_spec.out_spec)  # pyright: ignore[reportArgumentType]
    except NotImplementedError as error:  # torch: a class without a registered name
        reason = printable(error, 400).rstrip(".")
        raise SkippedError(f"a package cannot return what the module returns: {reason}. Or return a dict.") from error
    for output in program.graph_signature.output_specs:
        value = getattr(output.arg, "value", output.arg.name)  # a size that is dynamic has a name
        if output.kind is OutputKind.USER_OUTPUT and not isinstance(output.arg, TensorArgument) and value is not None:
            raise SkippedError(
                f"the output holds {printable(repr(value), 40)}, and a package returns only tensors. Return a tensor "
                "there, or use Inductor."
            )


def _written_members(module: nn.Module, written: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the module's buffers and parameters in the memory of `written` (by path), by their names.

    Raises:
        SkippedError: one of `written` is no buffer; of that a package makes a constant.

    """
    storages = {storage_of(tensor) for tensor in written.values()}
    members = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    found = {name: tensor for name, tensor in members if storage_of(tensor) in storages}
    followed = set(map(storage_of, found.values()))
    if constants := [path for path, tensor in written.items() if storage_of(tensor) not in followed]:
        raise SkippedError(
            f"a package cannot follow the module's state: calls write to {', '.join(constants)}. Make each a buffer "
            "(register_buffer), or use Inductor."
        )
    return found


# Exporting. ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exported:
    """An exported program, the arguments that it was exported with, and its dynamic axes.

    `shapes` are the `dynamic_shapes` of torch.export, None without such axes. `axes` has their names: `x.0` is the
    first axis of the input `x`.
    """

    program: torch.export.ExportedProgram
    example: Mapping[str, Any]
    shapes: Mapping[str, Any] | None
    axes: tuple[str, ...]


def exported(module: nn.Module, examples: Sequence[Mapping[str, Any]], *, strict: bool = False) -> Exported:
    """Export the module for the arguments in `examples`; an axis whose sizes differ between them is dynamic.

    Raises:
        InputError: inputs differ in more than sizes.
        SkippedError: the module cannot be exported, with the line at which it fails.

    """
    example = max(examples, key=lambda each: sum(tensor.numel() for tensor in tensors_in(each)))
    leaves = [dict(keyed_leaves(each)) for each in examples]
    ranges, axes = [], list[str]()
    for keys, leaf in keyed_leaves(example):
        column = [each.get(keys) for each in leaves]
        if any(_without_sizes(each) != _without_sizes(leaf) for each in column):
            raise InputError(
                "compiler: dynamic: true makes one package for all shapes, and the inputs differ in more than sizes: "
                f"{dotted(keys)}. Write dynamic: false."
            )
        if isinstance(leaf, Tensor):
            sizes = enumerate(map(set, zip(*(each.shape for each in column if isinstance(each, Tensor)), strict=True)))
            dynamic = {n: torch.export.Dim.DYNAMIC(min=min(each), max=max(each)) for n, each in sizes if len(each) > 1}
            ranges.append(dynamic or None)
            axes += [f"{dotted(keys)}.{axis}" for axis in dynamic]
    # The tree of the inputs, with each tensor replaced by its axes and other values by None.
    of_tensors = iter(ranges)
    tree = tree_map(lambda leaf: next(of_tensors) if isinstance(leaf, Tensor) else None, dict(example))
    shapes = tree if axes else None
    with _one_line(f"torch.export cannot export {type(module).__name__}", SkippedError):
        program = torch.export.export(module, (), dict(example), dynamic_shapes=shapes, strict=strict)
    return Exported(program, example, shapes, tuple(axes))


def _without_sizes(leaf: Any) -> Any:
    return (leaf.dim(), leaf.dtype) if isinstance(leaf, Tensor) else leaf


@contextmanager
def _one_line(failed: str, kind: type[Exception]) -> Iterator[None]:
    """Run a block of torch's without warnings; what it raises becomes `kind`, with the line of the user's code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as error:
            if is_device_failure(error):
                raise
            raise kind(f"{failed}{_place_of(error)}: {reason_of(error)}") from error


def _place_of(error: BaseException) -> str:
    """Return ` at FILE:LINE`, the innermost line of the user's code in an error of torch, or ""."""
    seen: list[tuple[str, Any]] = []
    for cause in causes(error):
        seen += [(frame.filename, frame.lineno) for frame in traceback.extract_tb(cause.__traceback__)]
        seen += re.findall(r'File "([^"]+)", line (\d+)', str(cause)[:100_000])
    own = [f" at {file}:{line}" for file, line in seen if is_user_code(file)]
    return own[-1] if own else ""


# Shapes. ------------------------------------------------------------------------------------------------------------


def grouped(
    module: nn.Module, examples: Sequence[Mapping[str, Any]], *, dynamic: bool
) -> list[Sequence[Mapping[str, Any]]]:
    """Return the examples that share a file: all if `dynamic`, unless the module has a graph for each shape."""
    return [examples] if dynamic and not isinstance(module, Rewritten) else [[each] for each in examples]


def by_shape(groups: Iterable[Sequence[Mapping[str, Any]]], calls: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """Return the only one of `calls`, or one that calls that for the shapes of its arguments, as `groups` have them."""
    if len(calls) == 1:
        return calls[0]
    by_shapes = {_shapes(group[-1]): call for group, call in zip(groups, calls, strict=True)}
    return lambda **inputs: by_shapes[_shapes(inputs)](**inputs)


def _shapes(inputs: Mapping[str, Any]) -> Hashable:
    return tuple(tensor.shape for tensor in tensors_in(inputs))
