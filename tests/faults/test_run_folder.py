"""Run folders."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from as_user import OUTSIDE, ROOT
from make_record import record
from msgspec import convert
from msgspec.structs import replace
from planted_repository import git
from table import promise

from profiling import history
from profiling.cli import app
from profiling.cli.config import read_config
from profiling.compare.__main__ import main as compare
from profiling.components.spec import Settings
from profiling.errors import InputError
from profiling.realtime.recovery import FrameFiles
from profiling.report import render
from profiling.report.__main__ import main as report
from profiling.results.environment import Environment, Git, read_environment
from profiling.results.frames import Journal, read_journal, read_series
from profiling.results.jsonl import RESULTS_FILE, append_record, encode_record, read_records
from profiling.results.loop import Realtime
from profiling.results.measured import Metrics
from profiling.results.record import encode_sections
from profiling.results.run_folder import LOCK_FILE, claimed
from profiling.results.stats import summarize
from profiling.run import revisions, runner
from profiling.run.compile_caches import CompileCaches
from profiling.run.events import Emit, End, Probed, Sections
from profiling.run.revisions import code_changes
from profiling.run.session import ProcessEnd
from profiling.run.task import Probe

CELLS = ("component=[net,caches]", "variant=[baseline]")
METRICS = encode_sections(metrics=Metrics(wall_ms=summarize([2.0, 2.1, 2.2] * 500)))


class Killed(BaseException):
    """Ends the run at once, as SIGKILL does: no code of the run handles it."""


def measures(job: Any, send: Emit) -> None:
    """What the process of a good cell sends."""
    send(Sections(METRICS))
    send(End("ok"))


@dataclass
class Ended:
    code: int
    out: str
    err: str
    folder: Path

    @property
    def statuses(self) -> dict[str, str]:
        return {each.component: each.status for each in read_records(self.folder).records}

    def is_complete(self) -> None:
        """Check that both cells were measured, in no rounds."""
        assert (self.code, self.statuses) == (0, {"net": "ok", "caches": "ok"}), self.err
        assert not any(each.rounds for each in read_records(self.folder).records)

    def refused_with(self, *words: str) -> None:
        """Check the exit code, and that one line of error, the last one, says all these words."""
        assert self.code == 2, self.err
        *before, last = self.err.splitlines()
        assert last.startswith("error: "), self.err
        assert all(re.match(r"run: |note: |resuming |\[\d", line) for line in before), self.err
        for word in words:
            assert word in last


@pytest.fixture
def start(tmp_path, monkeypatch, capsys):
    """Start the main job in this process; `cell` stands in for the processes of its cells, `probe` for the probe."""
    monkeypatch.chdir(tmp_path)

    def run(
        *overrides: str,
        folder: Path = tmp_path / "run",
        cell: Callable[..., None] = measures,
        probe: Callable[[], dict[str, Any]] = dict,
    ) -> Ended:
        class Executor:
            caches = CompileCaches()

            def session(self, task, name, on_event, *, turns=True):
                yield from ()
                if isinstance(task, Probe):
                    settings = Settings(device="cpu", dtype="float32", scale="tiny")
                    on_event(Probed(settings=settings, environment=convert(probe(), Environment), not_run={}))
                else:
                    cell(task.job, on_event)
                return ProcessEnd()

        def perform(run: runner.Run) -> int:
            run.performs = Executor()
            return run.execute()

        monkeypatch.setattr(signal, "signal", lambda *_: None)
        flags = [each for each in overrides if each.startswith("--")]
        keys = [f"--config-dir={OUTSIDE}", *flags, f"hydra.run.dir={folder}", *CELLS]
        monkeypatch.setattr(sys, "argv", ["profiling", *keys, *(each for each in overrides if each not in flags)])
        try:
            run_in = partial(app.execute, "generic_forward", perform=perform)
            code = app.launch("generic_forward", lambda cfg, folder: run_in(read_config(cfg), folder))
        except Killed:
            code = -9
        return Ended(code, *capsys.readouterr(), folder)

    return run


def interrupts(job, send):
    raise KeyboardInterrupt


def is_killed(job, send):
    raise Killed


@pytest.fixture(scope="module")
def interrupted_run(tmp_path_factory):
    return tmp_path_factory.mktemp("interrupted") / "run"


@pytest.fixture
def interrupted(start, interrupted_run, tmp_path):
    """Return a copy of a run that was interrupted in its second cell, as `run`."""
    if not interrupted_run.exists():
        assert start(folder=interrupted_run, cell=second_is(interrupts)).code == 130
    return Path(shutil.copytree(interrupted_run, tmp_path / "run"))


def second_is(how):
    """A cell that ends well for the first component, and as `how` says for the second."""
    return lambda job, send: (measures if job.component.name == "net" else how)(job, send)


def content(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@promise("foreign files")
@pytest.mark.parametrize(
    ("names", "words", "told"),
    [
        ([".git", "report.html"], "", (".git", "Choose another hydra.run.dir")),
        (["cells/a.log", "config.yaml", "results.jsonl"], "", ("cells", "Choose another hydra.run.dir")),
        (["multirun.yaml"], "--multirun hydra.sweep.dir=run seed=0,1", ("multirun.yaml", "hydra.sweep.dir")),
    ],
)
def test_foreign_files(start, tmp_path, names, words, told):
    for name in names:
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    before = content(tmp_path / "run")
    start(*words.split()).refused_with(*told)
    assert content(tmp_path / "run") == before


@promise("killed run")
def test_killed_before_the_environment(start):
    def killed():
        raise Killed

    folder = start(probe=killed).folder
    before = content(folder)
    assert "environment.json" not in before
    start().refused_with("resume=")
    assert content(folder) == before
    start(f"resume={folder}").is_complete()
    assert read_environment(folder).is_known


@promise("refused run")
def test_a_refused_run_leaves_no_folder_but_one_of_before(start, tmp_path):
    def wrong():
        raise InputError("the probe refuses")

    for words, options, says in (
        (["cell_timeout=0"], {}, "cell_timeout"),
        (["resume_changed=5"], {}, "resume_changed"),
        ([], {"probe": wrong}, "the probe refuses"),
    ):
        start(*words, **options).refused_with(says)
        assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    os.utime(tmp_path / "run", (time.time() - 60,) * 2)
    start("cell_timeout=0").refused_with("cell_timeout")
    assert content(tmp_path) == {"run": None}


@promise("foreign files")
def test_folder_of_another_run(start, interrupted, tmp_path):
    before = content(interrupted)
    start("seed=1").refused_with(f"resume={interrupted}", "hydra.run.dir")
    start(f"resume={interrupted}", folder=tmp_path / "other").refused_with("different folders")
    assert content(interrupted) == before
    assert not (tmp_path / "other").exists()


@promise("linked folder")
def test_a_linked_folder(start, tmp_path):
    (tmp_path / "link").symlink_to("elsewhere")
    start(folder=tmp_path / "link").refused_with("link")
    assert (tmp_path / "link").is_symlink(), "it leads to nothing, and stays"
    (tmp_path / "elsewhere").mkdir()
    start("cell_timeout=0", folder=tmp_path / "link").refused_with("cell_timeout")
    assert start(folder=tmp_path / "link", cell=second_is(interrupts)).code == 130
    assert start(f"resume={tmp_path / 'elsewhere'}", folder=tmp_path / "link").code == 0
    assert (tmp_path / "elsewhere" / "report.html").exists()


HOLD = """
import os, sys, time
from pathlib import Path
from profiling.results.run_folder import claimed
with claimed(Path(sys.argv[1]), sys.argv[2] or None, print):
    if sys.argv[3:] and not os.fork():
        time.sleep(60)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path):
    """Start a process that holds `run` until its standard input is closed."""
    processes = []

    def begin(resume: str = "", *more: str) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        words = [sys.executable, "-c", HOLD, str(tmp_path / "run"), resume, *more]
        processes.append(subprocess.Popen(words, text=True, env=environment, start_new_session=True, **pipes))
        return processes[-1]

    yield begin
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@promise("shared folder")
def test_a_folder_in_use_until_its_owner_dies_even_if_a_child_of_that_lives(start, interrupted, hold):
    process = hold(str(interrupted), "fork")
    assert process.stdout.readline() == "held\n"
    before = content(interrupted)
    owner = f"is in use by process {process.pid} on {os.uname().nodename} (since "
    for words, advice in (
        ([], "Wait until it ends, or choose another hydra.run.dir"),
        ([f"resume={interrupted}"], "Wait until it ends, then resume"),
    ):
        start(*words).refused_with(owner, advice)
    assert content(interrupted) == before
    process.kill()
    process.wait()
    assert (interrupted / LOCK_FILE).exists()
    start(f"resume={interrupted}").is_complete()
    assert not (interrupted / LOCK_FILE).exists()


