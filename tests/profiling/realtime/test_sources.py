"""Sources of the host: recordings, factories and draws, and files that hold something else."""

import numpy as np
import pytest
import torch

from profiling.components.actions import draw_actions
from profiling.errors import InputError
from profiling.realtime.graph import Draw, Source
from profiling.realtime.sources import DrawFeed, Feed, source_arrays

SHAPES = {"mouse": (1, 2), "btn": (1, 11)}


def fed(path):
    """Return the feeds of a recording, by key, and the inputs that they write."""
    arrays = source_arrays("action", Source(file=str(path)), SHAPES, 9, 0)
    inputs = {key: torch.zeros(shape) for key, shape in SHAPES.items()}
    where = f"pipeline.sources.action.file={path}"
    return {
        key: Feed(f"{where}: {key}", arrays[key], 1, target, torch.float32, 1, once=True)
        for key, target in inputs.items()
    }, inputs


def test_a_recording_is_repeated_and_read_in_the_dtype_of_the_run(tmp_path):
    mouse, btn = np.arange(14.0).reshape(7, 2), np.arange(77).reshape(7, 11) % 2
    np.savez(tmp_path / "a.npz", mouse=mouse, btn=btn)
    feeds, inputs = fed(tmp_path / "a.npz")
    for tick in range(-3, 20):  # warm-up ticks count from below 0
        for key, values in (("mouse", mouse), ("btn", btn)):
            feeds[key](tick)
            assert inputs[key].tolist() == [values[tick % 7].tolist()]
    target = torch.zeros(1, 2)
    Feed("x", np.full((3, 2), 1.001), 1, target, torch.bfloat16, 1, once=True)(0)
    assert target.tolist() == [[1.0, 1.0]], "a float32 reference reads what a bfloat16 run reads"


def test_a_value_is_copied_once_where_nothing_else_writes_the_input():
    """A prompt of minutes is no copy in every frame."""
    for once, found in ((True, [1, 0, 0, 2]), (False, [1, 1, 1, 2])):
        target, seen = torch.zeros(1), []
        feed = Feed("x", np.array([[1.0], [2.0]]), 3, target, torch.float32, 1, once=once)
        for tick in range(4):
            feed(tick)
            seen.append(int(target))
            target.zero_()
        assert seen == found


def test_a_float32_reference_draws_what_a_bfloat16_run_draws():
    targets = torch.zeros(1, 8), torch.zeros(1, 8, dtype=torch.bfloat16)
    for target in targets:
        DrawFeed("x", Draw("normal"), target, torch.bfloat16, 0)(0, None)
    assert targets[0].tolist() == targets[1].tolist()
    assert len(set(targets[0].flatten().tolist())) == 8


WRONG = {
    "another width": {"mouse": np.zeros((5, 3))},
    "no values": {"mouse": np.zeros((0, 2))},
    "not finite": {"mouse": np.full((5, 2), np.nan)},
    "a key missing": {"mice": np.zeros((5, 2))},
    "a number": {"mouse": np.float64(1)},
    "words": {"mouse": np.full((5, 2), "left")},
    "objects": {"mouse": np.full((5, 2), None)},
    "complex": {"mouse": np.full((5, 2), 1j)},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_holds_something_else(tmp_path, case):
    np.savez(tmp_path / "a.npz", **WRONG[case], btn=np.zeros((5, 11)))
    with pytest.raises(InputError, match=r"pipeline\.sources\.action\.file=") as caught:
        fed(tmp_path / "a.npz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 cut off", np.zeros((5, 2))])
def test_a_file_that_is_no_archive(tmp_path, content):
    path = tmp_path / "a.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(InputError, match=r"numpy\.savez\(path, mouse=\[n, 2\], btn=\[n, 11\]\)"):
        fed(path)


def test_draws_of_a_seed():
    source = Source(draw={"image": Draw("uniform", -1, 1), "codes": Draw("integers", 0, 9), "mask": Draw("bernoulli")})
    shapes = {"image": (1, 3, 4), "codes": (1, 8), "mask": (2,)}
    first, again, other = (source_arrays("s", source, shapes, 9, seed) for seed in (1, 1, 2))
    assert {key: each.shape[1:] for key, each in first.items()} == shapes
    assert all((first[key] == again[key]).all() for key in shapes)
    assert not (first["image"] == other["image"]).all()
    assert -1 <= first["image"].min() < -0.5 < 0.5 < first["image"].max() < 1
    assert set(np.unique(first["codes"])) <= set(range(9))
    assert set(np.unique(first["mask"])) == {0, 1}


def test_a_factory_that_fails_or_lacks_a_key():
    make = {"_target_": "profiling.components.actions.draw_actions", "moves": ["mouse"], "held": ["btn"]}
    with pytest.raises(InputError, match=r"pipeline\.sources\.a\.make: .*there is no action 'keys'"):
        source_arrays("a", Source(make=make), {"keys": (1, 2)}, 9, 0)
    with pytest.raises(InputError, match="it has no mouse"):
        source_arrays("a", Source(make={"_target_": "builtins.dict"}), {"mouse": (1, 2)}, 9, 0)


def test_the_mouse_drifts_and_buttons_are_held():
    actions, again, other = (draw_actions(SHAPES, 5000, seed, moves=["mouse"], held=["btn"]) for seed in (0, 0, 1))
    mouse, btn = actions["mouse"], actions["btn"]
    assert (mouse.shape, btn.shape) == ((5000, 2), (5000, 11))
    assert mouse.dtype == btn.dtype == np.float32
    assert set(np.unique(btn)) == {0.0, 1.0}
    assert np.abs(np.diff(btn, axis=0)).mean() == pytest.approx(0.05, rel=0.2), "held for 20 frames at a time"
    assert ((btn.mean(axis=0) > 0.2) & (btn.mean(axis=0) < 0.8)).all(), "each is used"
    assert (np.diff(mouse, axis=0) != 0).all(), "it moves in every frame"
    for axis in mouse.T:
        assert axis.std() == pytest.approx(1 / np.sqrt(1 - 0.9**2), rel=0.2)
        assert np.corrcoef(axis[1:], axis[:-1])[0, 1] == pytest.approx(0.9, abs=0.03)
    assert all((actions[key] == again[key]).all() and not (actions[key] == other[key]).all() for key in SHAPES)
