"""The time of each submodule: numbered ones that are built alike (the blocks of a transformer) are added up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from profiling.reporting.facts import added, at, items_at, number_at
from profiling.reporting.format import ABSENT, average_count, percent, significant, whole
from profiling.reporting.grid import grid, noted
from profiling.reporting.inside_sources import sources
from profiling.reporting.table import shown_times
from profiling.results.records import Record

#: What the path "" is called.
WHOLE = "(the whole component)"
NOT_ATTRIBUTABLE = "not attributable"
_HEADERS = ("component", "variant", "module", "modules", "count", "ms", "share", "own ms", "own share")
_NOTE = (
    "Own: without its submodules. A star: submodules that are built alike, added up. "
    "Count: kernels, copies and fills; on a CPU, calls of the submodule and of those in it."
)


def module_table(records: Sequence[Record], *, most: int) -> str:
    """Return the Markdown table of the `most` longest submodules of each cell, in the order of the module tree."""
    table = grid(_HEADERS, [row for record in records for row in _rows(record, most)], markdown=True, names=3)
    return noted(table, (_NOTE, *sources(records, "Submodules", "modules_from"))) if table else ""


def folded(paths: Iterable[str]) -> dict[str, str]:
    """Return each path with a star for its numbers, where the modules of all these numbers have the same submodules.

    The layers of a plain sequence have no submodules, and may be anything: they keep their numbers.
    """
    parts = {path: path.split(".") for path in paths}
    below: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for names in parts.values():
        for place, name in enumerate(names):
            if name.isdecimal():
                numbered = below.setdefault(tuple(names[:place]), {})
                numbered.setdefault(name, set()).add(".".join(names[place + 1 :]))
    alike = {prefix for prefix, found in below.items() if _alike(list(found.values()))}
    return {
        path: ".".join("*" if n.isdecimal() and tuple(names[:i]) in alike else n for i, n in enumerate(names))
        for path, names in parts.items()
    }


def _alike(submodules: Sequence[set[str]]) -> bool:
    return len(submodules) > 1 and all(found == submodules[0] for found in submodules) and submodules[0] != {""}


def _rows(record: Record, most: int) -> Iterator[tuple[str, ...]]:
    groups = _groups(items_at(record.inside, "modules"))
    kept = set(sorted(groups, key=lambda path: -(added(groups[path], "ms") or 0.0))[:most])
    names = (record.component, record.variant)
    for path in (path for path in groups if path in kept):
        count, ms, share, own = (added(groups[path], key) for key in ("count", "ms", "share", "own_ms"))
        own_share = None if share is None or own is None or not ms else share * own / ms
        yield (
            *(*names, path or WHOLE, whole(len(groups[path])), average_count(count)),
            *(*shown_times(record, significant(ms)), percent(share, 1)),
            *(*shown_times(record, significant(own)), percent(own_share, 1)),
        )
    if rest := [module for path, group in groups.items() if path not in kept for module in group]:
        own = shown_times(record, significant(added(rest, "own_ms")))
        yield (*names, f"and {len(groups) - len(kept)} more", whole(len(rest)), *[ABSENT] * 3, *own, ABSENT)
    if lost := number_at(record.inside, "unattributed_ms"):
        total = number_at(record.inside, "kernel_ms")
        ms = shown_times(record, significant(lost))
        yield (*names, NOT_ATTRIBUTABLE, *[ABSENT] * 2, *ms, percent(lost / total if total else None, 1), *[ABSENT] * 2)


def _groups(modules: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the modules of each folded path, in the order of the tree."""
    paths = {path: module for module in modules if isinstance(path := at(module, "path"), str)}
    groups: dict[str, list[Any]] = {}
    for path, name in folded(paths).items():
        groups.setdefault(name, []).append(paths[path])
    return groups
