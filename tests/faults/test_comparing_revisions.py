"""Comparing two revisions."""

import errno
import os
import signal

import pytest
from as_user import QUICK
from fake_cells import GB, Plan, dies, ends, interrupts, rows, two_runs
from make_record import record
from planted_repository import COMPONENT, NET, commit, git, with_network
from table import promise

from profiling.compare import __main__ as compare
from profiling.compare import measure
from profiling.compare.__main__ import main
from profiling.compare.cells import compared_cells, exit_code, read_run
from profiling.report import render
from profiling.results.jsonl import append_record
from profiling.run.runner import execute

# What the user types, in a repository with two commits.


@pytest.fixture
def repository(tmp_path, monkeypatch):
    folder = tmp_path / "repository"
    with_network(folder, 10, 30)
    monkeypatch.chdir(folder)
    return folder


def is_clean(repository):
    worktrees = git(repository, "worktree", "list").splitlines()
    return len(worktrees) == 1 and not git(repository, "status", "--porcelain", "--untracked-files=no")


def refused(capsys, *arguments):
    """The error of a command that is refused in one line with exit code 2."""
    assert main(list(arguments)) == 2
    *progress, error = capsys.readouterr().err.splitlines()
    assert all(line.startswith("run: probing") for line in progress)
    assert error.startswith("error: ")
    return error


ASKED = ("--config-dir=.", "component=[net]", "variant=[baseline]")


WRONG = {
    "mian HEAD": "mian is neither a folder nor a revision of {here}. Did you mean 'main'?",
    "HEAD~1 HEAD component=[nte]": "A (HEAD~1): there is no component 'nte'. Did you mean 'net'?",
    "HEAD~1 HEAD resume=runs/x": "resume=runs/x: an interrupted comparison is started again",
    "HEAD~1 HEAD isolation=none": "each checkout needs processes of its own",
    "HEAD~1 HEAD secnods=3": "A (HEAD~1): there is no key 'secnods' in the config. Did you mean 'seconds'?",
    "HEAD~1 HEAD dtype=float16,bfloat16": "dtype=float16,bfloat16",
    "HEAD~1 HEAD --config-dir=conf": "which --config-dir=conf names",  # no revision has that folder
}


@promise("revision")
@pytest.mark.parametrize(("arguments", "says"), WRONG.items())
def test_a_wrong_command(repository, capsys, arguments, says):
    words = arguments.split()
    given = {word.partition("=")[0] for word in words}
    words += [word for word in ASKED if word.partition("=")[0] not in given]
    assert says.format(here=repository) in refused(capsys, *words)
    assert is_clean(repository)
    assert not (repository / "runs").exists()


