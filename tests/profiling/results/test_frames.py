"""The file of frame series: what is written is read, and a damaged file is one line."""

import numpy as np
import pytest

from profiling.errors import InputError
from profiling.results.frames import Journal, read_journal, read_series, stage_names, write_series

SERIES = {name: np.arange(50.0) for name in ("frame_ms", "action_ms", "host_decode_ms", "host_deliver_ms", "wait_ms")}


def test_what_is_written_is_read(tmp_path):
    series = SERIES | {"device_used": np.where(np.arange(50) % 10 == 0, 1e9, np.nan)}
    path = tmp_path / "realtime.compile.frames.npz"
    for written in (series, {name: values[:0] for name, values in series.items()}):
        write_series(path, written)
        back = read_series(path)
        assert list(back) == list(written)
        for name, values in written.items():
            np.testing.assert_array_equal(back[name], values)
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    assert stage_names(back) == ("decode", "deliver"), "in their order"


def test_a_journal_of_rows_and_of_values_by_name(tmp_path):
    """A name that comes later is NaN in the rows before, and a row that was handed out is the caller's own."""
    journal, quiet = Journal(tmp_path, "loop.recorded", ("frame_ms", "switches")), {"switches": 0.0}
    for frame in range(3):
        row = journal.row(quiet)
        row[0] = 5.0 + frame
        if frame == 1:
            row[journal.place("host_decode_ms", row)] = 2.0
        journal.write(row)
    journal.append({"frame_ms": 8.0, "host_sound_ms": 1.0})
    assert len(read_journal(tmp_path, "loop.recorded")["frame_ms"]) == 4, "while it is open"
    journal.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        journal.append({"frame_ms": 9.0})
    series, nan = read_journal(tmp_path, "loop.recorded"), np.nan
    assert {name: list(values) for name, values in series.items()} == {
        "frame_ms": [5.0, 6.0, 7.0, 8.0],
        "switches": pytest.approx([0.0, 0.0, 0.0, nan], nan_ok=True),
        "host_decode_ms": pytest.approx([nan, 2.0, nan, nan], nan_ok=True),
        "host_sound_ms": pytest.approx([nan, nan, nan, 1.0], nan_ok=True),
    }


def flip(path, place, bits):
    content = path.read_bytes()
    path.write_bytes(content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :])


def array_alone(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: path.write_text("no archive at all"),
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: flip(path, 200, 0xFF),
        lambda path: flip(path, path.read_bytes().index(b"PK\x01\x02") + 8, 1),  # the flag of an encrypted member
        array_alone,
        lambda path: np.savez(path, frame_ms=np.zeros(3), action_ms=np.zeros(2)),
        lambda path: np.savez(path, other=np.zeros(3)),
        lambda path: np.savez(path, frame_ms=np.array(["a", "b"])),
        lambda path: np.savez(path, frame_ms=np.array([{}], dtype=object)),
        lambda path: np.savez(path, action_ms=np.zeros(0)),
    ],
)
def test_what_is_no_such_file(tmp_path, spoil):
    path = tmp_path / "frames.npz"
    write_series(path, SERIES)
    spoil(path)
    with pytest.raises(InputError, match=r"frames\.npz .*Repeat the run") as caught:
        read_series(path)
    assert "\n" not in str(caught.value)
