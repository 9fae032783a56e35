"""The record: what one cell (component × variant) measured, a line of `results.jsonl`, as typed structs.

Every key of the file is a field of one of these structs, with unit and meaning; `docs/record.md` and
`docs/record.schema.json` are generated from them (`python docs/write_record.py`). Absent (None, or empty) means
not measured. Within a schema number fields are added and left out, and never renamed.

A reader uses attributes: `record.metrics.wall_ms.p50`. A producer constructs structs, in the cell's process:

    sections = encode_sections(prepare=Prepare(seconds=1.5), metrics=metrics)  # plain JSON, validated here

and the parent process merges them: `record = record_with(record, sections)`. A metric's mapping goes through
`merge_metric`, which keeps unknown names in `metrics.extra`. The file is written and read by `profiling.results.jsonl`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from profiling.errors import printable
from profiling.results import explanations, measured
from profiling.results.check import Check
from profiling.results.energy import Energy
from profiling.results.field import Section, about
from profiling.results.loop import Realtime

SCHEMA = 2
#: The variant that speedups refer to.
BASELINE = "baseline"
#: The variant of a loop in which each stage has a recipe of its own.
MIXED = "mixed"
#: What joins the names of steps in the name of a recipe: `compile+cuda_graph`.
AND = "+"
#: The target that runs a loop of frames.
REALTIME = "realtime"
#: In a note between what did not work, such as the roofline, and why: what was measured counts without it.
FAILED = " failed: "
#: Reason of a cell whose record was never replaced: it still runs, or died with its run.
NOT_ENDED = "has not ended: the run was killed in this cell, or is still in it"

Status = Literal["ok", "failed", "skipped", "invalid"]


class Record(Section, tag_field="schema", tag=SCHEMA, frozen=True, kw_only=True):
    """The result of one cell."""

    target: Annotated[str, about("the command that ran, generic_forward for example")]
    component: Annotated[str, about("name of the component")]
    variant: Annotated[str, about("name of the variant")]
    status: Annotated[Status, about("ok, failed (wrong or broken), skipped, or invalid (another program was timed)")]
    reason: Annotated[str | None, about("why the status is not ok, in one line; absent for ok")] = None
    device: Annotated[str | None, about("cpu or cuda:N")] = None
    dtype: Annotated[str | None, about("dtype of the run")] = None
    scale: Annotated[str | None, about("full or tiny")] = None
    parameters: Annotated[int | None, about("number of parameters of the component")] = None
    cast: Annotated[
        str | None, about("how calls compute in the dtype of the run: module (weights are cast), autocast, none")
    ] = None
    parameter_dtypes: Annotated[Mapping[str, int], about("number of parameters by dtype, buffers excluded")] = {}
    weights: Annotated[str | None, about("random, or the path of the checkpoint")] = None
    weights_hint: Annotated[str | None, about("how to get weights where they are random")] = None
    weights_hints: Annotated[Mapping[str, str], about("realtime: the same for each network, by role")] = {}
    frames_per_call: Annotated[
        int | None, about("frames that a call makes; 0: none, so that no frame rate is judged")
    ] = None
    inputs: Annotated[
        str | None, about("shapes and plain values of a call's inputs; of a loop, those of each stage")
    ] = None
    late: Annotated[float | None, about("largest share of calls or frames that may be late", "0 to 1")] = None
    point: Annotated[measured.SweepPoint | None, about("shape_sweep: the swept value of this cell")] = None
    metrics: Annotated[measured.Metrics, about("results of the metrics")] = measured.Metrics()
    memory: Annotated[measured.Memory | None, about("memory by kind and phase")] = None
    energy: Annotated[Energy | None, about("energy of the GPU: of a call and of a frame")] = None
    state: Annotated[measured.State | None, about("state that calls change")] = None
    parity: Annotated[measured.Parity | None, about("comparison with the reference")] = None
    prepare: Annotated[measured.Prepare | None, about("preparing the variant")] = None
    starts: Annotated[measured.Starts | None, about("starts=true: from the start of a process to its first output")] = (
        None
    )
    speedup: Annotated[measured.Speedup | None, about("against the baseline")] = None
    compile: Annotated[explanations.CompileLog | None, about("log of torch.compile")] = None
    trace: Annotated[explanations.TraceFiles | None, about("profiler trace")] = None
    launches: Annotated[explanations.LaunchOverhead | None, about("launch_overhead: launch costs")] = None
    training: Annotated[measured.Training | None, about("training_step: log of the steps")] = None
    realtime: Annotated[Realtime | None, about("realtime: the loop over frames")] = None
    graphs: Annotated[explanations.Graphs | None, about("CUDA graphs that the variant captured")] = None
    recipe: Annotated[
        tuple[explanations.RecipeStep, ...] | None, about("steps of preparing the variant, in their order")
    ] = None
    sensitivity: Annotated[explanations.Sensitivity | None, about("each quantised layer alone")] = None
    passes: Annotated[tuple[explanations.FxPass, ...] | None, about("torch.fx passes in their order")] = None
    rounds: Annotated[tuple[measured.Round, ...] | None, about("each round of a repeated cell")] = None
    round: Annotated[int | None, about("of a line that is not merged yet: which round of a repeated cell it is")] = None
    turns: Annotated[measured.Turns | None, about("timing in turns with the other variants of the component")] = None
    roofline: Annotated[explanations.Roofline | None, about("least time of a call, and what bounds it")] = None
    trace_analysis: Annotated[explanations.TraceAnalysis | None, about("the profiler trace of one call")] = None
    hardware_counters: Annotated[
        explanations.HardwareCounters | None, about("counters of the longest kernels of a call")
    ] = None
    memory_snapshot: Annotated[explanations.MemorySnapshot | None, about("what allocated the memory of the GPU")] = None
    check: Annotated[Check | None, about("check=true: a look at a call without timing")] = None
    notes: Annotated[tuple[str, ...], about("remarks, one line each")] = ()
    bad_input: Annotated[bool, about("the failure is the user's input (exit code 2); absent is false")] = False

    def __post_init__(self) -> None:
        """Make reason and notes printable; check the status, and that there is a reason if and only if it is not ok."""
        if self.reason is not None:
            msgspec.structs.force_setattr(self, "reason", printable(self.reason))
        msgspec.structs.force_setattr(self, "notes", tuple(map(printable, self.notes)))
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

    @property
    def name(self) -> str:
        """The name of the cell, and of its files."""
        return f"{self.component}.{self.variant}"

    @property
    def is_realtime(self) -> bool:
        """Whether this is a loop of frames, which is judged by deadlines and not by calls."""
        return self.target == REALTIME or self.realtime is not None

    @property
    def is_correct(self) -> bool:
        """Whether its times may be compared: it is ok, and no parity check failed."""
        return self.status == "ok" and (self.parity is None or self.parity.passed)

    @property
    def wall_p50(self) -> float | None:
        """The median wall time of a call in milliseconds."""
        return None if self.metrics.wall_ms is None else self.metrics.wall_ms.p50

    @property
    def summary(self) -> measured.Summary | None:
        """What it is judged by: the wall time of a call, or the frame time of a loop."""
        if self.is_realtime:
            return None if self.realtime is None else self.realtime.frame_ms
        return self.metrics.wall_ms

    @property
    def median_ms(self) -> float | None:
        """The median frame time of a loop, or wall time of a call, in milliseconds."""
        return None if self.summary is None else self.summary.p50

    @property
    def conditions(self) -> measured.ClockConditions | None:
        """The clocks, and what others took, while its calls or frames were timed."""
        return self.metrics.latency if self.realtime is None else self.realtime

    @property
    def call_points(self) -> dict[int, measured.CallsPoint]:
        """Total times of calls in a row, by their number."""
        return {} if self.metrics.calls is None else {point.calls: point for point in self.metrics.calls.points}

    @property
    def deadlines(self) -> tuple[measured.Deadline, ...]:
        """The frame rates that calls or frames were compared with, the lowest first."""
        rates = self.metrics.rates if self.realtime is None else self.realtime.deadlines.values()
        return tuple(sorted((each for each in rates if each.fps > 0), key=lambda each: each.fps))

    @property
    def peak_memory(self) -> tuple[str, int] | None:
        """(kind, bytes) of the most telling peak in steady calls; None where none was measured."""
        memory, kinds = self.memory or measured.Memory(), ("peak held", "peak allocated", "peak host RSS")
        peaks = zip(kinds, (memory.peak_held, memory.peak_allocated, memory.peak_host_rss), strict=True)
        return next(((kind, size) for kind, size in peaks if size is not None), None)

    def with_status(self, status: Status, reason: str) -> Record:
        """Return this record demoted to `status`, everything measured so far kept."""
        return msgspec.structs.replace(self, status=status, reason=reason)


_TYPES: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(Record)}
#: Fields that a cell sends while it runs; identity and status are the parent's.
SECTIONS = frozenset(_TYPES) - {"target", "component", "variant", "status", "reason", "bad_input"}
#: Sections of the record that a metric may measure; whatever else it returns goes into `metrics`.
METRIC_SECTIONS = frozenset({"memory", "parity", "energy"})
_METRICS: dict[str, Any] = {
    field.name: field.type for field in msgspec.structs.fields(measured.Metrics) if field.name != "extra"
}


def encode_sections(**sections: Any) -> dict[str, Any]:
    """Return sections (structs, or mappings of the same shape) as plain JSON content, validated.

    A section, key or type that a record does not have raises ValueError, and so does a number that is not finite.
    """
    typed = {name: _validated(name, section, _section_type(name)) for name, section in sections.items()}
    return msgspec.to_builtins(typed, str_keys=True)


def decode_section(name: str, content: Any) -> Any:
    """Return a section decoded from JSON content. Raises ValueError if the content does not fit the section's type."""
    return _typed(name, content, _section_type(name))