@promise("shared folder")
def test_runs_that_start_at_once(tmp_path, hold):
    (tmp_path / "run").mkdir()
    ends = []
    for process in sorted([hold() for _ in range(4)], key=lambda each: each.stdout.readline() == "held\n"):
        _, err = process.communicate()
        ends.append((process.returncode, "is in use by" in err or "holds" in err))
    assert sorted(ends) == [(0, False), (1, True), (1, True), (1, True)]


@promise("shared folder")
def test_a_lock_that_vanishes(tmp_path, monkeypatch):
    lock, calls = fcntl.lockf, []

    def vanish(descriptor, how):
        lock(descriptor, how)
        calls.append(how)
        if len(calls) == 1:
            (tmp_path / LOCK_FILE).unlink()

    monkeypatch.setattr(fcntl, "lockf", vanish)
    with claimed(tmp_path, None, print):
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()
    assert len(calls) == 2


@promise("killed run")
def test_killed_in_the_first_cell(start, tmp_path, capsys):
    ended = start(cell=is_killed)
    assert ended.code == -9
    (row,) = read_records(ended.folder).records
    assert (row.component, row.status) == ("net", "failed")
    assert "killed" in row.reason
    assert read_environment(ended.folder).command
    assert report([str(ended.folder)]) == 0
    assert "net.baseline failed: has not ended" in capsys.readouterr().out
    start(f"resume={ended.folder}").is_complete()


