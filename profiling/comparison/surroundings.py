"""What differs around two runs and could explain their times: machine, driver, clocks, versions, code, options."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from profiling.comparison.side import Side
from profiling.reporting.facts import at, mapping_at, number_at
from profiling.results.run_folder import FREE_KEYS

#: (what, in A, in B)
Difference = tuple[str, str, str]

#: What explains most comes first: beginnings of keys. Keys that begin with none of them come last.
ORDER = (
    *("device.name", "device.type", "device", "versions.driver", "clock while timed", "versions.torch", "git"),
    *("threads", "dtype", "scale", "tf32", "variables", "versions.triton", "versions.cud", "cpu", "versions"),
)
#: Facts of a run that explain nothing, and what is measured anew each time.
PASSED_OVER = ("captured_at", "command", "launch_calibration", "git", "ceilings")
#: What was measured of the device has noise of its own: it differs where it differs by more than this part.
CEILING_CHANGE = 0.1
_TINY = re.compile(r"component\.\w+\.tiny\.")
ABSENT = "absent"


def differences(a: Side, b: Side) -> tuple[Difference, ...]:
    """Return what differs in the environments, what explains most first, then what differs in the configs."""
    one, two = (_environment(side) for side in (a, b))
    found = [
        (key, _shown(one, key), _shown(two, key)) for key in dict.fromkeys((*one, *two)) if one.get(key) != two.get(key)
    ]
    facts = sorted(found, key=lambda item: _rank(item[0]))
    return (*facts, *_ceilings(a, b), *_options(a, b, {name for name, _, _ in found}))


def unknown(a: Side, b: Side) -> tuple[str, ...]:
    """Return a line for each side whose environment is not known, and one where the code may differ unseen."""
    lines = [
        f"{name} has no environment.json beside it that can be read: what differs there is not known"
        for name, side in (("A", a), ("B", b))
        if not side.environment
    ]
    revisions = [at(side.environment, "git", "revision") for side in (a, b)]
    if revisions[0] and revisions[0] == revisions[1] and at(b.environment, "git", "dirty"):
        lines.append(f"both at git {_short(revisions[0])}, B with uncommitted changes: the code may differ")
    return tuple(lines)


def _environment(side: Side) -> dict[str, Any]:
    flat = dict(_flat({key: value for key, value in side.environment.items() if key not in PASSED_OVER}))
    known = {key: value for key, value in flat.items() if not key.endswith("_reason")}
    if revision := at(side.environment, "git", "revision"):
        known["git"] = f"{_short(revision)}{' (dirty)' if at(side.environment, 'git', 'dirty') else ''}"
    clocks = [number_at(r.metrics, "latency", f"sm_clock_{end}_mhz") for r in side.records.values() for end in _ENDS]
    if seen := [clock for clock in clocks if clock is not None]:
        known["clock while timed"] = f"{min(seen):.0f} to {max(seen):.0f} MHz"
    return known


_ENDS = ("min", "max")


def _options(a: Side, b: Side, told: Iterable[str]) -> tuple[Difference, ...]:
    """Return the keys that both configs have and that differ; cells that only one has are told as cells.

    Sizes of the tiny scale are left out where both ran at full scale.
    """
    one, two = dict(_flat(a.config)), dict(_flat(b.config))
    small = any(at(side.environment, "scale") != "full" for side in (a, b))
    differ = [key for key in one if key in two and one[key] != two[key] and key not in (*FREE_KEYS, *told)]
    keys = [key for key in differ if small or not _TINY.match(key)]
    return tuple((key, str(one[key]), str(two[key])) for key in keys)


def _flat(content: Mapping[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in content.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        else:
            yield name, value


def _ceilings(a: Side, b: Side) -> Iterable[Difference]:
    one, two = (mapping_at(side.environment, "ceilings") for side in (a, b))
    for name in one:
        before, after = number_at(one, name), number_at(two, name)
        if before is None or after is None or name in ("seconds", "lost_share"):  # of the measuring, not of the device
            continue
        if abs(before - after) > CEILING_CHANGE * max(abs(before), abs(after)):
            yield f"ceilings.{name}", f"{before:.4g}", f"{after:.4g}"
    busy = ["measured on a busy processor" if at(content, "disturbed") else "undisturbed" for content in (one, two)]
    if one and two and busy[0] != busy[1]:
        yield "ceilings", busy[0], busy[1]


def _short(revision: object) -> str:
    return str(revision)[:12]


def _rank(key: str) -> int:
    return next((place for place, start in enumerate(ORDER) if key.startswith(start)), len(ORDER))


def _shown(facts: Mapping[str, Any], key: str) -> str:
    return str(facts[key]) if key in facts else ABSENT
