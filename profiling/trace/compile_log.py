"""Turns a cell's TORCH_TRACE folder into a browsable report (`tlparse`) and into the numbers its record takes.

torch writes the log only when TORCH_TRACE is set before torch is imported, so the process that starts a cell sets
it. Of tlparse 0.4.3: it takes a file, not a folder, and `--latest` is broken.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiling.errors import install_hint

_SITE = re.compile(r"^.*/(?:site|dist)-packages/")
_AT = re.compile(r"Graph break in user code at (.+):(\d+)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:, in (\S+))?')
_EXPLANATION = re.compile(r"^\s*Explanation: (.+)$", re.MULTILINE)
_SKIPPED = ("Failed to handle graph break gracefully", "which results in a skip")
# First lines that say where Dynamo stood, not what stopped it: the reason is the next line.
_PREAMBLES = ("Encountered graph break when attempting to trace", *_SKIPPED)


@dataclass(frozen=True)
class GraphBreak:
    """A place where a graph ended.

    `stack` is `file:line in function` from the outermost caller to the break; `frame_skipped` says that the whole
    function runs eagerly (a break in a loop, for one). A break in a function that was being inlined is logged once for
    every caller up to the compiled one, and again at every recompile: `count` is how often.
    """

    reason: str
    explanation: str | None
    file: str | None
    line: int | None
    stack: tuple[str, ...]
    frame_skipped: bool
    count: int = 1


@dataclass(frozen=True)
class Recompile:
    """A function compiled again: `reason` is the guard that failed, `file` and `line` the source it guards."""

    compile_id: str
    function: str | None
    reason: str
    file: str | None
    line: int | None


@dataclass(frozen=True)
class CompileFailure:
    """A function that did not compile: a break under `fullgraph=True`, the recompile limit, an error in a back end."""

    compile_id: str
    function: str | None
    kind: str
    reason: str
    file: str | None
    line: int | None


def graph_break(text: str, root: Path) -> GraphBreak:
    """Parse the text of a `dynamo_graph_break_reason`; files under `root` become relative to it."""
    message, _, rest = text.partition("User code traceback:")
    rest = re.split(r"^(?:Traceback \(most recent|NoneType: None)", rest or text, maxsplit=1, flags=re.MULTILINE)[0]
    frames = [(short_path(file, root), int(line), name) for file, line, name in _FRAME.findall(rest)]
    file, line = frames[-1][:2] if frames else (None, None)
    if place := _AT.search(message):
        file, line = short_path(place[1], root), int(place[2])
    lines = [line.strip() for line in message.partition("Graph Break Reason:")[2].splitlines() if line.strip()]
    lines = lines or [line.strip() for line in text.splitlines() if line.strip()] or ["no reason given"]
    explanation = _EXPLANATION.search(message)
    return GraphBreak(
        reason=lines[1] if len(lines) > 1 and any(start in lines[0] for start in _PREAMBLES) else lines[0],
        explanation=explanation[1] if explanation else None,
        file=file,
        line=line,
        stack=tuple(f"{file}:{line} in {name}" for file, line, name in frames),
        frame_skipped=any(mark in message for mark in _SKIPPED),
    )


def recompile(metrics: dict[str, Any], root: Path) -> Recompile:
    """Parse the `compilation_metrics` of a frame that has a `recompile_reason`.

    The reason is the guard of the newest compiled version. Its line is the one that Dynamo blames, else the function's.
    """
    reason, _, stack = str(metrics["recompile_reason"]).partition("\nUser stack trace:")
    file, line = metrics.get("co_filename"), metrics.get("co_firstlineno")
    if frames := _FRAME.findall(stack):
        file, line = frames[-1][0], int(frames[-1][1])
    reason = re.sub(r"^\d+/\d+: ", "", reason.strip().splitlines()[0])  # the id of the version that it did not fit
    reason = re.split(r"\s{2,}#", reason)[0].strip()  # the source line that Dynamo appends in a comment
    return Recompile(_id(metrics), metrics.get("co_name"), reason, file and short_path(file, root), line)


def failure(metrics: dict[str, Any], root: Path) -> CompileFailure:
    """Parse the `compilation_metrics` of a frame that has a `fail_type`."""
    file, line = metrics.get("fail_user_frame_filename"), metrics.get("fail_user_frame_lineno")
    if not file:
        file, line = metrics.get("co_filename"), metrics.get("co_firstlineno")
    lines = [line.strip() for line in str(metrics.get("fail_reason") or "").splitlines() if line.strip()]
    # "backend='x' raised:" says nothing without the line after it.
    reason = " ".join(lines[:2]) if lines and lines[0].endswith(":") else (lines or ["no reason given"])[0]
    place = file and short_path(file, root)
    return CompileFailure(_id(metrics), metrics.get("co_name"), metrics["fail_type"], reason, place, line)


def cudagraph_skip(text: str, root: Path) -> str:
    """Return inductor's reason for not capturing a graph in one line, with the place that it blames if it names one."""
    message, _, stack = text.partition("Found from")
    reason = message.strip().splitlines()[0].rstrip(" .")
    frames = _FRAME.findall(stack)
    return f"{reason}, at {short_path(frames[-1][0], root)}:{frames[-1][1]}" if frames else reason