#: A file of a run, and what is in its place: these bytes, nothing, or a folder.
DAMAGE = (
    ("results.jsonl", "folder"),
    ("environment.json", None),
    ("environment.json", b'{"seed": 1, "versions"'),
    ("environment.json", b'{"seed": 1, "versions": [3]}'),
    ("environment.json", b'{"a":' * 100_000),
    ("config.yaml", None),
    ("config.yaml", b"component: {net"),
    ("config.yaml", b"- 1\n- 2\n"),
    ("config.yaml", b"[" * 100_000),
)


@promise("damaged run")
@pytest.mark.parametrize(("file", "text"), DAMAGE, ids=lambda value: str(value)[:30])
def test_resume_of_a_damaged_run(start, interrupted, file, text):
    (interrupted / file).unlink()
    if text == "folder":
        (interrupted / file).mkdir()
    elif text is not None:
        (interrupted / file).write_bytes(text)
    before = content(interrupted)
    start(f"resume={interrupted}").refused_with(file)
    assert content(interrupted) == before


@promise("changed code")
def test_resume_with_other_code(start, tmp_path, monkeypatch):
    def is_refused(words):
        before = content(tmp_path / "run")
        start(resume, probe=probe).refused_with("has changed", words, "resume_changed=true")
        assert content(tmp_path / "run") == before

    def probe():
        return {"module_git": {"outside_net.Net": {"revision": revision, "dirty": False}}}

    git(tmp_path, "init", "-q")
    code, resume, revision = tmp_path / "net.py", f"resume={tmp_path / 'run'}", "a" * 40
    code.write_text("one")
    git(tmp_path, "add", "net.py")
    git(tmp_path, "commit", "-qm", "one")
    code.write_text("two")
    start(cell=second_is(interrupts), probe=probe)
    with monkeypatch.context() as patch:
        patch.setattr(revisions, "version_of", lambda package: "9.9.9")
        is_refused("→ 9.9.9")
    revision = "b" * 40
    is_refused("outside_net.Net aaaaaaa → bbbb")
    revision = "a" * 40
    code.write_text("three")
    is_refused("your code ")
    code.write_text("two")
    git(tmp_path, "commit", "-qam", "two")
    is_refused("your code ")
    ended = start(resume, "resume_changed=true", probe=probe)
    assert ended.code == 0, ended.err
    noted = (tmp_path / "run" / "report.md").read_text()
    assert "caches.baseline: measured with other code" in noted
    assert "net.baseline: measured with other code" not in noted


