"""The check before the first cell: resolves device, dtype and scale, captures the environment, checks every option.

It runs in a process of its own, because the process that starts cells never imports torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from msgspec import structs

from profiling.components.instantiate import instantiate, partial_of
from profiling.components.spec import Settings
from profiling.components.weights import find_weights
from profiling.errors import InputError, MissingExtraError, print_traceback, reason_of
from profiling.machine.devices import named_device
from profiling.machine.memory import used_and_free
from profiling.metrics.metric import Metric
from profiling.run.checkouts import Checkout
from profiling.run.environment import ceilings_of, environment
from profiling.run.events import Emit, End, Probed
from profiling.run.job import Job
from profiling.run.revisions import module_states
from profiling.variants.variant import Variant


def probe(jobs: tuple[Job, ...], emit: Emit, checkout: Checkout | None = None) -> Probed:
    """Resolve the settings and check every option of every job before the first one runs.

    The phase "ceilings" is sent before the ceilings are measured, if they are not cached. The modules of components
    of a `checkout` are imported, and must be its own.

    Raises:
        InputError: this machine lacks the device or dtype, or an option, checkpoint, module or target is wrong.

    """
    components = {spec.name: spec for job in jobs for spec in job.networks}
    if checkout is not None:
        for spec in components.values():
            with suppress(MissingExtraError):  # its cells are skipped
                partial_of(spec.module, f"component.{spec.name}.module")
        checkout.check_imports()
    settings = resolve(jobs[0].settings)
    device = torch.device(settings.device)
    ends: dict[str, End] = {}
    for name, options in {job.variant: job.variant_options for job in jobs}.items():
        try:
            end = _unavailable(_instance(Variant, options, f"variant.{name}"), device)
        except MissingExtraError as error:
            end = End("skipped", str(error))
        if end is not None:
            ends[name] = end
    cell: Any = partial_of(jobs[0].procedure, jobs[0].target)
    for name, node in jobs[0].metrics.items():
        _instance(Metric, node, f"metric.{name}")
    for spec in components.values():
        path, _ = find_weights(spec, settings)
        if path is not None and not path.exists():
            raise InputError(f"component.{spec.key}.checkpoint={path} does not exist. Correct the path.")
    parts = [(job.variant_options, job.metrics, job.procedure) for job in jobs]
    parts += [(spec.module, spec.inputs) for spec in components.values()]
    own = re.findall(r'"_target_": "(?!(?:profiling|models)\.)([^"]+)"', json.dumps(parts, ensure_ascii=False))
    revisions = module_states(dict.fromkeys([*(spec.module["_target_"] for spec in components.values()), *own]))
    machine = structs.replace(environment(settings), module_git=revisions)
    if settings.ceilings == "auto":
        try:
            dtype = cell.func.computes_in(settings.dtype, **cell.keywords)
            machine = structs.replace(machine, ceilings=ceilings_of(replace(settings, dtype=dtype), machine, emit))
        except (RuntimeError, OSError) as error:  # the run goes on without rooflines
            machine = structs.replace(machine, ceilings_reason=f"not measured: {str(error).splitlines()[0]}")
    free = used_and_free(device)[1] if settings.compile_cache == "shared" else {}  # which begins to use the device
    return Probed(settings, machine, ends, free)


def _unavailable(variant: Variant, device: torch.device) -> End | None:
    """Return the end of the variant's cells where they cannot run."""
    try:
        reason = variant.unavailable(device)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        print_traceback(error)
        return End("failed", f"unavailable() of the variant failed: {reason_of(error)}")
    return None if reason is None else End("skipped", str(reason) or "its unavailable() gives no reason")


def resolve(settings: Settings) -> Settings:
    """Return the settings with every `auto` replaced.

    Raises:
        InputError: this machine lacks the device, or the device lacks the dtype.

    """
    cuda = torch.cuda.is_available()
    device, reason = _device(settings.device, cuda)
    on_cuda = device.type == "cuda"
    if settings.counters and not on_cuda:
        raise InputError(f"counters=true: hardware counters are those of a GPU ({reason}). Leave it out.")
    dtype, scale = settings.dtype, settings.scale
    with torch.cuda.device(device) if on_cuda else nullcontext():  # torch asks the current device
        has_bfloat16 = on_cuda and torch.cuda.is_bf16_supported(including_emulation=False)
    if dtype == "auto":
        dtype = "bfloat16" if has_bfloat16 else "float32"
    elif dtype == "bfloat16" and on_cuda and not has_bfloat16:
        raise InputError(
            f"dtype=bfloat16: {torch.cuda.get_device_name(device)} does not support it. Use dtype=float16."
        )
    if scale == "auto":
        scale = "full" if on_cuda else "tiny"
    threads = settings.threads or len(os.sched_getaffinity(0))
    return replace(settings, device=str(device), dtype=dtype, scale=scale, threads=threads)


def _device(requested: str, cuda: bool) -> tuple[torch.device, str]:
    if requested == "auto":
        return torch.device("cuda:0" if cuda else "cpu"), f"auto: CUDA is {'' if cuda else 'not '}available"
    device = named_device(requested)
    return torch.device("cpu") if device.type == "cpu" else torch.device("cuda", device.index or 0), "as requested"


def _instance(kind: type, node: Mapping[str, Any], where: str) -> Any:
    instance = instantiate(node, where)
    if not isinstance(instance, kind):
        raise InputError(f"{where}: {node['_target_']} is a {type(instance).__name__}, not a {kind.__name__}.")
    return instance
