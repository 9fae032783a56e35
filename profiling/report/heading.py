"""The origin of the numbers: device, versions, settings, ceilings, networks, config and the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from profiling.errors import LONGEST_COMMAND, printable
from profiling.report.format import MIB, count_of, significant
from profiling.report.page import Section
from profiling.report.run_data import RunData
from profiling.results.environment import Environment, Git, encode_environment
from profiling.results.record import Record

_VERSIONS = ("torch", "cuda", "cudnn", "triton", "driver", "python")
_LABELS = {"cuda": "CUDA", "cudnn": "cuDNN"}


def heading_lines(data: RunData) -> tuple[str, ...]:
    """Return up to three lines: the device, the software, the run's settings."""
    environment = data.environment
    tiny = any(record.scale == "tiny" for record in data.records)
    lines = (_device(environment), _software(environment), _settings(environment, tiny=tiny))
    return tuple(printable(" · ".join(filter(None, parts))) for parts in lines if any(parts))


def ceilings_line(environment: Environment) -> str:
    """Return the measured ceilings of the device in one line; empty where they were not measured."""
    ceilings = environment.ceilings
    if ceilings is None:
        return ""
    parts = [
        f"copy {rate_text(ceilings.copy_bytes_per_s, 'B/s')}, read {rate_text(ceilings.read_bytes_per_s, 'B/s')}",
        f"{ceilings.dtype} matrix products {rate_text(ceilings.matmul_flops_per_s, 'FLOP/s')}",
    ]
    if ceilings.conv_flops_per_s:
        parts.append(f"convolutions {rate_text(ceilings.conv_flops_per_s, 'FLOP/s')}")
    parts += [f"{dtype} {rate_text(rate, 'FLOP/s')}" for dtype, rate in ceilings.other_flops_per_s.items()]
    costs = (("launch", ceilings.launch_us), ("gap in a graph", ceilings.gap_us), ("replay", ceilings.replay_us))
    parts += [f"{name} {significant(time, 3)} µs" for name, time in costs if time is not None]
    return printable(f"Measured ceilings: {', '.join(parts)}.")


def network_section(data: RunData) -> Section:
    """Return a line for each component (parameters, dtype, device, weights), and one for each way to get weights."""
    lines = []
    for component, group in data.groups.items():
        parts = [f"{count:,} parameters" for count in _distinct(group, "parameters")]
        parts += [" / ".join(known) for known in (_dtypes(group), _distinct(group, "device")) if known]
        weights = " / ".join(_distinct(group, "weights"))
        if weights:
            parts.append(f"weights: {weights}")
        if parts:
            lines.append(printable(f"{component}: {', '.join(parts)}"))
        hints = _distinct(group, "weights_hint")[:1]
        by_role = next((record.weights_hints for record in group if record.weights_hints), {})
        hints += [f"{role}: {hint}" for role, hint in by_role.items()]
        lines += [printable(f"{component}, weights: {hint}") for hint in hints if weights]
    return Section("networks", "Networks", lines)


def origin_sections(data: RunData) -> tuple[Section, ...]:
    """Return the environment of the run, its config, and its command."""
    facts = encode_environment(data.environment)
    return (
        Section("environment", "Environment", text=json.dumps(facts, indent=2) if facts else "", depth="page"),
        Section("config", "Config", text=data.config(), depth="page"),
        Section("command", "Command", text=printable(data.environment.command or "", LONGEST_COMMAND), depth="report"),
    )


def _device(environment: Environment) -> list[str]:
    device, cpu, parts = environment.device, environment.cpu, []
    if device is not None and device.type != "cpu":
        parts = [
            device.name or "",
            f"{device.multiprocessors} SMs" if device.multiprocessors else "",
            f"{device.memory_bytes / 2**30:.0f} GiB" if device.memory_bytes else "",
            f"L2 {device.l2_bytes / MIB:.0f} MiB" if device.l2_bytes else "",
            f"{device.power_limit_w:.0f} W" if device.power_limit_w else "",
        ]
    model = cpu.model if cpu is not None and cpu.model else device.name if device is not None and not parts else None
    parts.append(model or "")
    if cpu is not None and cpu.cores:
        parts.append(count_of(cpu.cores, "core"))
    if environment.threads is not None and (cpu is None or environment.threads != cpu.cores):
        parts.append(count_of(environment.threads, "thread"))
    return parts


def _software(environment: Environment) -> list[str]:
    versions = environment.versions
    return [f"{_LABELS.get(name, name)} {versions[name]}" for name in _VERSIONS if versions.get(name)]


def _settings(environment: Environment, *, tiny: bool) -> list[str]:
    """Return the settings; `tiny`: some of the networks were built small, which only those with a tiny form are."""
    return [
        "scale tiny (these times say nothing about the full networks)" * tiny,
        f"scale {environment.scale}" if environment.scale not in (None, "tiny") else "",
        environment.dtype or "",
        f"seed {environment.seed}" if environment.seed is not None else "",
        _git("git", environment.user_git),
        _git("tool git", environment.tool_git if environment.tool_git != environment.user_git else None),
        (environment.captured_at or "")[:16].replace("T", " "),
    ]


def _git(what: str, git: Git | None) -> str:
    if git is None or not git.revision:
        return ""
    return f"{what} {git.revision[:12]}{' (dirty)' if git.dirty else ''}"


def rate_text(rate: float, unit: str) -> str:
    """Return `4.31 TB/s`."""
    size, name = next(((size, name) for size, name in ((1e12, "T"), (1e9, "G")) if rate >= size), (1e6, "M"))
    return f"{significant(rate / size, 3)} {name}{unit}"


def _dtypes(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the dtypes that the records' calls compute in: those of the weights, and that of autocast."""
    names = []
    for record in records:
        weights = " and ".join(record.parameter_dtypes) or record.dtype or ""
        names.append(f"{weights} under autocast {record.dtype}" if record.cast == "autocast" else weights)
    return tuple(name for name in dict.fromkeys(names) if name)


def _distinct(group: tuple[Record, ...], name: str) -> list[Any]:
    return list(dict.fromkeys(value for record in group if (value := getattr(record, name)) is not None))