def on(device: str, gpus: str, threads: int = 4, torch: str = "2.11") -> Callable[[], dict[str, Any]]:
    """What the probe says of a machine."""
    facts = {"device": {"type": "cuda", "name": device}, "threads": threads, "versions": {"torch": torch}}
    return lambda: {**facts, "variables": {"CUDA_VISIBLE_DEVICES": gpus, "OMP_NUM_THREADS": str(threads)}}


@promise("changed code")
def test_resume_on_another_machine(start, tmp_path):
    start(cell=second_is(interrupts), probe=on("H200", "0"))
    before = content(tmp_path / "run")
    resume = f"resume={tmp_path / 'run'}"
    start(resume, probe=on("H100", "0")).refused_with("(other device)", "start a new run")
    start(resume, probe=on("H200", "0", threads=2)).refused_with("(other threads, variables)")
    start(resume, probe=on("H200", "0", torch="2.12")).refused_with("(other versions)")
    assert content(tmp_path / "run") == before
    (tmp_path / "run" / "job.json").touch()
    start(resume, probe=on("H100", "0")).refused_with("delete that folder: the job then begins anew")
    start(resume, probe=on("H200", "1")).is_complete()
    nothing = start(folder=tmp_path / "nothing", cell=interrupts, probe=on("H200", "0")).folder
    start(f"resume={nothing}", folder=nothing, probe=on("H100", "1", threads=2)).is_complete()
    environment = read_environment(nothing)
    assert (environment.device.name, environment.threads) == ("H100", 2), "nothing was measured on the other one"


def test_a_checkout_that_holds_everything_is_named_once():
    before, after = (Git(revision=letter * 40, dirty=False) for letter in "ab")
    old = Environment(user_git=before, tool_git=before, module_git={"m.Net": before})
    new = Environment(user_git=after, tool_git=after, module_git={"m.Net": after})
    assert code_changes(old, new) == "your code aaaaaaa → bbbbbbb"
    assert code_changes(old, old) == ""


LINES = {
    "begins with a byte order mark": (b"%s\n\xef\xbb\xbf%s\n", 2, 0),
    "joins two records": (b"%s%s\n", 0, 1),
    "was cut off": (b'%s\n{"schema": 2, "target"\n%s\n', 2, 1),
}


@promise("damaged records")
@pytest.mark.parametrize(("form", "kept", "skipped"), [pytest.param(*case, id=name) for name, case in LINES.items()])
def test_lines_of_results(start, interrupted, tmp_path, capsys, form, kept, skipped):
    path = interrupted / "results.jsonl"
    path.write_bytes(form % (encode_record(record("b", 2.0)), encode_record(record("c", 3.0))))
    append_record(tmp_path / "run", record("a", 1.0))
    results = read_records(tmp_path / "run")
    assert (len(results.records), results.skipped_lines) == (kept + 1, skipped)
    printed = {}
    for name, main, arguments in (
        ("report", report, [tmp_path / "run"]),
        ("compare", compare, [tmp_path / "run", tmp_path / "run"]),
        ("history", history.main, [tmp_path]),
    ):
        main([str(argument) for argument in arguments])
        printed[name] = "".join(capsys.readouterr())
    printed["report.md"] = (tmp_path / "run" / "report.md").read_text()
    printed["resume"] = start(f"resume={tmp_path / 'run'}").err
    for name, text in printed.items():
        assert ("1 damaged or cut-off line" in text) == bool(skipped), name


