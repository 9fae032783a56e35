"""The compiler AOTInductor: torch.export, a `.pt2` package in the run folder, and torch's loader for it.

A package holds a copy of the weights, and no CUDA graphs. When it is loaded, buffers that calls change (caches,
positions) are bound to those of the module, so that resetting the module resets the package. A package whose second
call differs from the module's is refused.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch._inductor import cpp_builder, cpu_vec_isa
from torch.utils._pytree import tree_map, tree_structure, treespec_dumps

import profiling
from profiling.components.held import shuffled
from profiling.components.instantiate import is_device_failure
from profiling.components.outputs import Outputs, difference, to_host
from profiling.components.snapshot import Snapshot, same
from profiling.components.trees import children, dotted, keyed_leaves, keyed_tensors, map_tensors, tensors_in
from profiling.errors import InputError, printable, reason_of
from profiling.fx_passes.passes import name_of
from profiling.results.record import Package
from profiling.variants.cuda_graph import CudaGraph
from profiling.variants.inductor import check_known, idle_option, missing_toolchain
from profiling.variants.packages import fetch, new_file, share, shared_path
from profiling.variants.recipe import AnyTransform, Compiler, Outcome, Transform

#: Limits of a later call: its distance from the module's over that of the first call, or its relative L2
#: distance.
_LATER_CALL_FACTOR, _LATER_CALL_FLOOR = 3.0, 1e-3
_SUFFIX = ".pt2"
_LONG_CHECK_S = 0.5  # of the CPU's instruction sets: from here a remark says so
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

    dynamic: bool = True
    strict: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the options before any module is built."""
        for name in self.options:
            if name in _NO_OPTIONS:
                raise InputError(f"options.{name}: {_NO_OPTIONS[name]}.")
        check_known(self.options)

    def misfit(self, transforms: Sequence[AnyTransform], capture: CudaGraph | None) -> str | None:
        """Return which transform's quantisation `freezing` would undo, or None."""
        undone = [each for each in transforms if isinstance(each, Transform) and each.dequantises_in_calls]
        if not self.options.get("freezing") or not undone:
            return None
        return (
            f"options.freezing would dequantise the weights of {name_of(undone[0])} when the package is made, so that "
            "calls read as many bytes as without quantisation. Leave out one of the two."
        )

    def unavailable(self, device: torch.device) -> str | None:
        """Return which option changes nothing here, or what is missing to build packages: C++ code, also for a GPU."""
        return idle_option(self.options, device) or missing_toolchain()

    def compile(self, module: nn.Module, examples: Sequence[Mapping[str, Any]], folder: Path) -> Outcome:
        """Export, package and load; then compare calls in a row, the last with other inputs, with those of the module.

        Raises:
            InputError: the module cannot be exported, a package cannot return what it returns, or would not follow its
            state.
            RuntimeError: inductor cannot package the exported program.

        """
        expected = calls_in_a_row(module, module, examples[-1], check_output, may_refuse=True)
        made = [
            self._package(module, group, folder, expected)
            for group in ([examples] if self.dynamic else [[each] for each in examples])
        ]
        call = made[0].call if len(made) == 1 else ByShape({shapes_of(each.example): each.call for each in made})
        check_later_calls(expected, calls_in_a_row(call, module, examples[-1], times=len(expected.outputs)))
        for each in made:
            if each.shared is not None:
                with _best_effort("sharing the package with later cells", each.notes):
                    share(each.file, each.shared)
        return Outcome(
            call,
            changed=len(made),
            notes=tuple(dict.fromkeys(note for each in made for note in each.notes)),
            packages=tuple(each.package for each in made),
        )

    def _package(
        self, module: nn.Module, examples: Sequence[Mapping[str, Any]], folder: Path, calls: CallsInARow
    ) -> _Loaded:
        started = perf_counter()
        program = exported(module, examples, strict=self.strict)
        export_s = perf_counter() - started
        checked_s, started = _check_instruction_sets(), perf_counter()
        libraries = _shared_libstdcxx(cpp_builder.get_cpp_compiler())
        options = self._all_options(libraries, keep_buffers=bool(calls.changed))
        notes = list(_remarks(program.program, libraries))
        file, shared, cached = new_file(folder, f"{type(module).__name__}{_SUFFIX}"), None, False
        with _best_effort("looking for a package of an earlier cell", notes):
            shared = shared_path(program.program, options, _SUFFIX)
            cached = shared is not None and fetch(shared, file)
        with _without_warnings():
            try:
                if not cached:
                    torch._inductor.aoti_compile_and_package(
                        program.program, package_path=str(file), inductor_configs=options
                    )
            except Exception as error:
                if is_device_failure(error):
                    raise
                message = f"inductor cannot package what was exported: {reason_of(error)}{place_of(error)}"
                raise InputError(_with_changes(message, calls)) if calls.unbound else RuntimeError(message) from error
            compile_s = perf_counter() - started
            device = next((tensor.device for tensor in tensors_in(examples[-1])), torch.device("cpu"))
            index = -1 if device.index is None else device.index
            name, started = str(file.relative_to(folder.parents[1])), perf_counter()
            # torch's loader has crashed processes; then this is the last line of the log.
            print(f"loading {name}", file=sys.stderr, flush=True)
            # The locks of a multi-threaded runner cannot be captured.
            runner = torch._inductor.aoti_load_package(str(file), run_single_threaded=True, device_index=index)
        bound = {name: calls.changed[name] for name in sorted(runner.get_constant_fqns()) if name in calls.changed}
        if bound:
            runner.load_constants(bound, check_full_update=False, user_managed=True)
        package = Package(
            file=name,
            bytes=file.stat().st_size,
            export_s=export_s,
            compile_s=compile_s,
            load_s=checked_s + perf_counter() - started,
            dynamic=program.axes,
            cached=cached,
        )
        if checked_s > _LONG_CHECK_S:
            notes.append(
                f"{checked_s:.1f} s of loading: in each process that loads a package, torch tries which vector "
                "instructions the CPU has. TORCHINDUCTOR_VEC_ISA_OK=1 skips a part of that"
            )
        if bound:
            notes.append(f"buffers that calls change are shared with the module: {', '.join(bound)}")
        return _Loaded(runner, examples[-1], package, file, None if cached else shared, notes)

    def _all_options(self, libraries: Sequence[str], *, keep_buffers: bool) -> dict[str, Any]:
        """Return the options of inductor, with those that packages here need: `libraries` are linked to."""
        options = {**self.options}
        if "aot_inductor.precompile_headers" in torch._inductor.list_options():
            # Off: with the empty cache of a cell it takes longer than it saves.
            options.setdefault("aot_inductor.precompile_headers", False)
        if keep_buffers:
            options |= _KEEP_BUFFERS
        if libraries:
            own = options.get("aot_inductor.custom_op_libs") or ()
            options["aot_inductor.custom_op_libs"] = [*own, *libraries]
        return options


