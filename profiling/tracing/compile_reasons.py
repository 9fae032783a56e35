"""Why torch.compile broke a graph, compiled again or gave up, and at which line: read out of Dynamo's messages.

Dynamo writes for people, not for programs; these are the few shapes its messages have (seen in torch 2.11 and 2.13).
A message of another shape keeps its first line as the reason, and has no place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
