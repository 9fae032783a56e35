"""Actions, the window of the sound decoder, and delivered frames against the same networks called in sequence."""

import numpy as np
import pytest
import torch
from networks import TINY, delivered, tiny_loop, tiny_specs

from models.audio_vae import AudioVAEParams
from models.initialisation import randomise
from models.playback import SoundStage
from profiling.errors import InputError
from profiling.realtime.options import LoopOptions
from profiling.realtime.pipeline import FrameInputs, drawn_actions, read_actions
from profiling.realtime.prepare import build_stages
from profiling.realtime.sound import TRIALS, choose_window, latents_of, windows_snr
from profiling.results.record import SoundWindow


def test_a_seed_draws_the_same_actions():
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


def test_recorded_actions_are_repeated(tmp_path):
    mouse, btn = np.arange(14.0).reshape(7, 2), np.arange(21).reshape(7, 3) % 2
    np.savez(tmp_path / "a.npz", mouse=mouse, btn=btn)
    actions = read_actions(tmp_path / "a.npz", 2, 3)
    for frame in range(-3, 20):  # warm-up frames count from below 0
        for read, given in zip(actions.at(frame), (mouse, btn), strict=True):
            assert read.dtype == np.float32
            assert read.tolist() == given[frame % 7].tolist()


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
def test_a_file_that_is_no_archive(tmp_path, content):
    path = tmp_path / "a.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"numpy\.savez"):
        read_actions(path, 2, 11)
    np.save(tmp_path / "a.npy", np.zeros((5, 2)))
    with pytest.raises(InputError, match=r"numpy\.savez"):
        read_actions(tmp_path / "a.npy", 2, 11)


FRAMES = 25


@pytest.fixture(scope="module")
def expected():
    """Make the frames by calling the networks, without a pipeline."""
    _, loaded, _ = tiny_loop()
    inputs = FrameInputs(loaded.components["world"], drawn_actions(200, 2, 11, 0), 1, 0)
    world, picture, sound = (loaded.components[name] for name in ("world", "picture", "sound"))
    pictures, sounds = [], []
    with torch.inference_mode():
        for frame in range(FRAMES):
            inputs.write(frame)
            video, latent = world.module(**world.inputs)
            pictures.append(picture.module(video))
            sounds.append(sound.module(latent))
    return torch.stack(pictures), torch.stack(sounds)