def record_with(record: Record, sections: Mapping[str, Any]) -> Record:
    """Return a copy of the record with the given sections replaced. They are encoded as by `encode_sections`."""
    return msgspec.structs.replace(record, **{name: decode_section(name, each) for name, each in sections.items()})


def merge_metric(metrics: measured.Metrics, given: Mapping[str, Any]) -> tuple[measured.Metrics, dict[str, Any]]:
    """Return (metrics with what a metric measured, sections of the record beside them).

    `given` are sections by name, structs or mappings: `memory` and `parity` are the record's, fields of Metrics are
    typed, and every other name goes into `extra`, also one that a record has ("status"). A section that does not
    validate, and content that JSON cannot hold, raises ValueError.
    """
    known, extra, sections = {}, dict(metrics.extra), {}
    for name, content in given.items():
        if name in METRIC_SECTIONS:
            sections[name] = _validated(name, content, _TYPES[name])
        elif name in _METRICS:
            known[name] = _validated(f"metrics.{name}", content, _METRICS[name])
        else:
            extra[name] = _plain(f"metrics.extra.{name}", content)
    return msgspec.structs.replace(metrics, **known, extra=extra), sections


def _section_type(name: str) -> Any:
    if name not in SECTIONS:
        raise ValueError(f"a record has no section {name!r} that a cell may send")
    return _TYPES[name]


def _typed(path: str, content: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"section {path}: {error}") from None


def _validated(path: str, section: Any, kind: Any) -> Any:
    content = _plain(path, section)
    typed = _typed(path, content, kind)
    known = dict(leaves(msgspec.to_builtins(typed), path))
    for place, value in leaves(content, path):
        if place not in known and value not in (None, False):  # a default is left out
            raise ValueError(f"section {path}: a record has no field {place}")
    return typed


def _plain(path: str, section: Any) -> Any:
    try:
        content = msgspec.to_builtins(section, str_keys=True, enc_hook=_number)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"section {path} holds what JSON cannot: {error}") from None
    for place, value in leaves(content, path):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"section {path}: {place} is {value}, and a record holds finite numbers only")
    return content


def _number(value: Any) -> Any:
    """Return numpy's numbers and other mappings as plain ones."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")


def leaves(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of everything in JSON content that is neither an object nor an array."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(content, list | tuple):
        for index, value in enumerate(content):
            yield from leaves(value, f"{path}[{index}]")
    else:
        yield path, content
