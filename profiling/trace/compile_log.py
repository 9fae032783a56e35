"""Parses the TORCH_TRACE log of a cell with tlparse: an HTML report, and the compile log of the record.

torch writes the log only if TORCH_TRACE is set before torch is imported, so the parent process sets it for each cell.
tlparse 0.4.3 takes a file, not a folder, and its `--latest` is broken.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from profiling.components.user_code import short_path
from profiling.errors import install_hint
from profiling.results.explanations import CompileEvent, CompileLog

_TIMEOUT_S = 120.0
_COMPILED = (b'"dynamo_start"', b'"compilation_metrics"')


class CompileLogError(RuntimeError):
    """tlparse is missing or failed; the message is one line with what to do. Measurements are not affected."""


def parse_compile_log(log_folder: Path, out: Path, *, root: Path | None = None) -> CompileLog | None:
    """Parse the TORCH_TRACE logs in `log_folder` into `out`, which is `<run>/tl_out/<component>.<variant>`.

    An existing `out` is replaced. Where several processes of a cell wrote logs, each gets a folder under `out`, and the
    numbers are summed. Source files under `root` (default: the working directory) are named relative to it. Returns
    None where nothing was compiled: no folder, no log, or a log without a compile.

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
        links = (f'<li><a href="{n}/index.html">{html.escape(log.name)}</a></li>' for n, log in enumerate(logs))
        page = f"<!doctype html><title>tlparse</title><h1>One log per process</h1><ul>{''.join(links)}</ul>\n"
        (out / "index.html").write_text(page, encoding="utf-8")
    index = (out / "index.html").relative_to(out.parent.parent).as_posix()
    return read_compile_log(folders, (root or Path.cwd()).absolute(), index)


def find_tlparse() -> Path:
    """Return the path of tlparse: beside this Python (its virtual environment may not be activated), else on PATH.

    Raises:
        CompileLogError: it is not installed.

    """
    path = shutil.which("tlparse", path=str(Path(sys.executable).parent)) or shutil.which("tlparse")
    if path is None:
        raise CompileLogError(f"there is no compile report: {install_hint('tlparse')}")
    return Path(path)


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
    output = (done.stdout + done.stderr).decode(errors="replace")
    out.mkdir(parents=True, exist_ok=True)
    (out / "tlparse.log").write_text(output, encoding="utf-8")  # --overwrite has emptied the folder
    if done.returncode != 0 or not (out / "raw.jsonl").is_file():
        first = (_lines(output) or ["no output"])[0]
        raise CompileLogError(f"tlparse failed on {log} with exit code {done.returncode}: {first}")


def read_compile_log(folders: Iterable[Path], root: Path, index: str) -> CompileLog:
    """Return the sum of tlparse's output folders, one a process, with `index` as the report.

    A graph break under `fullgraph=True` is listed in `failures` only; one that made Dynamo skip its frame is listed in
    `failures` and in `graph_breaks`.
    """
    logs = [(folder, _entries(folder / "raw.jsonl")) for folder in folders]
    entries = [entry for _, log in logs for entry in log]
    frames = _with_files([entry["compilation_metrics"] for entry in entries if "compilation_metrics" in entry])
    every = [*frames, *(entry["bwd_compilation_metrics"] for entry in entries if "bwd_compilation_metrics" in entry)]
    texts = (
        (folder / entry["payload_filename"]).read_text(encoding="utf-8", errors="replace")
        for folder, log in logs
        for entry in log
        if (entry.get("artifact") or {}).get("name") == "dynamo_graph_break_reason" and entry.get("payload_filename")
    )
    skips = [str(metrics["cudagraph_skip_reason"]) for metrics in every if metrics.get("cudagraph_skip_reason")]
    return CompileLog(
        index=index,
        graph_breaks=tuple(dict.fromkeys(graph_break(text, root) for text in texts)),  # one for each caller
        recompiles=tuple(_recompile(metrics, root) for metrics in frames if metrics.get("recompile_reason")),
        failures=tuple(_failure(metrics, root) for metrics in frames if metrics.get("fail_type")),
        cudagraph_skips=tuple(dict.fromkeys(_cudagraph_skip(skip, root) for skip in skips)),
    )


