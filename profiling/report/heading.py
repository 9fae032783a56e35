"""The origin of the numbers: device, versions, settings, ceilings, config and the command."""

from __future__ import annotations

import json
from contextlib import suppress

from profiling.errors import LONGEST_COMMAND, printable
from profiling.report.format import MIB, count_of, significant
from profiling.report.page import Section
from profiling.report.run_data import RunData
from profiling.results.environment import Environment, Git, encode_environment
from profiling.results.jsonl import read_file
from profiling.results.run_folder import CONFIG_FILE

_VERSIONS = ("torch", "cuda", "cudnn", "triton", "driver", "python")
_LABELS = {"cuda": "CUDA", "cudnn": "cuDNN"}


def heading_lines(data: RunData) -> tuple[str, ...]:
    """Return up to three lines: the device, the software, the run's settings."""
    environment = data.environment
    tiny = any(record.scale == "tiny" for record in data.records)
    versions = environment.versions
    software = [f"{_LABELS.get(name, name)} {versions[name]}" for name in _VERSIONS if versions.get(name)]
    lines = (_device(environment), software, _settings(environment, tiny=tiny))
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


def origin_sections(data: RunData) -> tuple[Section, ...]:
    """Return the environment of the run, its config, and its command."""
    facts, config = encode_environment(data.environment), ""
    with suppress(OSError):
        config = read_file(data.folder / CONFIG_FILE).decode(errors="replace")
    return (
        Section("environment", "Environment", text=json.dumps(facts, indent=2) if facts else "", depth="page"),
        Section("config", "Config", text=config, depth="page"),
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
