"""The time of each submodule: its own, and with all below it, along the tree of module paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from profiling.inside.timeline import MODULE, Stretch


@dataclass
class _Sum:
    ms: float = 0.0
    own_ms: float = 0.0
    pieces: int = 0


def module_rows(
    pieces: Iterable[tuple[str | None, float]], calls: int, order: Iterable[str]
) -> tuple[list[dict[str, Any]], float]:
    """Return a row a module path, in the tree's order, and the milliseconds a call that belong to none for certain.

    `pieces` are (module, microseconds) of `calls` calls, None where the module is not known; `order` are paths in the
    order in which they ran. Of a row, `ms` and `count` (of pieces) are of the module and all below it, `own_ms` of
    itself. Modules that only hold others (a list of blocks) have a row too, those without a piece have none.
    """
    sums = {path: _Sum() for path in _tree(order)}
    unattributed = whole = 0.0
    for module, microseconds in pieces:
        length = microseconds / 1e3 / calls
        whole += length
        if module is None or module not in sums:
            unattributed += length
            continue
        sums[module].own_ms += length
        for path in ("", *_above(module)):
            sums[path].ms += length
            sums[path].pieces += 1
    rows = [
        {
            "path": path,
            "ms": found.ms,
            "share": found.ms / whole if whole else 0.0,
            "count": found.pieces / calls,
            "own_ms": found.own_ms,
        }
        for path, found in sums.items()
        if found.pieces
    ]
    return rows, unattributed


def own_times(spans: Iterable[Stretch]) -> list[tuple[str | None, float]]:
    """Return (module, microseconds of its own) for each span of a submodule, what ran inside it taken off."""
    found: list[tuple[str | None, float]] = []
    open_spans: list[tuple[Stretch, int]] = []
    for span in spans:
        while open_spans and open_spans[-1][0].end < span.begin:
            open_spans.pop()
        length = span.end - span.begin
        if open_spans:
            place = open_spans[-1][1]
            found[place] = (found[place][0], found[place][1] - length)
        open_spans.append((span, len(found)))
        found.append((span.name.removeprefix(MODULE), length))
    return found


def paths_in(spans: Iterable[Stretch]) -> list[str]:
    """Return the module paths of spans, each once, in the order in which they first ran."""
    return list(dict.fromkeys(span.name.removeprefix(MODULE) for span in spans))


def _above(path: str) -> list[str]:
    """Return the path and those above it, without the whole component, the shortest first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _tree(order: Iterable[str]) -> list[str]:
    """Return all paths, and those above them, parents before children and siblings in the order in which they ran."""
    children: dict[str, dict[str, None]] = {"": {}}
    for path in order:
        parent = ""
        for each in _above(path):
            children.setdefault(parent, {})[each] = None
            children.setdefault(each, {})
            parent = each
    found: list[str] = []
    _walk("", children, found)
    return found


def _walk(path: str, children: Mapping[str, Iterable[str]], found: list[str]) -> None:
    found.append(path)
    for child in children[path]:
        _walk(child, children, found)
