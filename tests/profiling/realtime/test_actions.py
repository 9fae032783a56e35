"""Actions: drawn from a seed as a player's would be, or read from a file and checked."""

import numpy as np
import pytest

from profiling.errors import InputError
from profiling.realtime.pipeline import drawn_actions, read_actions


def test_a_seed_draws_the_same_player():
    first, again, other = (drawn_actions(300, 2, 11, seed) for seed in (5, 5, 6))
    assert (first.mouse == again.mouse).all()
    assert (first.btn == again.btn).all()
    assert not (first.mouse == other.mouse).all()
    assert not (first.btn == other.btn).all()


def test_the_mouse_drifts_and_buttons_are_held():
    actions = drawn_actions(5000, 2, 11, 0)
    assert actions.mouse.shape == (5000, 2)
    assert actions.btn.shape == (5000, 11)
    assert actions.mouse.dtype == actions.btn.dtype == np.float32
    assert set(np.unique(actions.btn)) == {0.0, 1.0}
    changes = np.abs(np.diff(actions.btn, axis=0)).mean()
    assert changes == pytest.approx(0.05, rel=0.2), "held for 20 frames at a time"
    assert ((actions.btn.mean(axis=0) > 0.2) & (actions.btn.mean(axis=0) < 0.8)).all(), "each is used"
    assert (np.diff(actions.mouse, axis=0) != 0).all(), "it moves in every frame"
    for axis in actions.mouse.T:
        assert axis.std() == pytest.approx(1 / np.sqrt(1 - 0.9**2), rel=0.2)
        assert np.corrcoef(axis[1:], axis[:-1])[0, 1] == pytest.approx(0.9, abs=0.03)


def test_what_was_recorded_is_played_and_begins_again(tmp_path):
    mouse, btn = np.arange(14.0).reshape(7, 2), np.arange(21).reshape(7, 3) % 2
    np.savez(tmp_path / "a.npz", mouse=mouse, btn=btn)
    actions = read_actions(tmp_path / "a.npz", 2, 3)
    for frame in range(-3, 20):  # warm-up frames count from below 0
        for found, given in zip(actions.at(frame), (mouse, btn), strict=True):
            assert found.dtype == np.float32
            assert found.tolist() == given[frame % 7].tolist()


WRONG = {
    "another width": {"mouse": np.zeros((5, 3)), "btn": np.zeros((5, 11))},
    "other lengths": {"mouse": np.zeros((5, 2)), "btn": np.zeros((4, 11))},
    "no frames": {"mouse": np.zeros((0, 2)), "btn": np.zeros((0, 11))},
    "not finite": {"mouse": np.full((5, 2), np.nan), "btn": np.zeros((5, 11))},
    "a name missing": {"mouse": np.zeros((5, 2))},
    "a number": {"mouse": np.float64(1), "btn": np.zeros((5, 11))},
    "words": {"mouse": np.full((5, 2), "left"), "btn": np.zeros((5, 11))},
    "objects": {"mouse": np.full((5, 2), None), "btn": np.zeros((5, 11))},
    "complex": {"mouse": np.full((5, 2), 1j), "btn": np.zeros((5, 11))},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_holds_something_else(tmp_path, case):
    path = tmp_path / "a.npz"
    np.savez(path, **WRONG[case])
    with pytest.raises(InputError, match=r"loop\.actions=.*\[n, (2|11)\]") as caught:
        read_actions(path, 2, 11)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 cut off"])
def test_a_file_that_is_none(tmp_path, content):
    path = tmp_path / "a.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"numpy\.savez"):
        read_actions(path, 2, 11)


def test_an_array_alone(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((5, 2)))
    with pytest.raises(InputError, match=r"numpy\.savez"):
        read_actions(tmp_path / "a.npy", 2, 11)
