"""The charts of what traces say: each cell's span in one bar, and the time of its submodules as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from profiling.reporting.facts import at, by_component, items_at, number_at
from profiling.reporting.format import count_of, percent, significant
from profiling.reporting.html.figure import GREY, RED, axis, cell_name, cell_words, figure, plain, rounded, tree_figure
from profiling.reporting.html.material import palette
from profiling.reporting.html.section import Figure, View
from profiling.reporting.inside import class_times
from profiling.reporting.inside_modules import NOT_ATTRIBUTABLE
from profiling.results.records import Record
from profiling.trace.kernel_classes import CLASSES

_COLOURS = palette(CLASSES)
_PALE_RED = "#eb9ea2"
_IDLE = (("idle, waiting for the host", "host_ms", RED), ("idle, between kernels", "between_ms", _PALE_RED))
#: Submodules that the trees of all cells may have together: about a hundred bytes each.
_NODES = 2_500
#: A tree shows so many levels at once.
_LEVELS = 4
#: Names of nodes that no module's path can be.
_ROOT, _LOST = ".", ".."


def split_views(records: Sequence[Record]) -> list[View]:
    """Return a view of all cells whose trace saw the device and, of several components, one of each."""
    rows = [record for record in records if number_at(record.inside, "span_ms") is not None]
    groups = by_component(rows)
    views = [View(component, _split(group)) for component, group in groups.items()]
    return views if len(groups) < 2 else [View("all components", _split(rows)), *views]


def module_views(records: Sequence[Record]) -> list[View]:
    """Return the tree of submodules of each cell that has one."""
    rows = [record for record in records if _modules(record)]
    most = max(60, _NODES // max(1, len(rows)))
    return [View(cell_words(record, component=True), tree_figure(_tree(record, most))) for record in rows]


def _split(rows: Sequence[Record]) -> Figure:
    times = [class_times(record) for record in rows]
    kinds = [(name, _COLOURS[name], [found.get(name) for found in times]) for name in CLASSES]
    kinds += [(name, colour, [number_at(r.inside, "idle", key) for r in rows]) for name, key, colour in _IDLE]
    data = []
    for name, colour, values in kinds:
        if any(values):
            data.append({"type": "bar", "orientation": "h", **_along(rows, values, name), "marker": {"color": colour}})
    mark = {"symbol": "line-ns-open", "size": 24, "color": GREY, "line": {"width": 3}}
    spans = _along(rows, [number_at(record.inside, "span_ms") for record in rows], "span")
    data.append({"type": "scatter", "mode": "markers", **spans, "marker": mark})
    y = axis("cell", type="category", autorange="reversed")
    return figure(data, axis("time of a call on the device, ms", rangemode="tozero"), y, barmode="stack")


def _along(rows: Sequence[Record], values: Iterable[float | None], name: str) -> dict[str, Any]:
    known = [(cell_name(row, component=True), ms) for row, ms in zip(rows, values, strict=True) if ms is not None]
    return {"name": name, "x": rounded(ms for _, ms in known), "y": [place for place, _ in known]}


def _modules(record: Record) -> dict[str, Mapping[str, Any]]:
    """Return the record's submodules by path, those that took time, in the order of the tree."""
    modules = items_at(record.inside, "modules")
    return {path: item for item in modules if isinstance(path := at(item, "path"), str) and number_at(item, "ms")}


def _tree(record: Record, most: int) -> dict[str, Any]:
    """Return the icicle of the `most` longest submodules; what is left out counts as its parent's own time."""
    modules = _modules(record)
    kept = dict.fromkeys(sorted(modules, key=lambda path: -(number_at(modules[path], "ms") or 0.0))[:most])
    noun = "call" if number_at(record.inside, "kernel_ms") is None else "kernel"  # without a device calls are counted
    nodes = {_ROOT: (cell_words(record, component=True), "", "")}
    own = {_ROOT: 0.0}
    for path in (path for path in modules if path and path in kept):
        parent = _parent(path, kept)
        nodes[path] = (path.removeprefix(f"{parent}."), parent, _told(path, modules[path], noun))
        own[path] = number_at(modules[path], "own_ms") or 0.0
    for path in (path for path in modules if path not in nodes):
        own[_parent(path, kept)] += number_at(modules[path], "own_ms") or 0.0
    if lost := number_at(record.inside, "unattributed_ms"):
        nodes[_LOST] = (NOT_ATTRIBUTABLE, _ROOT, f"{significant(lost)} ms of no module for certain")
        own[_LOST] = lost
    return {
        "type": "icicle",
        "ids": [plain(path) for path in nodes],
        "labels": [plain(label) for label, _, _ in nodes.values()],
        "parents": [plain(parent) for _, parent, _ in nodes.values()],
        "values": rounded(own[path] for path in nodes),
        "text": [plain(text) for _, _, text in nodes.values()],
        "branchvalues": "remainder",
        "sort": False,
        "maxdepth": _LEVELS,
        "marker": {"line": {"color": GREY, "width": 0.5}},
        "textinfo": "label",
        "hoverinfo": "label+text",
    }


def _parent(path: str, kept: Mapping[str, Any]) -> str:
    """Return the nearest module above `path` that is kept."""
    while path:
        path = path.rpartition(".")[0]
        if path and path in kept:
            return path
    return _ROOT


def _told(path: str, module: Mapping[str, Any], noun: str) -> str:
    ms, own, count = (number_at(module, key) for key in ("ms", "own_ms", "count"))
    counted = "" if count is None else f", {count_of(round(count, 1), noun)}"
    share = percent(number_at(module, "share"), 1)
    return f"{path}: {significant(ms)} ms ({share}), its own {significant(own)} ms{counted}"
