"""The record: what one cell (component × variant) measured, as one line of `results.jsonl`.

Absent means not measured. Fields are added, never renamed; `SCHEMA` counts the breaks. Free of torch: reporting reads
records on machines that have none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from profiling.errors import InputError
from profiling.results.schema_1 import BOUNDS, RENAMED, _rename

SCHEMA = 1
RESULTS_FILE = "results.jsonl"
#: The variant that speedups refer to.
BASELINE = "baseline"

Status = Literal["ok", "failed", "skipped", "invalid"]
Section = Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """The result of one cell. Latencies in milliseconds, memory in bytes, prepare times in seconds."""

    target: str
    component: str
    variant: str
    status: Status
    reason: str | None = None  # one line wherever the status is not ok
    device: str | None = None
    dtype: str | None = None
    scale: str | None = None
    parameters: int | None = None
    weights: str | None = None  # "random" or the checkpoint's path
    weights_hint: str | None = None  # the command that would fetch them, where the weights are random
    frames_per_call: int | None = None
    point: Section | None = None  # where a sweep stands: component, axis, value ("all": every value prepared)
    load: Section | None = None  # seconds to build the module and load or randomise its weights
    metrics: Section = field(default_factory=dict)
    memory: Section | None = None
    parity: Section | None = None
    prepare: Section | None = None
    speedup: Section | None = None
    compile: Section | None = None  # from TORCH_TRACE: seconds, breaks and recompiles with reasons and lines
    trace: Section | None = None  # where the profiler trace and its tables are
    kernels: tuple[Section, ...] | None = None  # inductor's kernel files, if they were kept
    launches: Section | None = None  # of launch_overhead: the headline numbers, operators by size, every point
    training: Section | None = None  # log of the steps: loss, milliseconds of a step and of waiting for its data
    realtime: Section | None = None  # of realtime: frame times, stage budget, deadlines, slow frames, memory over them
    graphs: Section | None = None  # CUDA graphs captured by hand: counters, seconds, bytes, what one capture swallowed
    passes: tuple[Section, ...] | None = None  # graph passes in order: what each replaced, its error, its gain
    rounds: tuple[Section, ...] | None = None  # of cells repeated in turns: each round's own n, mean and median
    limits: Section | None = None  # bytes and FLOPs of a call, its floor, what the GPU did, what bounds it, advice
    inside: Section | None = None  # from the profiler trace: busy and idle time, kernels, modules, waits, copies
    notes: tuple[str, ...] = ()
    bad_input: bool = False  # the failure is the user's input, not the measured program (exit code 2)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Hold the two rules every reader relies on: a known status, and a reason wherever it is not ok."""
        if self.status not in get_args(Status):
            raise ValueError(f"status must be one of {', '.join(get_args(Status))}, not {self.status!r}")
        if (self.status == "ok") != (self.reason is None):
            raise ValueError(
                f"status {self.status!r} with reason {self.reason!r}: a reason stands exactly where not ok"
            )

    @property
    def cell(self) -> tuple[str, str]:
        """(component, variant): what identifies a cell inside a run."""
        return self.component, self.variant

    def with_status(self, status: Status, reason: str) -> Record:
        """Return this record demoted to `status`, everything measured so far kept."""
        return replace(self, status=status, reason=" ".join(reason.split()))

    def to_json(self) -> str:
        """Return the record's line, without a newline."""
        content: dict[str, Any] = {"schema": self.schema}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "reason" or not (value is None or value == () or value is False):
                content[item.name] = value
        return json.dumps(content, allow_nan=False)

    @staticmethod
    def from_json(line: str) -> Record:
        """Read a record back; fields of a later version of the same schema are passed over.

        Raises:
            ValueError: not a record, or one of another schema.

        """
        content = json.loads(line)
        if not isinstance(content, dict) or "schema" not in content:
            raise ValueError("not a record: no `schema` field")
        if content["schema"] == 2:
            content = _downgraded(content)
        if content["schema"] != SCHEMA:
            raise ValueError(f"record of schema {content['schema']}; this version reads schema {SCHEMA}")
        known = {item.name for item in fields(Record)}
        chosen = {key: value for key, value in content.items() if key in known}
        try:
            for name in ("notes", "kernels", "passes", "rounds"):
                if name in chosen:
                    chosen[name] = tuple(chosen[name])
            unnamed = [name for name in ("target", "component", "variant") if not isinstance(chosen.get(name), str)]
            if unnamed:
                raise ValueError(f"not a record: no text for {', '.join(unnamed)}")
            return Record(**chosen)
        except TypeError as error:
            raise ValueError(f"not a record: {error}") from None


def _downgraded(content: dict[str, Any]) -> dict[str, Any]:
    """Return a schema 2 record as one of schema 1, for the readers that are not typed yet."""
    content = {**content, "schema": 1}
    for path, new in reversed(RENAMED.items()):
        *parents, old = path.split(".")
        _rename(content, parents, new, old)
    roofline = content.get("limits") or {}
    words = {new: old for old, new in reversed(BOUNDS.items())}
    for part in (roofline, *(roofline.get("parts") or {}).values()):
        if "bound" in part:
            part["bound"] = words.get(part["bound"], "latency-bound")
    metrics = content.get("metrics") or {}
    content["metrics"] = {key: value for key, value in metrics.items() if key != "extra"} | metrics.get("extra", {})
    return content


def append_record(run: Path, record: Record) -> None:
    """Write `record` as the last line of the run's results, on the disk before this returns.

    A line cut off by an earlier crash is closed first, so that it cannot swallow this one.
    """
    path = run / RESULTS_FILE
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        file.write(record.to_json().encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_records(run: Path) -> tuple[Record, ...]:
    """Read a run's records, the newest of each cell, in the order in which the cells first ended.

    Lines that are not records (the tail of a line that a full disk cut off) are passed over.

    Raises:
        InputError: the folder holds no results, or results of another schema.

    """
    path = run / RESULTS_FILE
    if not path.is_file():
        raise InputError(f"{run} is no run: it has no {RESULTS_FILE}. Name a folder that a run printed at its end.")
    return read_results(path)


def read_results(path: Path) -> tuple[Record, ...]:
    """Read the records of a file like `results.jsonl`, whatever it is called; as `read_records`.

    Raises:
        InputError: it holds results of another schema.

    """
    newest: dict[tuple[str, str], Record] = {}
    for record in _records(path):
        newest[record.cell] = record
    return tuple(newest.values())


def _records(path: Path) -> Iterator[Record]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield Record.from_json(line)
        except json.JSONDecodeError:
            continue
        except ValueError as error:
            raise InputError(f"{path}: {error}. Render it with the version that wrote it, or run again.") from None
