"""Files of a run: nothing is lost in an environment.json, files are written whole, and a folder belongs to one run."""

import errno
import fcntl
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest
from make_record import record

from profiling.errors import InputError
from profiling.results import run_folder
from profiling.results.environment import encode_environment, read_environment
from profiling.results.jsonl import append_record, read_records
from profiling.results.record import leaves
from profiling.results.run_folder import (
    claimed,
    keep_newest_lines,
    new_folder,
    prepare_folder,
    resume_command,
    write_json,
    write_text,
)

#: Fields that committed runs have and this version does not.
GONE = {
    *("device.clock_sm_max_mhz", "device.clock_memory_max_mhz", "ceilings.measured_at"),
    *("device_reason", "dtype_reason", "scale_reason"),
}
RUNS = sorted((Path(__file__).resolve().parents[3] / "docs" / "results").glob("*/environment.json"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_a_committed_environment_loses_nothing(path):
    environment = read_environment(path.parent)
    old = json.loads(path.read_text())
    new = json.loads(json.dumps(encode_environment(environment)))
    assert dict(leaves(new)) == {key: value for key, value in leaves(old) if key not in GONE}


@pytest.mark.parametrize("text", [None, b"{", b"[]", b"\xff", b"[" * 100_000, b'{"seed": 3, "ceilings": {}}'])
def test_an_environment_that_is_damaged_or_absent_is_empty(tmp_path, text):
    if text is not None:
        (tmp_path / "environment.json").write_bytes(text)
    assert not read_environment(tmp_path).is_known


def test_a_file_is_written_atomically(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_text(tmp_path / "folder", "new")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.txt", "folder"], "no partial file is left"


@pytest.fixture
def run(tmp_path):
    """An empty folder that this process has made after it began."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def names(folder):
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else None


def held(folder, resume=None, started=0.0, wrote=(), error=None):
    """Hold a folder, create the files `wrote`, and raise `error`; return the names in it at first, and the warnings."""
    warnings = []
    with claimed(folder, resume, warnings.append, started=started):
        inside = names(folder)
        for each in wrote:
            (folder / each).parent.mkdir(exist_ok=True)
            (folder / each).touch()
        if error is not None:
            raise error
    return inside, warnings


def test_folders_of_one_second_are_numbered_from_two_on_also_where_runs_start_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder, "datetime", type("Fixed", (), {"now": lambda: datetime(2026, 1, 2, 3, 4, 5)}))
    with ThreadPoolExecutor(8) as pool:
        made = [folder.as_posix() for folder in pool.map(new_folder, 24 * ["target"])]
    assert sorted(made) == sorted(
        f"runs/target/2026-01-02_03-04-05{number}" for number in ("", *(f"-{n}" for n in range(2, 25)))
    )
    assert all(Path(each).is_dir() for each in made)


@pytest.mark.parametrize("file", ["job.json", "job.log", "run.lock"])
def test_a_new_run_takes_an_empty_folder_and_leaves_it_without_its_lock(run, file):
    if file != "run.lock":
        (run / file).touch()
    inside, warnings = held(run, wrote=["results.jsonl"])
    assert inside == sorted({file, "run.lock"})
    assert names(run) == sorted({file, "results.jsonl"} - {"run.lock"})
    assert warnings == []


@pytest.mark.parametrize("lock", [False, True])
def test_a_new_run_refuses_a_folder_that_holds_something(run, lock):
    (run / "mine").touch()
    if lock:
        (run / "run.lock").touch()
    with pytest.raises(InputError, match=r"it holds mine. Choose another hydra.run.dir, or, .* add resume="):
        held(run)
    assert names(run) == ["mine"]


@pytest.mark.parametrize("resume", ["other", "run-2", "."])
def test_a_resumed_run_goes_on_in_the_folder_of_the_resumption_or_below_it(tmp_path, run, resume):
    if resume == ".":
        assert held(run, resume=str(tmp_path))[0] == ["run.lock"]
        return
    with pytest.raises(InputError, match=r"are different folders. Leave hydra.run.dir out"):
        held(run, resume=str(tmp_path / resume))
    assert names(run) == []


@pytest.mark.parametrize(
    ("error", "wrote", "resume", "left"),
    [
        (InputError("x"), (), None, None),
        (OSError("x"), ("config.yaml", "cells/probe.log"), None, None),
        (InputError("x"), ("config.yaml", "mine"), None, ["mine"]),
        (InputError("x"), ("config.yaml", "results.jsonl"), None, ["config.yaml", "results.jsonl"]),
        (InputError("x"), ("config.yaml",), "", ["config.yaml"]),
        (KeyError("x"), ("config.yaml",), None, ["config.yaml"]),
    ],
)
def test_what_a_run_wrote_goes_only_if_a_new_one_is_refused_before_its_first_cell(run, error, wrote, resume, left):
    with pytest.raises(type(error)):
        held(run, resume=None if resume is None else str(run), wrote=wrote, error=error)
    assert names(run) == left


def test_an_empty_folder_is_removed_only_where_this_process_made_it(run):
    held(run, started=time.time() + 60)
    assert run.exists()
    held(run, started=time.time() - 60)
    assert not run.exists()


@pytest.mark.parametrize("content", [b"{}", b"x", b'{"pid": "1", "host": "h", "since": "s"}'])
def test_a_file_that_is_no_lock_is_left_alone(run, content):
    (run / "run.lock").write_bytes(content)
    with pytest.raises(InputError, match=r"is not the lock of a run. Choose another hydra.run.dir"):
        held(run)
    assert (run / "run.lock").read_bytes() == content


def test_the_lock_of_a_process_that_died_is_taken_over(run):
    (run / "run.lock").write_text(json.dumps({"pid": 1, "host": "h", "since": "a much longer text than that of today"}))
    with claimed(run, None, print):
        assert json.loads((run / "run.lock").read_text())["pid"] == os.getpid()
    assert not (run / "run.lock").exists()


def test_without_locks_a_line_warns_and_other_errors_are_raised(run, monkeypatch):
    def fails(number):
        def lockf(descriptor, operation):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "lockf", lockf)

    fails(errno.ENOLCK)
    assert held(run)[1] == [f"note: {run} is on a file system without locks. Start no second run in it."]
    run.mkdir()  # it was removed, for it was empty
    fails(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        held(run)
    with pytest.raises(InputError, match="cannot be written: Input/output error"):
        held(run, resume=str(run))


CONFIG = {"a": {"b": 1, "c": [1, 2]}, "cell_timeout": 5}


def test_a_new_run_keeps_nothing_and_a_resumed_one_what_ended_well(run):
    assert prepare_folder(run, CONFIG, resumed=False) == run_folder.EarlierRun()
    assert names(run) == ["cells", "config.yaml"]
    assert prepare_folder(run, CONFIG, resumed=True) == run_folder.EarlierRun(), "killed before its first cell"
    ended = [record(variant=each).with_status(each, None if each == "ok" else "why") for each in ("failed", "skipped")]
    for each in (record(variant="ok"), *ended):
        append_record(run, each)
    with pytest.raises(InputError, match=r"environment.json is missing or damaged"):
        prepare_folder(run, CONFIG, resumed=True)
    write_json(run / "environment.json", {"seed": 3, "command": "python -m profiling.x resume=old a=1"})
    kept = prepare_folder(run, CONFIG | {"cell_timeout": 9, "resume": "x"}, resumed=True)
    assert [each.variant for each in kept.records] == ["ok", "skipped"]
    assert (kept.environment.seed, kept.skipped_lines) == (3, 0)
    with pytest.raises(InputError, match=r"another config \(a.b, d\). Use the same config: .* profiling.x a=1 resume="):
        prepare_folder(run, {"a": {"b": 2, "c": [1, 2]}, "d": 1}, resumed=True)
    (run / "config.yaml").write_text("[]")
    with pytest.raises(InputError, match=r"config.yaml cannot be read, because it holds no config"):
        prepare_folder(run, CONFIG, resumed=True)
    (run / "config.yaml").unlink()
    with pytest.raises(InputError, match=r"is no run: it has no config.yaml"):
        prepare_folder(run, CONFIG, resumed=True)


def test_the_command_that_resumes_is_that_of_the_start_or_is_named(run):
    assert resume_command(run) == f"repeat its command with resume={run} appended"
    assert resume_command(run, "python -m profiling.x a=1").endswith(f"-m profiling.x a=1 resume={run}")


def test_the_newest_line_of_each_cell_stays_in_the_order_of_the_run(run):
    for variant, reason in (("b", "old"), ("c", "x"), ("a", "x"), ("b", "new")):
        append_record(run, record(variant=variant).with_status("failed", reason))
    keep_newest_lines(run, [("net", "a"), (record().component, "a"), (record().component, "b")])
    assert [(each.variant, each.reason) for each in read_records(run).records] == [("a", "x"), ("b", "new"), ("c", "x")]
    assert len((run / "results.jsonl").read_bytes().splitlines()) == 3
