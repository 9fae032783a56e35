"""Reads what torch.compile wrote about its work from the `raw.jsonl` that tlparse makes of a TORCH_TRACE log.

One JSON object a line. Three kinds count here, told apart by a key: `compilation_metrics`, one per frame that was to be
compiled, with its time, its failure, why it was compiled again and why CUDA graphs were skipped;
`bwd_compilation_metrics`; and an `artifact` named `dynamo_graph_break_reason`, whose text lies in the file that
`payload_filename` names. torch 2.11 and 2.13 write the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiling.tracing.compile_phases import phases_of
from profiling.tracing.compile_reasons import (
    CompileFailure,
    GraphBreak,
    Recompile,
    cudagraph_skip,
    failure,
    graph_break,
    recompile,
)


@dataclass(frozen=True)
class CompileEvents:
    """What the logs of a cell say.

    `compile_seconds` sums `entire_frame_compile_time_s` over the frames: Dynamo and the back end, waits for parallel
    Triton compiles included, CUDA-graph capture and autotuning at run time not (backward graphs have `duration_us`
    instead). None where the process died before its first frame was done; `phases` is where they went (`phases_of`).
    `frames` were taken up to compile, `graphs` of them became a compiled graph with operators in it. `graph_breaks` are
    distinct places. `failures` are frames that did not compile: a break under `fullgraph=True` is only here, one that
    made Dynamo skip its frame is in both. `artifacts` is how many files the report links.
    """

    compile_seconds: float | None
    phases: Mapping[str, float]
    frames: int
    graphs: int
    graph_breaks: tuple[GraphBreak, ...]
    recompiles: tuple[Recompile, ...]
    failures: tuple[CompileFailure, ...]
    cudagraph_skips: tuple[str, ...]
    artifacts: int


def read_events(folders: Iterable[Path], root: Path) -> CompileEvents:
    """Read and add up tlparse's output folders, one per process; files under `root` become relative to it."""
    logs = [(folder, _entries(folder / "raw.jsonl")) for folder in folders]
    entries = [entry for _, log in logs for entry in log]
    frames = _named([entry["compilation_metrics"] for entry in entries if "compilation_metrics" in entry])
    every = [*frames, *(entry["bwd_compilation_metrics"] for entry in entries if "bwd_compilation_metrics" in entry)]
    texts = (text for folder, log in logs for text in _graph_break_texts(log, folder))
    skips = [str(metrics["cudagraph_skip_reason"]) for metrics in every if metrics.get("cudagraph_skip_reason")]
    return CompileEvents(
        compile_seconds=sum(_seconds(metrics) for metrics in every) if every else None,
        phases=phases_of((metrics, _seconds(metrics)) for metrics in every),
        frames=len(frames),
        graphs=sum(not metrics.get("fail_type") and bool(metrics.get("graph_op_count")) for metrics in frames),
        graph_breaks=_merge(graph_break(text, root) for text in texts),
        recompiles=tuple(recompile(metrics, root) for metrics in frames if metrics.get("recompile_reason")),
        failures=tuple(failure(metrics, root) for metrics in frames if metrics.get("fail_type")),
        cudagraph_skips=tuple(dict.fromkeys(cudagraph_skip(skip, root) for skip in skips)),
        artifacts=sum("payload_filename" in entry for entry in entries),
    )


def _entries(raw: Path) -> list[dict[str, Any]]:
    entries = []
    for line in raw.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # the last line of a process that died
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def _named(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Say which function hit the recompile limit: its last entry does not, the earlier ones with its frame id do."""
    named = []
    functions: dict[str, dict[str, Any]] = {}
    for metrics in frames:
        frame_id = str(metrics.get("compile_id")).partition("/")[0]
        if metrics.get("co_name"):
            functions[frame_id] = {key: metrics.get(key) for key in ("co_name", "co_filename", "co_firstlineno")}
        named.append(metrics if metrics.get("co_name") else {**metrics, **functions.get(frame_id, {})})
    return named


def _seconds(metrics: dict[str, Any]) -> float:
    whole = metrics.get("entire_frame_compile_time_s")
    return float(whole) if whole is not None else (metrics.get("duration_us") or 0) / 1e6


def _graph_break_texts(entries: list[dict[str, Any]], parsed: Path) -> Iterable[str]:
    for entry in entries:
        payload = entry.get("payload_filename")
        if (entry.get("artifact") or {}).get("name") == "dynamo_graph_break_reason" and payload:
            yield (parsed / payload).read_text(encoding="utf-8", errors="replace")


def _merge(found: Iterable[GraphBreak]) -> tuple[GraphBreak, ...]:
    """Join the breaks of one place and reason, keep the first's stack, and count."""
    places: dict[tuple[str | None, int | None, str], GraphBreak] = {}
    for item in found:
        key = (item.file, item.line, item.reason)
        before = places.get(key)
        places[key] = replace(before, count=before.count + item.count) if before else item
    return tuple(places.values())