@dataclass(frozen=True)
class _Loaded:
    """A loaded package and its file, an example of its inputs, the path for later cells (`shared`), and remarks."""

    call: Callable[..., Any]
    example: Mapping[str, Any]
    package: Package
    file: Path
    shared: Path | None
    notes: list[str]


@contextmanager
def _best_effort(action: str, notes: list[str]) -> Iterator[None]:
    """Run a block without which the package works too; if it raises, add a remark."""
    try:
        yield
    except Exception as error:
        if is_device_failure(error):
            raise
        notes.append(f"{action} failed: {reason_of(error)}")


def _check_instruction_sets() -> float:
    """Make torch find the vector instructions that the CPU has, and return the seconds: a part of loading a package.

    It does so once in a process, also to compile. For each set it compiles small libraries that its cache lacks, and a
    new Python process loads each; in torch 2.11 after importing torch.
    """
    started = perf_counter()
    cpu_vec_isa.pick_vec_isa()
    return perf_counter() - started


@cache
def _shared_libstdcxx(compiler: str) -> tuple[str, ...]:
    """Return what to link a package to where `compiler` has no `libstdc++.so` and would link a copy into the package.

    Such a package crashes the process when it is loaded. It parses the device with std::regex, which looks up parts of
    the locale by index, and its copy numbers them otherwise than the libstdc++ of the process.
    """
    if sys.platform != "linux" or _file_of(compiler, "libstdc++.so") or not _file_of(compiler, "libstdc++.so.6"):
        return ()
    return (":libstdc++.so.6",)  # `-l:NAME` links to the file NAME


def _file_of(compiler: str, library: str) -> Path | None:
    """Return where the C++ compiler finds a library, or None; without a path it repeats the name."""
    asked = subprocess.run([compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=False)
    found = Path(asked.stdout.strip())
    return found if found.is_absolute() and found.exists() else None


def _remarks(program: torch.export.ExportedProgram, libraries: Sequence[str]) -> Iterator[str]:
    if libraries:
        yield "linked to libstdc++.so.6: the C++ compiler finds no libstdc++.so, and a copy in the package would crash"
    graphs = (part.graph for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule))
    targets = (node.target for graph in graphs for node in graph.nodes)
    operators = (each for each in targets if isinstance(each, torch._ops.OpOverload))
    # What can be decomposed (torchao's operators) is not in the package.
    own = {str(each) for each in operators if not _is_of_torch(each) and not each._can_decompose()}
    if own:
        yield f"register these operators before loading the package: {', '.join(sorted(own))}"


