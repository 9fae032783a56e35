"""Run folders: one a run, whole files, and the difference between two configs."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from profiling.errors import InputError
from profiling.results.run_folder import config_differences, new_folder, prepare_folder, remove_refused_run, write_text


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: new_folder(tmp_path / "runs", "2026-01-02_03-04-05"), range(24)))
    assert len(set(folders)) == 24
    assert all(folder.is_dir() for folder in folders)
    assert tmp_path / "runs" / "2026-01-02_03-04-05" in folders


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"


def test_differences_are_named_by_their_key():
    old = {"a": {"b": 1, "c": [1, 2]}, "resume": None, "cell_timeout": 5}
    assert config_differences(old, {"a": {"b": 1, "c": [1, 2]}, "resume": "x", "cell_timeout": 9}) == []
    assert config_differences(old, {"a": {"b": 2, "c": [1, 2]}, "d": 1}) == ["a.b", "d"]


def test_a_broken_config_is_told(tmp_path):
    (tmp_path / "config.yaml").write_text("a: [1, 2\n")
    with pytest.raises(InputError, match=r"config\.yaml"):
        prepare_folder(tmp_path, {"a": 1}, str(tmp_path))


def test_a_refused_run_leaves_nothing_and_takes_nothing(tmp_path):
    run = tmp_path / "run"
    prepare_folder(run, {"a": 1}, None)
    (run / "cells" / "probe.log").touch()
    remove_refused_run(run)
    assert not run.exists()

    prepare_folder(run, {"a": 1}, None)
    (run / "mine.txt").write_text("kept")
    remove_refused_run(run)
    assert [path.name for path in run.iterdir()] == ["mine.txt"]

    (run / "results.jsonl").write_text("{}\n")
    (run / "config.yaml").write_text("a: 1\n")
    remove_refused_run(run)
    assert (run / "config.yaml").exists(), "a run that was there before"
