"""What is promised where something goes wrong: the tables of docs/reliability.md, made from `PROMISES`.

    python tests/faults/table.py    rewrites the tables

A test that plants a fault has the mark `@promise(NAME)` of the promise that it holds; the page names their files.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- promises: made by tests/faults/table.py -->\n", "<!-- end of promises -->"


class Promise(NamedTuple):
    """What goes wrong, what the user sees, and what is kept."""

    planted: str
    happens: str
    kept: str = ""


REFUSED = "one line that names it and what to type, exit 2"
FAILED = "its row is failed, and its reason names the cause"
#: By section of the page and by name.
SECTIONS = {
    "Run folders": {
        "foreign files": Promise(
            "the folder of a run, sweep or comparison holds other files or another run",
            "refused, names the file, and `resume=` for a run; exit 2",
            "every file",
        ),
        "refused run": Promise("a run is refused before its first cell", "one line, exit 2", "an earlier folder"),
        "linked folder": Promise(
            "the folder is a symbolic link", "the run is in its target; a link to nothing is refused", "the link"
        ),
        "shared folder": Promise(
            "several processes want one folder, or a killed one has left its lock",
            "one has it, the others are refused and told its process and host; a dead owner is no obstacle",
            "the first run",
        ),
        "killed run": Promise(
            "a run, sweep or loop is killed, wherever it is",
            "`resume=` runs what is missing; a loop's report has the frames before it",
            "finished cells, rounds, jobs and frames",
        ),
        "interrupt": Promise(
            "Ctrl-C, SIGTERM, or a terminal that goes away (not under nohup), at any moment",
            "exit 130; the row says so, and the printed command resumes the run",
            "finished cells and windows",
        ),
        "damaged run": Promise(
            "files of a run are missing, cut, of another kind, or no files (FIFO, device, folder)",
            "resume, report, compare and history refuse it in one line, exit 2, or do without the file",
            "every file, untouched",
        ),
        "damaged records": Promise(
            "lines of results.jsonl, or values in them, are damaged or arbitrary",
            "counted, and said by report, compare, history and resume",
            "all other lines",
        ),
        "changed code": Promise(
            "a run is resumed with other code, or on another machine",
            "refused, says what changed; `resume_changed=true` accepts other code and notes it",
            "finished cells",
        ),
        "full disk": Promise(
            "the disk is full, the folder cannot be written or is deleted",
            "one line, exit 2; a report that cannot be written is printed; an application's own loop goes on",
            "all records and frames before it",
        ),
    },
    "One cell is one row, whatever it does": {
        "raises": Promise("the code of a cell raises or exits, with any text", FAILED, "the other rows"),
        "probe": Promise(
            "a variant's unavailable() raises, or its module exits when it is imported",
            "its rows fail, or the run is refused with the reason, exit 2",
            "the other rows",
        ),
        "hooks": Promise("close() or explain() raises or returns nonsense", "a note in its row", "what was measured"),
        "metric": Promise(
            "a metric raises, or returns what is no result or no finite number", FAILED, "what other metrics measured"
        ),
        "process state": Promise(
            "a module changes the process: default dtype and device, gradients, threads, signals, timers, clock, "
            "working directory, environment, standard output",
            "set back before the next cell, or not used by the tool",
            "its row and the next one",
        ),
        "clock": Promise("a clock goes back or jumps", "the row is failed: no latency is claimed", "the other rows"),
        "channel": Promise(
            "text, arbitrary bytes or wrong events on the channel of a cell, or events that are lost",
            "a note with the text; failed where an event is lost or does not fit",
            "what arrived",
        ),
        "dies": Promise(
            "a cell's process exits or is killed: in its turn, while it waits, loads, compiles or captures",
            "its row is failed, and names the signal; the others go on",
            "what it had sent",
        ),
        "hangs": Promise(
            "a cell, its preparation or a kernel does not end",
            "killed at its timeout; its row says where it was. Waiting for a turn does not count",
            "what it had sent",
        ),
        "children": Promise(
            "a cell leaves processes behind, or the run is killed while a cell holds Python's lock",
            "killed with it; those in a session of their own are named",
            "the row",
        ),
        "memory": Promise(
            "memory runs out: of the GPU or the host, alone or beside other cells",
            "measured again alone, or failed; a note where only an explanation had no room",
            "the other rows",
        ),
        "illegal access": Promise(
            "an illegal memory access on the GPU", "its row is failed with CUDA's error", "the other rows"
        ),
        "report section": Promise(
            "a section of the report raises, or a record cannot be shown", "a line in its place", "the other sections"
        ),
        "does not apply": Promise(
            "a transform or quantisation finds nothing to change", "skipped: says what the module lacks", "the others"
        ),
        "missing package": Promise(
            "an optional package is missing, too old or shadowed by a folder",
            "skipped, failed or refused, with the command that installs it",
            "the other rows",
        ),
        "kernel": Promise(
            "a kernel of a quantised layer fails or cannot run",
            "the row is failed and names the layer, its shape and rows; or a remark counts the layers without it",
            "the other rows",
        ),
        "capture": Promise(
            "a network cannot be captured, or stages cannot overlap", "the line of code is named, with the reason"
        ),
    },
    "Is it right?": {
        "wrong output": Promise(
            "one number of an output is wrong: in any place of a nested output, of any dtype, layout or magnitude",
            "failed: the reason names the output",
            "the errors measured",
        ),
        "wrong structure": Promise(
            "an output has another structure, dtype or layout, in some call", "failed: the reason names output and call"
        ),
        "rounding": Promise(
            "integers that are samples (pixels, sound) differ by a rounding", "judged by distance; ids must be equal"
        ),
        "bad reference": Promise(
            "the reference or eager is not finite, or eager is too far from it", "failed: says which of the two"
        ),
        "no comparison": Promise("outputs hold what cannot be compared", REFUSED),
        "stale output": Promise("a step returns an old output, or is right only once", "failed: names the call"),
        "written inputs": Promise(
            "a step overwrites inputs which eager does not, or the reverse", "failed: names the input"
        ),
        "other weights": Promise(
            "a module differs from call to call, or from build to build",
            "failed: says what differs and what to try; dropout is compared with the same numbers where it can be",
        ),
        "growing state": Promise(
            "state fills up over hundreds of calls", "put back after each trajectory; growth is named", "all times"
        ),
        "no float32": Promise(
            "there is no memory or code for an fp32 reference",
            "widened operation by operation, or eager in its dtype is the reference; a note says so",
            "the measurement",
        ),
        "noise": Promise("a stage draws noise", "compared with the same noise", "all frames"),
    },
    "Wrong input": {
        "option": Promise("a wrong option or value, of any target", REFUSED, "nothing is measured"),
        "component yaml": Promise("a component's YAML is damaged, hostile or wrong", REFUSED, "nothing is measured"),
        "module": Promise(
            "a module cannot be imported, built or called", "its rows say so in one line, exit 2", "the other cells"
        ),
        "pipeline": Promise("a pipeline's YAML is wrong, or its stages do not fit", REFUSED, "nothing is measured"),
        "python argument": Promise("a wrong argument from Python", "one line with the right form", "a prepared step"),
        "revision": Promise("a wrong revision, or one without the component or folder", REFUSED, "the repository"),
        "sweep option": Promise("a wrong option of a sweep", f"{REFUSED}, before the first job", "the sweep"),
        "cluster": Promise("no GPU, no Slurm, or no Ray cluster that answers", REFUSED, "nothing has run"),
        "surroundings": Promise(
            "no HOME, TMPDIR, UTF-8, /proc or working directory; COLUMNS is nonsense",
            "measured and reported without; only a deleted working directory is refused",
        ),
        "streams": Promise("standard streams are closed or full", "the run goes on; the report is written", "all"),
        "names": Promise("a name is a path, has control characters, or two share a file", REFUSED, "files outside"),
        "text": Promise("text from outside holds escape sequences", "printed on one line without them"),
        "pasted commands": Promise("a folder's name holds spaces, quotes or `$(…)`", "printed commands can be pasted"),
    },
    "Checkpoints": {
        "cut download": Promise(
            "a connection is cut, a server is busy, a write fails, or the download is stopped or killed",
            "tried again five times, then exit 1; the next run asks for the rest",
            "what has arrived",
        ),
        "changed download": Promise(
            "the remote file has changed, or cannot be resumed", "fetched anew: two versions are never joined"
        ),
        "wrong download": Promise(
            "a file is missing, a page, of unknown size, or has another SHA-256", "refused, not recorded", "the others"
        ),
        "two downloads": Promise("two processes download at once", "the second waits, then verifies", "one download"),
        "manifest": Promise("the manifest or lock is damaged, or a name is not in it", REFUSED, "the file"),
        "pickle": Promise("a pickle that runs code", "refused: names what it would call; nothing runs", "the file"),
        "damaged checkpoint": Promise(
            "a checkpoint file or folder is cut, arbitrary, of another network, or no checkpoint", REFUSED, "the file"
        ),
    },
    "Sweeps, comparisons, loops from Python, conditions": {
        "job": Promise("a job raises, is killed or does not end", "ended; the others run; exit 1", "its cells"),
        "damaged sweep": Promise("the plan or a job of a sweep is damaged", "the report names it", "the other jobs"),
        "revision cell": Promise("a cell of one revision fails", "its row is not compared, exit 2", "all other rows"),
        "recorder": Promise(
            "a frame raises, or the device fails while frames are recorded", "the application goes on; a note counts"
        ),
        "energy": Promise(
            "the energy counter is missing, wrong, stuck or shared", "`energy.reason`; joules are absent, never 0"
        ),
        "counters": Promise("ncu fails", "a note of one line", "the cell's times and trace"),
        "busy": Promise(
            "another program computes on the same core",
            "its share is printed and widens intervals: equal code is undecided",
            "all times",
        ),
    },
}
PROMISES = {name: made for section in SECTIONS.values() for name, made in section.items()}


def promise(name: str) -> pytest.MarkDecorator:
    """Mark a test of the promise `name`."""
    assert name in PROMISES, f"{name} is no promise of tests/faults/table.py"
    return pytest.mark.promise(name)


def rows(*faults: tuple[Any, ...]) -> list[Any]:
    """Return parameters, one for each (values, what goes wrong)."""
    return [pytest.param(*values, id=planted) for *values, planted in faults]


def bounded(examples: int) -> Any:
    """Return the settings of a test by hypothesis: the same examples in each run, no deadline on a shared machine."""
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )


class _Collector:
    """A pytest plugin that lists the test files of each promise."""

    def __init__(self) -> None:
        self.files: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            for mark in item.iter_markers("promise"):
                files = self.files.setdefault(mark.args[0], [])
                if item.path.stem not in files:
                    files.append(item.path.stem)


def collect() -> dict[str, list[str]]:
    """Return the test files of each promise."""
    collector = _Collector()
    options = ["--collect-only", "-m", "", "-p", "no:cacheprovider", "-n", "0"]
    with redirect_stdout(StringIO()) as output:
        code = pytest.main([*options, f"--rootdir={ROOT}", str(ROOT / "tests" / "faults")], [collector])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest could not collect tests/faults:\n{output.getvalue()}")
    return collector.files


def render(files: dict[str, list[str]]) -> str:
    """Return the Markdown tables, one for each section, with the test files of each promise."""
    lines = [f"{len(PROMISES)} promises; the last column names the files in `tests/faults` that plant the faults."]
    for section, promises in SECTIONS.items():
        lines += ["", f"### {section}", "", "| what goes wrong | what happens | what is kept | tested in |"]
        lines += ["|---|---|---|---|"]
        lines += [
            f"| {' | '.join(each)} | {', '.join(stem.removeprefix('test_') for stem in files[name])} |"
            for name, each in promises.items()
        ]
    return "\n".join(lines) + "\n"


def page_with(table: str) -> str:
    """Return the text of the page with `table` in place of the one it has."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # before `tests`, which has a folder `profiling` too
    PAGE.write_text(page_with(render(collect())), encoding="utf-8")
