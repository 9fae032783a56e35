"""Turns a cell's TORCH_TRACE folder into a browsable report (`tlparse`) and into the numbers its record takes.

torch writes the log only when TORCH_TRACE is set before torch is imported, so the process that starts a cell sets
it. Of tlparse 0.4.3: it takes a file, not a folder, and `--latest` is broken.
"""

from __future__ import annotations

import html
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from profiling.tracing.compile_events import CompileEvents, read_events

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
        raise CompileLogError("tlparse is not installed, so there is no compile report: pip install 'tlparse>=0.4.3'")
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