def _is_of_torch(operator: torch._ops.OpOverload) -> bool:
    return operator.namespace in ("aten", "prim", "prims", "export", "_export", "inductor", "quantized", "higher_order")


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
        InputError: the module cannot be exported, with the line at which it fails; or inputs differ in more than sizes.

    """
    example = max(examples, key=lambda each: sum(tensor.numel() for tensor in tensors_in(each)))
    sizes = sizes_of(examples)
    axes = {
        keys: [i for i, values in enumerate(zip(*shapes, strict=True)) if len(set(values)) > 1]
        for keys, shapes in sizes.items()
    }
    names = tuple(f"{dotted(keys)}.{axis}" for keys, dynamic in axes.items() for axis in dynamic)
    dimensions = iter(
        {
            axis: torch.export.Dim.DYNAMIC(
                min=min(each[axis] for each in sizes[keys]), max=max(each[axis] for each in sizes[keys])
            )
            for axis in axes[keys]
        }
        or None
        for keys, _ in keyed_tensors(example)
    )
    # The tree of the inputs, with each tensor replaced by its axes and other values by None.
    shapes = (
        tree_map(lambda leaf: next(dimensions) if isinstance(leaf, Tensor) else None, dict(example)) if names else None
    )
    with _without_warnings():
        try:
            program = torch.export.export(module, (), dict(example), dynamic_shapes=shapes, strict=strict)
        except Exception as error:
            if is_device_failure(error):
                raise
            raise InputError(
                f"compiler: torch.export cannot export {type(module).__name__}{place_of(error)}: {reason_of(error)}"
            ) from error
    return Exported(program, example, shapes, names)


def sizes_of(examples: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[tuple[int, ...]]]:
    """Return the shapes of each input tensor by its keys, one shape for each of `examples`.

    Raises:
        InputError: the inputs differ in more than sizes.

    """
    rows = [dict(keyed_leaves(each)) for each in examples]
    sizes = {}
    for keys, leaf in rows[0].items():
        others = [row.get(keys) for row in rows[1:]]
        if isinstance(leaf, Tensor):
            if not all(
                isinstance(each, Tensor) and (each.dim(), each.dtype) == (leaf.dim(), leaf.dtype) for each in others
            ):
                raise _other_inputs(dotted(keys))
            sizes[keys] = [tuple(row[keys].shape) for row in rows]
        elif any(isinstance(each, Tensor) or each != leaf for each in others):
            raise _other_inputs(dotted(keys))
    return sizes


def _other_inputs(path: str) -> InputError:
    return InputError(
        f"compiler: dynamic: true makes one package for all shapes, and the inputs differ in more than sizes: {path}. "
        "Write dynamic: false."
    )


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


#: Folders of code that is not the user's.
_LIBRARIES = tuple(f"{Path(str(each.__file__)).resolve().parent}/" for each in (torch, profiling))
_STANDARD = f"{Path(sysconfig.get_paths()['stdlib']).resolve()}/"


def place_of(error: BaseException) -> str:
    """Return ` at FILE:LINE`, the innermost line of the user's code in an error of torch, or ""."""
    seen: list[tuple[str, int]] = []
    cause: BaseException | None = error
    while cause is not None:
        seen += [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(cause.__traceback__)]
        seen += [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(cause)[:100_000])]
        cause = cause.__cause__ or cause.__context__
    own = [(file, line) for file, line in seen if not _is_library(file)]
    return f" at {own[-1][0]}:{own[-1][1]}" if own else ""


def _is_library(file: str) -> bool:
    path = str(Path(file).resolve())
    standard = path.startswith(_STANDARD) and not path.startswith(f"{_STANDARD}site-packages")
    return file.startswith("<") or path.startswith(_LIBRARIES) or standard


# Outputs. -----------------------------------------------------------------------------------------------------------


def check_output(output: Any, keys: tuple[Any, ...] = ()) -> None:
    """Check that a package can return `output`, what `keys` lead to; inductor's own errors do not say what to change.

    Raises:
        InputError: it holds an object of a class without a registered name, or a value other than a tensor.

    """
    entries = None if isinstance(output, Tensor) else children(output)
    if entries is None:
        if output is not None and not isinstance(output, Tensor):
            place = f" at {dotted(keys)}" if keys else ""
            raise InputError(
                f"compiler: the output holds {printable(repr(output), 40)}{place}, and a package returns only tensors. "
                "Return a tensor there, or use Inductor."
            )
        return
    for key, value in entries:
        check_output(value, (*keys, key))
    form = tree_structure(output)
    try:
        is_named = not form.is_leaf() and bool(treespec_dumps(form))
    except NotImplementedError:
        is_named = False
    if not is_named:
        raise _unnamed_class(type(output))


