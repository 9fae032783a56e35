"""Work by name and by class, with the rates that it reached where those can be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profiling.inside.classes import CLASSES
from profiling.inside.witness import Witness, one_class_a_name

_NAME_LENGTH = 200
#: A rate is told where what is known makes at least this share of a row's time.
_KNOWN = 0.5


def kernel_rows(calls: Sequence[Sequence[Witness]], parts: int = 1) -> list[dict[str, Any]]:
    """Return a row a name, the longest total first; milliseconds and counts are of one call, `mean_us` of one piece.

    A traced call may be several `parts` (frames), of one of which they are then.
    `gbps` (10⁹ bytes a second) and `tflops` (10¹² FLOPs a second) are over the pieces whose bytes and FLOPs are known.
    """
    groups: dict[str, list[Witness]] = {}
    for call in calls:
        for item in call:
            groups.setdefault(item.work.name, []).append(item)
    whole = _microseconds([item for call in calls for item in call])
    kinds = one_class_a_name(calls)
    rows = [_row(name, kinds[name], items, whole, len(calls) * parts) for name, items in groups.items()]
    return sorted(rows, key=lambda row: -row["ms"])


def class_rows(kernels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the rows of `kernel_rows` up by class, the longest total first; classes that do not occur are left out."""
    rows = []
    for kind in CLASSES:
        mine = [row for row in kernels if row["class"] == kind]
        if mine:
            rows.append({"class": kind, **{key: sum(row[key] for row in mine) for key in ("ms", "share", "count")}})
    return sorted(rows, key=lambda row: -row["ms"])


def _row(name: str, kind: str, items: Sequence[Witness], whole: float, calls: int) -> dict[str, Any]:
    total = _microseconds(items)
    row: dict[str, Any] = {
        "name": name[:_NAME_LENGTH],
        "class": kind,
        "ms": total / 1e3 / calls,
        "share": total / whole if whole else 0.0,
        "count": len(items) / calls,
        "mean_us": total / len(items),
    }
    for key, attribute, unit in (("gbps", "bytes", 1e3), ("tflops", "flops", 1e6)):
        known = [item for item in items if getattr(item, attribute) is not None]
        spent = _microseconds(known)
        if spent > 0 and spent >= _KNOWN * total:
            row[key] = sum(getattr(item, attribute) for item in known) / spent / unit
    return row


def _microseconds(items: Sequence[Witness]) -> float:
    return sum(item.work.length for item in items)