@pytest.mark.parametrize("deliver", ["host", "device"])
@pytest.mark.parametrize("schedule", ["sequential", "overlap", "one_graph"])
def test_every_schedule_hands_over_the_same_frames(expected, schedule, deliver):
    pictures, sounds = delivered(FRAMES, schedule=schedule, deliver=deliver)
    assert pictures.dtype == torch.uint8
    torch.testing.assert_close(pictures, expected[0], rtol=0, atol=0)
    torch.testing.assert_close(sounds, expected[1], rtol=0, atol=0)
    assert len({frame.numpy().tobytes() for frame in pictures}) == FRAMES, "every frame is another one"


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["baseline", "cuda_graph"])
@pytest.mark.parametrize("schedule", ["sequential", "overlap", "one_graph"])
def test_every_schedule_hands_over_the_same_frames_on_a_gpu(schedule, variant):
    reference = delivered(FRAMES, device="cuda", schedule="sequential", deliver="device")
    pictures, sounds = delivered(FRAMES, device="cuda", schedule=schedule, variant=variant)
    assert (pictures.int() - reference[0].int()).abs().max() <= 1, "a rounding to another of 256 values"
    torch.testing.assert_close(sounds, reference[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("schedule", ["sequential", "overlap"])
def test_stages_that_overlap_are_captured_with_priorities(schedule):
    _, loaded, close = tiny_loop(schedule=schedule)
    close()
    priorities = {name: component.priority for name, component in loaded.components.items()}
    expected = {"world": -2, "sound": -1, "picture": 0} if schedule == "overlap" else dict.fromkeys(priorities, 0)
    assert priorities == expected


WINDOW = 30


@pytest.fixture(scope="module")
def world():
    with torch.inference_mode():
        yield build_stages(tiny_specs(), TINY)["world"].component(torch.float32, 0)


def small_stage():
    params = AudioVAEParams(channels=2, latent_channels=8, ch_0=16, ch_max=32, strides=(4, 3, 1))
    stage = SoundStage(params, window=WINDOW).eval()
    randomise(stage, 0, prefix="decoder.")
    return stage


@torch.inference_mode()
def test_the_signal_to_noise_ratio_by_hand():
    """Signal over noise, both summed over all windows, in numpy and double precision."""
    stage = small_stage()
    latents = torch.randn(1, 8, WINDOW + 3, generator=torch.Generator().manual_seed(0))
    sounds = {length: [] for length in (5, 20, WINDOW)}
    for first in range(4):
        for length, newest in sounds.items():
            given = latents[:, :, first + WINDOW - length : first + WINDOW]
            sound = super(SoundStage, stage).forward(given).numpy().astype(np.float64)
            newest.append(sound[:, :, -stage.params.samples_per_latent :])
    exact = np.stack(sounds.pop(WINDOW))
    by_hand = {
        length: 10 * np.log10((exact**2).sum() / ((np.stack(short) - exact) ** 2).sum())
        for length, short in sounds.items()
    }
    assert by_hand[20] > by_hand[5], "a longer window is nearer"
    assert windows_snr(stage, latents, [5, 20]) == pytest.approx(by_hand, rel=1e-6)
    assert windows_snr(stage, latents, [WINDOW]) == {}, "nothing differs, so there is no ratio"


def test_latents_are_the_worlds_own_and_leave_it_as_it_was(world):
    world.reset()
    before = [tensor.clone() for tensor in world.state()]
    first, again, other = (latents_of(world, 5, seed) for seed in (1, 1, 2))
    assert first.shape == (1, 8, 5)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({column.numpy().tobytes() for column in first[0].T}) == 5, "each frame's is another"
    for tensor, old in zip(world.state(), before, strict=True):
        assert torch.equal(tensor, old)


@pytest.mark.parametrize(
    ("bar", "sound", "chosen"),
    [(1.0, "auto", "windowed"), (200.0, "auto", "exact"), (200.0, "windowed", "windowed"), (1.0, "exact", "exact")],
)
@torch.inference_mode()
def test_the_window_that_is_decoded(world, bar, sound, chosen):
    stage = small_stage()
    section = choose_window(stage, world, LoopOptions(sound=sound, sound_latents=20, sound_snr_db=bar), 0)
    decoded = 20 if chosen == "windowed" else WINDOW
    assert (section.window, section.decoded, section.window_latents, section.samples) == (chosen, decoded, WINDOW, 12)
    assert stage.decoded == decoded
    latents = latents_of(world, WINDOW + TRIALS - 1, 0)
    assert section.snr_db["20"] == windows_snr(stage, latents, [20])[20]
    assert set(section.snr_db) == {"4", "8", "15", "20", "22"}


def test_a_window_longer_than_the_whole(world):
    with pytest.raises(InputError, match=r"sound_latents=31: the window holds 30.*loop\.sound=exact"):
        choose_window(small_stage(), world, LoopOptions(sound="windowed", sound_latents=31), 0)


def test_a_decoder_without_a_window(world):
    with pytest.raises(InputError, match=r"loop\.sound=exact"):
        choose_window(torch.nn.Identity(), world, LoopOptions(sound="auto"), 0)
    assert choose_window(torch.nn.Identity(), world, LoopOptions(), 0) == SoundWindow(window="exact")


@torch.inference_mode()
def test_the_whole_window_asked_for_is_exact(world):
    section = choose_window(small_stage(), world, LoopOptions(sound="windowed", sound_latents=WINDOW), 0)
    assert (section.window, section.decoded) == ("exact", WINDOW)
