"""Files of a run: reading and writing an environment.json loses no key, and a file is written whole or not at all."""

import json
from pathlib import Path

import pytest

from profiling.results.environment import encode_environment, read_environment
from profiling.results.record import leaves
from profiling.results.run_folder import config_differences, write_text

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


def test_differences_are_named_by_their_key():
    old = {"a": {"b": 1, "c": [1, 2]}, "resume": None, "cell_timeout": 5}
    assert config_differences(old, {"a": {"b": 1, "c": [1, 2]}, "resume": "x", "cell_timeout": 9}) == []
    assert config_differences(old, {"a": {"b": 2, "c": [1, 2]}, "d": 1}) == ["a.b", "d"]