@promise("interrupt")
def test_interrupted_in_a_cell(start):
    def half(job, send):
        send(Sections(METRICS))
        raise KeyboardInterrupt

    ended = start(cell=second_is(half))
    assert ended.code == 130
    assert f"resume={ended.folder}" in ended.err
    (_, row) = read_records(ended.folder).records
    assert (row.component, row.status) == ("caches", "failed")
    assert "interrupted" in row.reason
    assert row.wall_p50 == pytest.approx(2.1)


@promise("killed run")
@pytest.mark.parametrize("how", [is_killed, interrupts])
def test_ended_in_a_later_round(start, how):
    turns = []

    def cell(job, send):
        turns.append(job)
        (how if len(turns) == 3 else measures)(job, send)

    ended = start("rounds=2", cell=cell)
    assert ended.statuses == {"net": "ok", "caches": "ok"}
    assert [len(each.rounds) for each in read_records(ended.folder).records] == [1, 1]
    resumed = start("rounds=2", f"resume={ended.folder}")
    assert "2 of 4 rounds of cells done" in resumed.err
    assert [len(each.rounds) for each in read_records(ended.folder).records] == [2, 2]


@promise("damaged records")
@pytest.mark.parametrize("lost", [1, 2])
def test_the_line_of_a_round_is_damaged(start, lost):
    """The other round counts, and only the lost one is measured again."""
    ended = start("rounds=2")
    merged = read_records(ended.folder).records
    lines = [replace(each, rounds=None, round=number) for each in merged for number in (1, 2) if number != lost]
    (ended.folder / RESULTS_FILE).write_bytes(b'{"damaged\n' + b"\n".join(map(encode_record, lines)) + b"\n")
    resumed = start("rounds=2", f"resume={ended.folder}")
    assert "2 of 4 rounds of cells done" in resumed.err
    again = read_records(ended.folder).records
    assert [len(each.rounds) for each in again] == [2, 2]
    for before, after in zip(lines, again, strict=True):
        kept, samples = before.metrics.wall_ms, after.metrics.wall_ms.samples
        assert kept.samples == (samples[-kept.n :] if lost == 1 else samples[: kept.n])


@promise("killed run")
def test_merged_rounds_of_which_some_are_missing_begin_anew(start):
    """A run of an older version wrote them so."""
    ended = start("rounds=2")
    merged = [replace(each, rounds=each.rounds[:1]) for each in read_records(ended.folder).records]
    (ended.folder / RESULTS_FILE).write_bytes(b"\n".join(map(encode_record, merged)) + b"\n")
    resumed = start("rounds=2", f"resume={ended.folder}")
    assert "rounds of cells done" not in resumed.err
    assert [len(each.rounds) for each in read_records(ended.folder).records] == [2, 2]


#: A loop whose only stage is killed in one of its frames.
KILLED_LOOP = (
    *("pipeline=stale", "variant=[baseline]", "metric=[]", "isolation=none", "loop.frames=100", "loop.warmup_frames=5"),
    *("component=[failing_picture]", "component.failing_picture.module.how=kill", "pipeline.frame_rate=120"),
    *("pipeline.stages.only.component=failing_picture", "~pipeline.stages.only.inputs.x"),
    "+pipeline.stages.only.inputs.z=normal",
)


