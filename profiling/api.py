"""Profile a module that a script holds, and prepare it as it was measured: `profiling.profile`, `profiling.prepare`."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from types import FunctionType
from typing import Any

import msgspec
import torch
from rich.console import Console
from torch import nn

from profiling.cli.groups import CONF, named_recipes, names_in, read_yaml
from profiling.components import held
from profiling.components.build import use_deterministic_algorithms, use_threads
from profiling.components.compiled import compiled_note
from profiling.components.component import CHECK_SEED
from profiling.components.held import Held, Inputs, named_inputs
from profiling.components.instantiate import instantiate
from profiling.components.outputs import relative_l2
from profiling.components.spec import DTYPES, ComponentSpec, Settings
from profiling.components.trajectory import kept_generators
from profiling.errors import InputError, SkippedError, check_choice, check_number, printable, shell_words
from profiling.graphs import CaptureError
from profiling.machine.tf32 import kept_tf32, tf32_allowed
from profiling.report.format import few
from profiling.report.result import RunResult
from profiling.results.environment import ENVIRONMENT_FILE, encode_environment, read_environment
from profiling.results.jsonl import append_record
from profiling.results.run_folder import keep_newest_lines, write_json
from profiling.run.compile_caches import TORCH_TRACE
from profiling.run.job import RunConfig, as_recipe
from profiling.run.progress import Progress
from profiling.run.revisions import module_states
from profiling.run.runner import Run
from profiling.variants.prepared import PreparedStep
from profiling.variants.recipe import Recipe
from profiling.variants.variant import Variant

TARGET = "generic_forward"
VARIANTS = ("baseline", "compile", "cuda_graph", "compile+cuda_graph")
METRICS = ("parity", "latency", "memory")
#: Recipes (`int8_weights+compile`) or names of metrics; or objects (or mappings with a `_target_`) by the names that
#: they get in the report.
Chosen = Sequence[str] | Mapping[str, Any]


def profile(
    module: nn.Module | Callable[[], nn.Module],
    inputs: Inputs,
    variants: Chosen = VARIANTS,
    *,
    fps: float | None = None,
    metrics: Chosen = METRICS,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    autocast: torch.dtype | None = None,
    seed: int = 0,
    check_inputs: Mapping[str, Any] | None = None,
    name: str | None = None,
    frames_per_call: int = 1,
    seconds: float | None = None,
    rounds: int = 1,
    ceilings: str = "auto",
    trace: bool = False,
    quiet: bool = False,
    allow: Sequence[str] = (),
) -> RunResult:
    """Measure `module` under `variants`, check each against eager float32, and return the run, which prints its answer.

    Everything runs in this process, on copies of the module in eval mode and under `torch.inference_mode()`. The module
    keeps its dtype, device, mode, weights, buffers and gradients; random number generators, TF32 flags, default dtype
    and device, and number of threads are restored. What the process has compiled before is compiled again when it is
    next called. Memory: beside the caller's module two copies (of the baseline and of the variant that takes turns with
    it), one where there is no room for two; a copy is in float32 while the reference is computed.

    Args:
        module: the module, or a function without arguments that builds it (for one that cannot be copied).
        inputs: arguments of `forward` by name, a list of them, one for each call of a trajectory, or a function from a
            seed to such arguments.
        variants: what to measure: steps of `conf/step`, joined by +, or variants by name.
        fps: frame rate that the fastest correct variant is compared with, frames/s.
        metrics: what to measure of each variant.
        device: default: that of the module.
        dtype: dtype to cast the copies to, and inputs that have the module's dtype. Default: the copies keep the dtypes
            of the module's tensors, also where they differ.
        autocast: dtype of `torch.autocast`, under which the copies are called without being cast.
        seed: of drawn inputs, and of a module that a function builds.
        check_inputs: inputs of the first call that is compared and timed. Those of each other call, and by default of
            this one, are drawn with another seed, or are these with their values in another order; masks, sorted
            integers and plain values stay.
        name: of the component in the report; default: the module's class.
        frames_per_call: frames that a call makes; 0: none, and no frame rate is judged.
        seconds: at most, for timing a variant in turns with the baseline. Default: `max_seconds` of the metric latency
            for each of the two.
        rounds: how many times variants are measured that do not take turns with the baseline.
        ceilings: "auto" measures what the device can do (some seconds, once a device and driver); "off": no roofline.
        trace: add profiler traces and tables of operators.
        quiet: print no progress.
        allow: paths of Python state that outputs do not depend on, which a replay need not follow: a counter.

    Raises:
        InputError: an argument is wrong, or the module fails on its inputs.

    """
    if fps is not None:
        check_number("fps", fps, above=0)
    if dtype is not None and autocast is not None:
        raise InputError(f"dtype={dtype} casts the module, and autocast={autocast} calls it uncast. Give one of them.")
    subject = Held(module, inputs, check_inputs, seed, cast=dtype is not None)
    kind = str(dtype or autocast or subject.dtype).removeprefix("torch.")
    if dtype is None and autocast is None and kind not in DTYPES:
        raise InputError(
            f"module computes in {kind}; {', '.join(DTYPES)} can be measured. Pass dtype=torch.float32, which casts "
            "copies of it."
        )
    settings = Settings(
        device=str(device or subject.device),
        dtype=kind,
        scale="full",
        checkpoint="random",  # the module has its weights
        seed=seed,
        threads=torch.get_num_threads(),
        tf32=tf32_allowed(),
        ceilings=ceilings,
        trace=trace,
    )
    progress = Progress(Console(stderr=True, quiet=quiet))
    folder = Path(mkdtemp(prefix="profiling-"))
    with held.holding(subject) as key, _unchanged_process(), ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)  # unless a result takes it over
        spec = ComponentSpec(
            name=name or _class_name(module, subject),
            module={"_target_": f"{held.__name__}.module", "key": key},
            inputs={"_target_": f"{held.__name__}.inputs", "key": key},
            pretrained="the caller's",
            cast="module" if subject.cast else "none" if autocast is None else "autocast",
            frames_per_call=frames_per_call,
            state={"ignore": list(allow)} | ({} if subject.calls is None else {"calls": subject.calls}),
        )
        groups = {"variant": _nodes("variant", variants), "metric": _nodes("metric", metrics)}
        config = RunConfig(
            components=(spec,),
            variants=groups["variant"],
            metrics=groups["metric"],
            settings=settings,
            isolation="none",
            cell_timeout=1e6,  # does not apply in this process
            resume=None,
            source={"component": {spec.name: dataclasses.asdict(spec)}, **groups, **dataclasses.asdict(settings)},
            rounds=rounds,
            seconds=seconds,
        )
        run = Run(TARGET, config, folder, progress, shell_words(["python", *sys.argv]))
        try:
            run.execute()
        finally:
            progress.close()
        records = tuple(run.records.values())
        wrong = [record for record in records if record.bad_input]
        if wrong and not any(record.status in ("ok", "invalid") for record in records):
            raise InputError(wrong[0].reason)
        stack.pop_all()
    _complete(run, subject)
    return RunResult(folder, fps=fps, temporary=True)


def prepare(
    module: nn.Module,
    inputs: Inputs,
    variant: str | Variant = "compile+cuda_graph",
    *,
    autocast: torch.dtype | None = None,
    clone: bool = True,
    package: str | os.PathLike[str] | None = None,
    allow: Sequence[str] = (),
) -> PreparedStep:
    """Prepare the step of a variant, as `profile` measures it, for use in an application: `output = step(x=x)`.

    The module itself is used, in eval mode (and under autocast) until the step is closed; closing does not undo the
    transforms of a recipe. The step is compared with the module over a trajectory of calls with inputs of their own.
    The state of the module is then as before; `step.reset()` returns to it. Where a module draws random numbers, nobody
    can tell whether a compiled step that is not captured is right: it is returned with a warning.

    Args:
        module: the module, in the dtype and on the device on which it is to run.
        inputs: arguments of `forward` by name, or a list of them, one for each call of the trajectory, or a function
            from a seed to them; every call must have the same shapes and dtypes.
        variant: the steps of a recipe (conf/step), `int8_weights+compile` for example, or a Variant.
        autocast: dtype of `torch.autocast`, under which the module is called.
        clone: return a copy of the output. Without it, the next call may overwrite the output of this one.
        package: path of the file to write, `decoder.pt2` for example: what an ahead-of-time compiler made and this
            step runs, without a capture. An application loads it without this tool.
        allow: paths of Python state that outputs do not depend on, which a replay need not follow: a counter.

    Raises:
        InputError: an argument is wrong, or the variant cannot run on the module's device or changes nothing in it.
        CaptureError: the call cannot be captured, or a replay cannot follow the state of the module.
        WrongOutputError: a step without a capture returns other outputs than the module.

    """
    if not isinstance(module, nn.Module):
        raise InputError(f"module has the type {type(module).__name__}, and is not a torch.nn.Module.")
    subject = Held(module, inputs)
    if not isinstance(variant, Variant):
        (node,) = named_recipes([variant]).values()
        chosen = instantiate(as_recipe(node), f"variant={variant}")
        assert isinstance(chosen, Variant)
    else:
        chosen = variant
    reason = chosen.unavailable(subject.device)
    if reason is not None:
        raise InputError(f"variant={variant!r} cannot run here: {reason}. Try variant='baseline'.")
    file = None if package is None else _package_path(Path(package), chosen)
    try:
        return PreparedStep(subject, chosen, autocast=autocast, clone=clone, package=file, allow=allow)
    except CaptureError:
        raise
    except SkippedError as error:  # a cell of a run would be skipped
        why = str(error).rstrip(".")
        raise InputError(f"this variant does not apply to the module: {why}. Try variant='baseline'.") from error


def _package_path(path: Path, variant: Variant) -> Path:
    """Check the path of a package before compiling, which may take minutes."""
    suffix = variant.compiler.package_suffix if isinstance(variant, Recipe) and variant.compiler is not None else None
    if suffix is None:
        raise InputError(f"package={str(path)!r}: this variant makes no package. Use variant='aot_inductor'.")
    if path.suffix != suffix:
        raise InputError(f"package={str(path)!r} must end with {suffix}.")
    if not path.parent.is_dir():
        raise InputError(f"package={str(path)!r}: there is no folder {str(path.parent)!r}. Create it first.")
    return path.absolute()


def _nodes(group: str, chosen: Chosen) -> dict[str, dict[str, Any]]:
    """Return the config node of each chosen variant or metric by name: its `_target_` and options.

    Raises:
        InputError: there is no such metric, a wrong expression, or an object that no YAML could describe.

    """
    if isinstance(chosen, str):
        raise InputError(f"{group}s={chosen!r} is a text. Give a list: {group}s=[{chosen!r}].")
    if isinstance(chosen, Mapping):
        return {name: _node(f"{group}s[{name!r}]", value) for name, value in chosen.items()}
    if group == "variant":
        return named_recipes(chosen)
    for name in chosen:
        check_choice(f"{group}s", name, names_in(group, [CONF]))
    return {name: read_yaml(CONF / group / f"{name}.yaml")[name] for name in chosen}


def _node(where: str, value: Any) -> Any:
    """Return the mapping with a `_target_` that describes an object: a dataclass such as a Variant, or a function.

    Raises:
        InputError: an object that no YAML could describe.

    """
    if isinstance(value, Mapping):
        return {key: _node(f"{where}.{key}", each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_node(where, each) for each in value]
    if isinstance(value, FunctionType | partial):
        function, options = (value.func, value.keywords) if isinstance(value, partial) else (value, {})
        path = _path_of(where, function)
        if isinstance(value, partial) and value.args:
            name, given = path.rpartition(".")[2], printable(", ".join(map(repr, value.args)))
            raise InputError(
                f"{where}: {name} has arguments without a name: {given}. Write partial({name}, NAME=VALUE)."
            )
        return {"_target_": path, "_partial_": True, **_node(where, options)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        kind = type(value).__name__
        raise InputError(f"{where}: a {kind} cannot be written as YAML. Make its class a dataclass, or use a function.")
    options = {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
    return {"_target_": _path_of(where, type(value)), **_node(where, options)}


def _path_of(where: str, value: Any) -> str:
    """Return the dotted path of a class or function."""
    name = getattr(value, "__qualname__", repr(value))
    if "<" in name:  # <locals>, <lambda>
        raise InputError(f"{where}: {name} is defined inside a function. Define it at the top of its file, by a name.")
    return f"{value.__module__}.{name}"


def _complete(run: Run, subject: Held) -> None:
    """Add what the run cannot know: where the code is, what was compiled, and that check inputs were not others."""
    builder = type(subject.module) if isinstance(subject.module, nn.Module) else subject.module
    target = f"{getattr(builder, '__module__', '')}.{getattr(builder, '__qualname__', '')}"
    environment = msgspec.structs.replace(read_environment(run.folder), module_git=module_states([target]))
    write_json(run.folder / ENVIRONMENT_FILE, encode_environment(environment))
    prepared = dict(named_inputs(subject.first))
    checks = [dict(named_inputs(subject.draw(subject.seed + CHECK_SEED + call))) for call in range(subject.calls or 1)]
    same = [path for path, each in prepared.items() if all(relative_l2(check[path], each) == 0 for check in checks)]
    checked = ""
    if same:
        checked = "parity was checked on the inputs that the variant was prepared with: give other ones as check_inputs"
        if len(same) < len(prepared):
            which = few(same)
            checked = f"parity was checked with the same {which} that the variant was prepared with: give check_inputs"
    for record in run.records.values():
        notes = [compiled_note(subject.compiled)] * bool(subject.compiled)
        notes += [checked] * (bool(same) and record.parity is not None)
        if notes:
            append_record(run.folder, msgspec.structs.replace(record, notes=(*record.notes, *notes)))
    keep_newest_lines(run.folder)


def _class_name(module: object, subject: Held) -> str:
    """Return the name of the module's class; `module` for what another function returns."""
    made = module if isinstance(module, type) else type(subject.module)
    return made.__name__ if issubclass(made, torch.nn.Module) else "module"


@contextmanager
def _unchanged_process() -> Iterator[None]:
    """Restore what the cells of a run change for the whole process."""
    cuda, device = torch.cuda.is_initialized(), torch._GLOBAL_DEVICE_CONTEXT
    default_device = getattr(getattr(device, "device_context", None), "device", None)
    default_dtype, threads, traces = torch.get_default_dtype(), torch.get_num_threads(), os.environ.get(TORCH_TRACE)
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    current = torch.cuda.current_device() if cuda else None
    try:
        with (
            kept_generators(),
            kept_tf32(),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False) if cuda else nullcontext(),
        ):
            yield
    finally:
        use_deterministic_algorithms(deterministic, warn_only=warn_only)
        use_threads(threads)
        torch.set_default_dtype(default_dtype)
        torch.set_default_device(default_device)
        if current is not None:
            torch.cuda.set_device(current)
        if traces is None:
            os.environ.pop(TORCH_TRACE, None)