def short_path(file: str, root: Path) -> str:
    """Return `file` relative to `root`, or from the package on where it is an installed one, else as it is."""
    try:
        return Path(file).relative_to(root).as_posix()
    except ValueError:
        return _SITE.sub("", file)


def _id(metrics: dict[str, Any]) -> str:
    return str(metrics.get("compile_id") or "?")


#: The phases from the outermost in, each with the metric (microseconds) of it and all within: its own part is what the
#: next does not take. torch 2.11 and 2.13 write them.
_NESTED = (
    ("aot autograd", "aot_autograd_cumulative_compile_time_us"),
    ("inductor", "inductor_cumulative_compile_time_us"),
    ("code generation", "inductor_code_gen_cumulative_compile_time_us"),
    ("kernel compilation", "triton_compile_time_us"),
)


def phases_of(frames: Iterable[tuple[Mapping[str, Any], float]]) -> dict[str, float]:
    """Return seconds by phase, each without the phases inside it: they add up to the seconds given.

    `frames` are metrics with the seconds of the whole. `dynamo` is what none of the others takes, `kernel compilation`
    waiting for Triton or the C++ compiler. A back end other than inductor is in `aot autograd`, and so is what a
    backward graph takes besides inductor. Phases that no frame has are left out.
    """
    found: dict[str, float] = {}
    for metrics, whole in frames:
        outer, left = "aot autograd" if _is_backward(metrics) else "dynamo", whole
        for phase, key in _NESTED:
            if metrics.get(key) is None:
                continue
            inner = min(left, float(metrics[key]) / 1e6)  # kernels that compile side by side may add up to more
            found[outer] = found.get(outer, 0.0) + left - inner
            outer, left = phase, inner
        found[outer] = found.get(outer, 0.0) + left
    return found


def _is_backward(metrics: Mapping[str, Any]) -> bool:
    return metrics.get("backward_cumulative_compile_time_us") is not None


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


_TIMEOUT_S = 120.0
_COMPILED = (b'"dynamo_start"', b'"compilation_metrics"')


class CompileLogError(RuntimeError):
    """tlparse is missing or failed: one line, with what to do. The measurements of the cell are not touched by it."""


@dataclass(frozen=True)
class CompileSummary(CompileEvents):
    """What compiling a cell took, and `index`, the HTML report, relative to the run folder.

    `compile_seconds` is less than prepare time, which has the warm-up calls and the captures in it too.
    """

    index: str


def parse_compile_log(log_folder: Path, out: Path, *, root: Path | None = None) -> CompileSummary | None:
    """Parse the TORCH_TRACE logs in `log_folder` into `out`, which is `<run>/tl_out/<component>.<variant>`.

    Several processes of a cell leave several logs: each becomes a folder of its own under `out`, and the numbers
    are added. Files under `root` (default: the working folder) are named relative to it. Returns None where nothing
    compiled: no folder, no log, or a log without a compile in it. `out` is replaced.

    Raises:
        CompileLogError: tlparse is not installed, failed or took longer than two minutes.

    """
    logs = [log for log in sorted(log_folder.glob("*.log")) if _compiled(log)]
    if not logs:
        return None
    folders = [out] if len(logs) == 1 else [out / str(number) for number in range(len(logs))]
    shutil.rmtree(out, ignore_errors=True)
    for log, folder in zip(logs, folders, strict=True):
        _run_tlparse(log, folder)
    if len(logs) > 1:
        _write_index(out, logs)
    events = read_events(folders, (root or Path.cwd()).absolute())
    return CompileSummary(**vars(events), index=(out / "index.html").relative_to(out.parent.parent).as_posix())


def find_tlparse() -> Path:
    """Return the program: the one beside this Python first, since a virtual environment need not be activated.

    Raises:
        CompileLogError: there is none.

    """
    beside = shutil.which("tlparse", path=str(Path(sys.executable).parent))
    found = beside or shutil.which("tlparse")
    if found is None:
        raise CompileLogError(f"there is no compile report: {install_hint('tlparse')}")
    return Path(found)


def _compiled(log: Path) -> bool:
    with log.open("rb") as lines:
        return any(mark in line for line in lines for mark in _COMPILED)


def _run_tlparse(log: Path, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [str(find_tlparse()), str(log), "-o", str(out), "--overwrite", "--no-browser"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CompileLogError(f"tlparse took longer than {_TIMEOUT_S:.0f} s on {log}") from error
    said = (done.stdout + done.stderr).decode(errors="replace")
    out.mkdir(parents=True, exist_ok=True)
    (out / "tlparse.log").write_text(said, encoding="utf-8")  # after the run: --overwrite empties the folder
    if done.returncode != 0 or not (out / "raw.jsonl").is_file():
        first = next((line for line in said.splitlines() if line.strip()), "it said nothing")
        raise CompileLogError(f"tlparse failed on {log} with exit code {done.returncode}: {first}")


def _write_index(out: Path, logs: list[Path]) -> None:
    links = (f'<li><a href="{n}/index.html">{html.escape(log.name)}</a></li>' for n, log in enumerate(logs))
    page = f"<!doctype html><title>tlparse</title><h1>One log per process</h1><ul>{''.join(links)}</ul>\n"
    (out / "index.html").write_text(page, encoding="utf-8")
