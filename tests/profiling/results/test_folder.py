"""Run folders: one for each run, files written atomically, and the differences between two configs."""

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


def test_differences_are_named_by_their_key():
    old = {"a": {"b": 1, "c": [1, 2]}, "resume": None, "cell_timeout": 5}
    assert config_differences(old, {"a": {"b": 1, "c": [1, 2]}, "resume": "x", "cell_timeout": 9}) == []
    assert config_differences(old, {"a": {"b": 2, "c": [1, 2]}, "d": 1}) == ["a.b", "d"]


def test_a_broken_config_is_an_error(tmp_path):
    (tmp_path / "config.yaml").write_text("a: [1, 2\n")
    with pytest.raises(InputError, match=r"config\.yaml"):
        prepare_folder(tmp_path, {"a": 1}, str(tmp_path))


def test_a_refused_run_leaves_none_of_its_own_files_and_all_others(tmp_path):
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
