"""The overrides of a sweep: which of them differ, and whether one changes the work, the recipe or the timing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from profiling.results.record import AND, Record
from profiling.results.sweep import Sweep, SweepJob

#: Keys, and all below them, that change how the same work is run.
_RECIPE = (
    *("variant", "step", "dtype", "tf32", "threads", "mix", "dynamic", "max_rel_l2"),
    *("loop.schedule", "loop.gc", "training.autocast"),
)
#: Keys, and all below them, that change how, where or how long it is measured.
_MEASURING = (
    *("seed", "seconds", "rounds", "metric", "trace", "starts", "counters", "stacks", "memory_snapshot", "isolation"),
    *("ceilings", "compile_cache", "cell_timeout", "prepare_timeout", "device", "devices", "loop.frames"),
)
#: Keys of the launching, which concern no run.
_LAUNCHING = ("hydra", "launcher", "retries", "job_timeout", "resume", "resume_changed")
_OF_ONE = re.compile(r"(component|variant|step)\.([^.]+)\.")


def overrides_of(job: SweepJob) -> dict[str, str]:
    """Return the values of a job's overrides by key, without those of the launcher."""
    return {key: value for key, value in map(_key_and_value, job.overrides) if not _is_below(key, _LAUNCHING)}


def swept_keys(sweep: Sweep) -> tuple[str, ...]:
    """Return the keys whose values differ between jobs, in their order, but component and variant: they name cells."""
    given = [overrides_of(job) for job in sweep.jobs]
    keys = dict.fromkeys(key for values in given for key in values if key not in ("component", "variant"))
    return tuple(key for key in keys if len({values.get(key) for values in given}) > 1)


def values_of(job: SweepJob, keys: Sequence[str]) -> dict[str, str]:
    """Return the values of these keys that a job sets."""
    given = overrides_of(job)
    return {key: given[key] for key in keys if key in given}


def recipe_of(variant: str, values: Mapping[str, str]) -> str:
    """Return a variant with those of the overrides that change how the same work is run: `compile, dtype=float16`."""
    return ", ".join((variant, *(setting(key, value) for key, value in values.items() if _is_below(key, _RECIPE))))


def is_work(key: str) -> bool:
    """Return whether an override changes what is computed, and not how, where or how long it is measured."""
    return not _is_below(key, (*_RECIPE, *_MEASURING))


def concerns(key: str, record: Record) -> bool:
    """Return whether an override can concern a cell: not one of other components, variants or steps; of any, a loop."""
    match = _OF_ONE.match(key)
    if match is None or record.is_realtime:
        return True
    name = record.component if match[1] == "component" else record.variant
    names = name.partition("@")[0].split(AND) if match[1] == "step" else [name.partition("@")[0]]
    return match[2] in names


def setting(key: str, value: str) -> str:
    """Return `frames=4` of `component.NAME.inputs.frames=4`."""
    return f"{key.rpartition('.')[2]}={value}"


def _key_and_value(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return (key[1:], "left out") if key.startswith("~") else (key.lstrip("+"), value)


def _is_below(key: str, roots: Sequence[str]) -> bool:
    return any(key == root or key.startswith((f"{root}.", f"{root}/")) for root in roots)