@promise("killed run")
def test_a_killed_loop(realtime, tmp_path, capsys):
    ended = realtime(*KILLED_LOOP, folder=tmp_path / "run")
    assert ended.code == -signal.SIGKILL
    journal = tmp_path / "run" / "cells" / "stale.baseline.frames.part"
    frames = len(read_journal(tmp_path / "run", "stale.baseline")["frame_ms"])
    assert frames > 10
    assert report([str(tmp_path / "run")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{frames} frames were timed" in printed
    assert "has not ended" in printed
    assert "Frame time over frames" in (tmp_path / "run" / "report.html").read_text()
    resumed = realtime(*KILLED_LOOP, f"resume={tmp_path / 'run'}", folder=tmp_path / "run")
    assert resumed.code == -signal.SIGKILL
    kept = tmp_path / "run" / "cells" / "stale.baseline.attempt1.frames.npz"
    assert len(read_series(kept)["frame_ms"]) == frames
    assert journal.exists()


@promise("killed run")
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda text: text[:-3], id="killed while a frame is written"),
        pytest.param(lambda _: b'["frame_m', id="killed while the journal is created"),
    ],
)
def test_a_cut_journal(tmp_path, capsys, damage):
    journal = Journal(tmp_path, "net.baseline", ("frame_ms", "latency_ms", "action_ms", "delivered_ms"))
    for frame in range(4):
        journal.append({"frame_ms": 5.0, "latency_ms": 6.0, "action_ms": 5.0 * frame, "delivered_ms": 5.0 * frame + 5})
    journal.close()
    path = tmp_path / "cells" / "net.baseline.frames.part"
    path.write_bytes(damage(path.read_bytes()))
    loop = Realtime(frames=0, target_fps=60.0, pace="free")
    append_record(tmp_path, record(target="realtime", status="failed", reason="killed", realtime=loop))
    assert report([str(tmp_path)]) == 0
    assert "killed" in capsys.readouterr().out
    written = (tmp_path / "report.md").read_text()
    whole = path.read_bytes().startswith(b'["frame_ms"')
    assert ("3 frames" in written) == whole
    assert ("cannot be read as series" in written) != whole
    (note,) = FrameFiles().clear(tmp_path, "net.baseline", 1)
    (kept,) = (tmp_path / "cells").iterdir()
    assert kept.name in note
    assert kept.name == f"net.baseline.attempt1.frames.{'npz' if whole else 'part'}"


@promise("full disk")
def test_resume_on_a_full_disk(start, interrupted, monkeypatch):
    before = content(interrupted)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    start(f"resume={interrupted}").refused_with("No space left on device", "resume=")
    assert content(interrupted) == before


@pytest.fixture
def no_file_above():
    """Set the most bytes of a file that this process may write; None: any number."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(most: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard if most is None else most, hard))

    yield limit
    limit(None)


@promise("full disk")
def test_a_disk_that_fills_up(start, no_file_above):
    def fills(job, send):
        no_file_above(Path("run/results.jsonl").stat().st_size + 1000)
        measures(job, send)

    ended = start(cell=second_is(fills))
    no_file_above(None)
    ended.refused_with(f"finished cells in {ended.folder} are complete", f"with resume={ended.folder}")
    assert ended.statuses == {"net": "ok", "caches": "failed"}
    start(f"resume={ended.folder}").is_complete()


@promise("full disk")
@pytest.mark.parametrize(
    "most",
    [
        pytest.param(500, id="before the first cell"),
        pytest.param(None, id="in the first cell"),
    ],
)
def test_a_disk_that_is_full_before_a_cell_has_ended(start, no_file_above, most):
    def fills(job, send):
        no_file_above(Path("run/results.jsonl").stat().st_size)
        measures(job, send)

    no_file_above(most)
    ended = start(cell=fills)
    no_file_above(None)
    ended.refused_with("File too large", "Nothing was measured", "then repeat the command")
    assert "complete" not in ended.err
    assert "resume=" not in ended.err
    assert ended.folder.exists() == (most is None)


@promise("full disk")
def test_a_folder_that_is_deleted(start, tmp_path):
    ended = start(cell=lambda job, send: shutil.rmtree(tmp_path / "run"))
    assert ended.code == 2
    assert "results.jsonl" in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err


@promise("full disk")
@promise("interrupt")
def test_a_report_that_cannot_be_written_or_is_interrupted(start, tmp_path, monkeypatch):
    write, fault = render.write_text, OSError(errno.ENOSPC, "No space left on device")

    def fails(path, text):
        if path.name == "report.html":
            raise fault
        write(path, text)

    monkeypatch.setattr(render, "write_text", fails)
    ended = start()
    assert ended.code == 1
    assert "report.html could not be written: No space left on device" in ended.out
    fault = KeyboardInterrupt()
    ended = start(folder=tmp_path / "again")
    assert ended.code == 130
    assert "interrupted while writing the report; all records are saved" in ended.err
    assert f"-m profiling.report {ended.folder}" in ended.err