def _unnamed_class(cls: type) -> InputError:
    name = f"{cls.__module__}.{cls.__qualname__}"
    if is_dataclass(cls):
        register = "torch.export.register_dataclass"
    elif issubclass(cls, tuple):
        register = "torch.utils._pytree._register_namedtuple"
    else:
        return InputError(
            f"compiler: the output is of {name}, which a package cannot return. Return a dict or a tuple."
        )
    return InputError(
        f"compiler: the output is of {name}, which a package returns only if it is registered. Below the class, call "
        f"{register}({cls.__name__}, serialized_type_name={name!r}); an application must import it, too. Or return a "
        "dict or a tuple."
    )


# State. -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallsInARow:
    """The outputs of calls in a row, and what they changed.

    `changed` has the buffers that they wrote to, by name; `unbound` the paths of everything else that changed.
    """

    outputs: tuple[Outputs, ...]
    changed: Mapping[str, Tensor]
    unbound: tuple[str, ...]


def calls_in_a_row(
    call: Callable[..., Any],
    module: nn.Module,
    inputs: Mapping[str, Any],
    check: Callable[[Any], Any] = lambda output: None,
    *,
    times: int = 3,
    may_refuse: bool = False,
) -> CallsInARow:
    """Call twice with `inputs` and once with their values in another order; then restore what the calls changed.

    Old state may go unnoticed while the inputs stay the same: an average of equal inputs is what it was. `check` is
    called with each output. With `may_refuse` the call with other inputs is left out where it raises.
    """
    state = Snapshot({"": module, "inputs": inputs}, {id(each) for each in module.parameters()})
    outputs = ()
    try:
        for number in range(times):
            try:
                output = call(**(inputs if number < 2 else _in_another_order(inputs)))
            except Exception as error:
                if number < 2 or not may_refuse or is_device_failure(error):
                    raise
                break
            check(output)
            outputs += (to_host(output=output),)
        buffers = {id(buffer): name for name, buffer in module.named_buffers()}
        written = {key: kept for key, kept in state.kept.tensors.items() if not kept.is_unchanged()}
        changed = {buffers[key]: kept.tensor for key, kept in written.items() if key in buffers}
        other = [kept.path for key, kept in written.items() if key not in buffers]
        for holder, before in state.contents:
            after = holder.read()
            names = [name for name in before.keys() | after.keys() if not same(before.get(name), after.get(name))]
            other += [holder.place(name) for name in names]
    finally:
        state.restore()
    return CallsInARow(outputs, changed, tuple(dict.fromkeys(other)))


def _in_another_order(inputs: Mapping[str, Any]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return dict(map_tensors(lambda tensor: shuffled(tensor, generator), inputs))


def check_later_calls(expected: CallsInARow, calls: CallsInARow) -> None:
    """Refuse a package one of whose later calls is farther from the module's than the first.

    Raises:
        InputError: it is farther, because the package does not follow what calls of the module change.

    """
    first, *later = (difference(one, other).error for one, other in zip(calls.outputs, expected.outputs, strict=True))
    for error in later:
        if not error <= max(_LATER_CALL_FACTOR * first, _LATER_CALL_FLOOR):
            message = f"calls of the package have a relative L2 of {first:.2g}, then {error:.2g} to those of the module"
            raise InputError(_with_changes(message, expected))


def _with_changes(message: str, calls: CallsInARow) -> str:
    names = [*calls.unbound, *calls.changed]
    if not names:
        return f"compiler: {message}. Use Inductor."
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"compiler: {message}. Calls change {', '.join(names[:3])}{more}, which a package does not follow. Make it a "
        "buffer that is changed in place (register_buffer, copy_), or use Inductor."
    )


# Shapes. ------------------------------------------------------------------------------------------------------------


def shapes_of(inputs: Mapping[str, Any]) -> Hashable:
    """Return the shapes of the tensors in the arguments of a call."""
    return tuple(tensor.shape for tensor in tensors_in(inputs))


@dataclass(frozen=True)
class ByShape:
    """Calls the package for the shapes of the call."""

    runners: Mapping[Hashable, Callable[..., Any]]

    def __call__(self, /, **inputs: Any) -> Any:
        """Call the package; KeyError: there is none for these shapes."""
        return self.runners[shapes_of(inputs)](**inputs)