def _entries(raw: Path) -> list[dict[str, Any]]:
    entries = []
    for line in raw.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):  # the last line of a killed process
            entries.append(json.loads(line))
    return entries


def _with_files(frames: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Add file and line to entries that hit the recompile limit, from the first entry of the frame."""
    first: dict[str, Mapping[str, Any]] = {}
    named = []
    for metrics in frames:
        known = first.setdefault(_id(metrics).partition("/")[0], metrics)
        place = {key: known.get(key) for key in ("co_filename", "co_firstlineno")}
        named.append(metrics if metrics.get("co_filename") else {**metrics, **place})
    return named


_AT = re.compile(r"Graph break in user code at (.+):(\d+)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
# First lines of a message that do not name the reason, which is on the next line.
_PREAMBLES = (
    "Encountered graph break when attempting to trace",
    "Failed to handle graph break gracefully",
    "which results in a skip",
)


def graph_break(text: str, root: Path) -> CompileEvent:
    """Parse the text of a `dynamo_graph_break_reason`; source files under `root` are named relative to it."""
    message, _, rest = text.partition("User code traceback:")
    rest = re.split(r"^(?:Traceback \(most recent|NoneType: None)", rest or text, maxsplit=1, flags=re.MULTILINE)[0]
    at = _AT.findall(message) or _FRAME.findall(rest)[-1:]
    lines = _lines(message.partition("Graph Break Reason:")[2]) or _lines(text) or ["no reason given"]
    return CompileEvent(
        reason=lines[1] if len(lines) > 1 and any(start in lines[0] for start in _PREAMBLES) else lines[0],
        file=short_path(at[0][0], root) if at else None,
        line=int(at[0][1]) if at else None,
    )


#: What Dynamo says of a guard that failed: `0/3: self.pos == 3    # i = self.pos % n  # net.py:41 in forward`.
_GUARD = re.compile(r"(?:\d+/\d+: )?(.*?)(?:\s{2,}#\s*(.*?)(?:\s+# \S+:(\d+) in .*)?)?$")


def failed_guard(metrics: Mapping[str, Any], root: Path) -> tuple[str, str | None, int | None, str]:
    """Return (guard, file, line, code) of a frame's `recompile_reason`: what the newest compiled version relied on.

    The line is the one of the stack that Dynamo adds, else that of its comment, else the function's.
    """
    reason, _, stack = str(metrics["recompile_reason"]).strip().partition("\nUser stack trace:")
    (guard, code, number), *_ = _GUARD.findall(reason.splitlines()[0])
    frames = _FRAME.findall(stack)
    file = frames[-1][0] if frames else metrics.get("co_filename")
    line = int(frames[-1][1] if frames else number or metrics.get("co_firstlineno") or 0) or None
    return guard, file and short_path(file, root), line, code


def _recompile(metrics: Mapping[str, Any], root: Path) -> CompileEvent:
    guard, file, line, _ = failed_guard(metrics, root)
    return CompileEvent(compile_id=_id(metrics), reason=guard, file=file, line=line)


def _failure(metrics: Mapping[str, Any], root: Path) -> CompileEvent:
    file, line = metrics.get("fail_user_frame_filename"), metrics.get("fail_user_frame_lineno")
    if not file:
        file, line = metrics.get("co_filename"), metrics.get("co_firstlineno")
    lines = _lines(metrics.get("fail_reason") or "") or ["no reason given"]
    return CompileEvent(
        compile_id=_id(metrics),
        kind=metrics["fail_type"],
        reason=" ".join(lines[: 2 if lines[0].endswith(":") else 1]),  # "backend='x' raised:" needs the line after it
        file=file and short_path(file, root),
        line=line,
    )


def _cudagraph_skip(text: str, root: Path) -> str:
    """Return inductor's reason for not capturing a graph in one line, with the source line where it names one."""
    message, _, stack = text.partition("Found from")
    reason = message.strip().splitlines()[0].rstrip(" .")
    frames = _FRAME.findall(stack)
    return f"{reason}, at {short_path(frames[-1][0], root)}:{frames[-1][1]}" if frames else reason


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _id(metrics: Mapping[str, Any]) -> str:
    return str(metrics.get("compile_id") or "?")