@promise("revision")
def test_outside_a_repository_or_without_git(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "is not in a git repository" in refused(capsys, "HEAD~1", "HEAD", *ASKED)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not installed" in refused(capsys, "HEAD~1", "HEAD", *ASKED)


@promise("revision")
def test_what_one_revision_lacks(repository, monkeypatch, capsys):
    commit(repository, {"component/other.yaml": COMPONENT.format(name="other"), "sub/text.txt": "new"})
    error = refused(capsys, "HEAD~1", "HEAD", "--config-dir=.", "component=[other]")
    assert "A (HEAD~1): there is no component 'other'." in error
    assert "Only what all checkouts have can be compared." in error
    monkeypatch.chdir(repository / "sub")
    assert "HEAD~1 lacks this folder, sub. Start the command in" in refused(capsys, "HEAD~1", "HEAD", *ASKED)
    assert is_clean(repository)


@promise("foreign files")
@promise("revision")
def test_a_folder_that_is_not_empty_cannot_be_made_or_is_a_run_beside_overrides(repository, capsys):
    error = refused(capsys, "HEAD~1", "HEAD", *ASKED, f"hydra.run.dir={repository / 'component'}")
    assert "is not empty: it holds net.yaml" in error
    error = refused(capsys, "HEAD~1", "HEAD", *ASKED, "hydra.run.dir=user_net.py/runs")
    assert "cannot write" in error
    assert "hydra.run.dir=FOLDER" in error
    (repository / "run").mkdir()
    (repository / "run" / "results.jsonl").write_text("{}\n")
    error = refused(capsys, "run", "HEAD", "component=[net]")
    assert "run is a run. To compare runs, leave 'component=[net]' out" in error
    assert is_clean(repository)


@promise("revision")
def test_a_module_that_cannot_be_imported(repository, capsys):
    commit(repository, {"user_net.py": "import a_package_that_is_missing\n" + NET.format(times=1)})
    error = refused(capsys, "HEAD", "HEAD~1", *ASKED, *QUICK[:4])
    assert "A (HEAD): component.net.module: user_net.Net: ModuleNotFoundError: No module named 'a_package" in error
    assert is_clean(repository)
    assert not list((repository / "runs" / "compare").iterdir())


@promise("interrupt")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_removes_the_worktrees(repository, monkeypatch, capsys, number):
    seen = []

    def execute(runs):
        seen.extend(run.checkout.root for run in runs)
        assert all(map(os.path.isdir, seen))
        os.kill(os.getpid(), number)
        signal.pause()

    def end_at_once(*_):
        raise AssertionError("as profiling/__init__.py lets an interrupt do, before there is work to keep")

    monkeypatch.setattr(measure, "execute", execute)
    before = signal.getsignal(signal.SIGTERM)
    earlier = signal.signal(signal.SIGINT, end_at_once)
    try:
        assert main(["HEAD~1", "HEAD", *ASKED]) == 130
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert signal.getsignal(signal.SIGTERM) is before
    assert "interrupted" in capsys.readouterr().err
    assert len(seen) == 2
    assert not any(map(os.path.exists, seen))
    assert is_clean(repository)


@promise("full disk")
@promise("interrupt")
def test_reports_of_the_runs_that_cannot_be_written_or_are_interrupted(repository, monkeypatch, capsys):
    def write(*_):
        raise fault

    def execute(runs):
        for run in runs:
            append_record(run.folder, record(p50=2.0))

    fault, verdict = OSError(errno.ENOSPC, "No space left on device"), 0
    monkeypatch.setattr(measure, "execute", execute)
    monkeypatch.setattr(render, "write_text", write)
    monkeypatch.setattr(compare, "exit_code", lambda *_: verdict)
    assert main(["HEAD~1", "HEAD", *ASKED, "hydra.run.dir=one"]) == 2
    printed = capsys.readouterr()
    assert "B / A" in printed.out
    assert printed.err.count("report.md and report.html could not be written: No space left on device.") == 2
    assert "-m profiling.report one/A\n" in printed.err
    verdict = 1
    assert main(["HEAD~1", "HEAD", *ASKED, "hydra.run.dir=two"]) == 1
    fault = KeyboardInterrupt()
    assert main(["HEAD~1", "HEAD", *ASKED, "hydra.run.dir=three"]) == 130
    told = capsys.readouterr().err
    assert "interrupted while writing the report; all records are saved" in told
    assert "-m profiling.report three/A\n" in told


def compared(runs):
    loaded = [read_run(run.folder) for run in runs]
    cells = compared_cells(*loaded)
    return {cell.variant: cell for cell in cells}, exit_code(cells, 0.02)


@promise("revision cell")
def test_a_cell_of_one_revision_dies_or_is_never_ready(tmp_path):
    plans = {"baseline": Plan(), "v": Plan()}
    runs, _ = two_runs(tmp_path, plans, {"baseline": Plan(), "v": Plan(happens={3: dies})})
    execute(runs)
    cells, code = compared(runs)
    assert (cells["baseline"].verdict, cells["v"].verdict, code) == ("undecided", "not compared", 2)
    assert "B is failed" in cells["v"].reason
    assert rows(runs[0].folder)["v"].status == "ok"
    (tmp_path / "other").mkdir()
    runs, cells = two_runs(tmp_path / "other", {"baseline": Plan(happens={"ready": ends()})}, {"baseline": Plan()})
    execute(runs)
    assert compared(runs)[0]["baseline"].verdict == "not compared"
    other = rows(runs[1].folder)["baseline"]
    assert (other.status, other.turns.beside) == ("ok", ())
    assert cells.held == {}


@promise("memory")
def test_without_memory_for_two_revisions_each_is_measured_alone(tmp_path):
    plan = {"baseline": Plan(used=6 * GB)}
    runs, _ = two_runs(tmp_path, plan, plan, memory=10 * GB)
    execute(runs)
    for run in runs:
        record = rows(run.folder)["baseline"]
        assert (record.status, record.turns.beside) == ("ok", ())
        assert "another one would need 7.2 GB" in record.notes[0]


@promise("interrupt")
def test_an_interrupt_between_windows(tmp_path):
    runs, cells = two_runs(tmp_path, {"baseline": Plan()}, {"baseline": Plan(happens={3: interrupts})})
    with pytest.raises(KeyboardInterrupt):
        execute(runs)
    assert cells.held == {}, "no process is left"
    assert [len(rows(run.folder)["baseline"].turns.windows) >= 2 for run in runs] == [True, True]
