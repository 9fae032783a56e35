"""What the numbers were taken on: a few compact lines from `environment.json`, whatever of it is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.reporting.facts import at, number_at
from profiling.reporting.format import MIB, one_line
from profiling.reporting.limits import ceilings_line

ENVIRONMENT_FILE = "environment.json"


def read_environment(run: Path) -> Mapping[str, Any]:
    """Return the run's environment; empty where the file is missing, cut off or no mapping."""
    try:
        content = json.loads((run / ENVIRONMENT_FILE).read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def environment_lines(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the lines that stand above the table: the device, the software, the run's settings."""
    lines = (_device(environment), _versions(environment), ceilings_line(environment), _settings(environment))
    return tuple(" · ".join(parts) for parts in lines if parts)


def command_line(environment: Mapping[str, Any]) -> str | None:
    """Return the command that made the run, on one line."""
    command = at(environment, "command")
    return one_line(command) if isinstance(command, str) and command.strip() else None


def _device(environment: Mapping[str, Any]) -> list[str]:
    cpu, device = at(environment, "cpu"), at(environment, "device")
    parts = []
    if at(device, "type") != "cpu":
        parts += [_shown(device, "name"), _capability(at(device, "capability"))]
        parts += [
            _number(device, "multiprocessors", "{:.0f} SMs"),
            _number(device, "memory_bytes", "{:.1f} GiB", 2**30),
        ]
        parts += [_number(device, "l2_bytes", "L2 {:.0f} MiB", MIB), _clocks(device)]
        parts += [_number(device, "power_limit_w", "limit {:.0f} W")]
    parts += [_shown(cpu, "model") or (_shown(device, "name") if at(device, "type") == "cpu" else "")]
    parts += [_number(cpu, "cores", "{:.0f} cores"), _number(environment, "threads", "{:.0f} threads")]
    return [part for part in parts if part]


def _versions(environment: Mapping[str, Any]) -> list[str]:
    versions = at(environment, "versions")
    if not isinstance(versions, Mapping):
        return []
    order = ("torch", "cuda", "cudnn", "triton", "driver", "python", "numpy")
    names = [*order, *(str(name) for name in versions if name not in order)]
    labels = {"cuda": "CUDA", "cudnn": "cuDNN"}
    return [f"{labels.get(name, name)} {shown}" for name in names if (shown := _shown(versions, name))]


def _settings(environment: Mapping[str, Any]) -> list[str]:
    parts = [
        _with_reason(environment, "scale", "scale "),
        _with_reason(environment, "dtype"),
        _prefixed(environment, "seed", "seed "),
        _git(at(environment, "git")),
        _shown(environment, "captured_at"),
    ]
    return [part for part in parts if part]


def _shown(content: object, key: str) -> str:
    value = at(content, key)
    return one_line(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


def _prefixed(content: object, key: str, prefix: str) -> str:
    shown = _shown(content, key)
    return prefix + shown if shown else ""


def _with_reason(environment: Mapping[str, Any], key: str, prefix: str = "") -> str:
    shown, reason = _prefixed(environment, key, prefix), _shown(environment, f"{key}_reason")
    return f"{shown} ({reason})" if shown and reason else shown


def _number(content: object, key: str, form: str, unit: int = 1) -> str:
    value = number_at(content, key)
    return "" if value is None else form.format(value / unit)


def _capability(value: object) -> str:
    if isinstance(value, list | tuple):
        value = ".".join(str(part) for part in value)
    return f"capability {one_line(value)}" if isinstance(value, str | float) and value else ""


def _clocks(device: object) -> str:
    return _number(device, "clock_sm_max_mhz", "SM clock at most {:.0f} MHz")


def _git(git: object) -> str:
    revision = _shown(git, "revision")
    return f"git {revision[:12]}{' (dirty)' if at(git, 'dirty') is True else ''}" if revision else ""
