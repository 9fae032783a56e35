"""Run folders: files written atomically, and the differences between two configs."""

import pytest

from profiling.results.run_folder import config_differences, write_text


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
