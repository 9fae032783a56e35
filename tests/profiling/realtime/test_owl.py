"""The default pipeline: delivered frames of every schedule against the same networks called in sequence."""

import pytest
import torch
from networks import TICKS, delivered, tiny_loop

from profiling.components.actions import draw_actions

FRAMES = 25


@pytest.fixture(scope="module")
def expected():
    """Make the frames by calling the networks; only the noise is taken from the pipeline."""
    pipeline, prepared, _ = tiny_loop()
    world, picture, sound = (prepared.components[name] for name in ("world", "picture", "sound"))
    actions = draw_actions({"mouse": (1, 2), "btn": (1, 11)}, TICKS, 0, moves=["mouse"], held=["btn"])
    pictures, sounds = [], []
    with torch.inference_mode():
        for frame in range(FRAMES):
            for write in pipeline._runs[0].first:
                write(frame, None)
            noise = {name: world.inputs[name].clone() for name in ("x", "audio")}
            for name, values in actions.items():
                torch.testing.assert_close(world.inputs[name], torch.from_numpy(values[frame : frame + 1]))
            video, latent = world.module(**noise, **{name: world.inputs[name] for name in actions})
            pictures.append(picture.module(video))
            sounds.append(sound.module(latent))
    return torch.stack(pictures), torch.stack(sounds)


@pytest.mark.parametrize("deliver", ["host", "device"])
@pytest.mark.parametrize("schedule", ["sequential", "overlap"])
def test_every_schedule_hands_over_the_same_frames(expected, schedule, deliver):
    pictures, sounds = delivered(FRAMES, schedule=schedule, deliver=deliver)
    assert pictures.dtype == torch.uint8
    torch.testing.assert_close(pictures, expected[0], rtol=0, atol=0)
    torch.testing.assert_close(sounds, expected[1], rtol=0, atol=0)
    assert len({frame.numpy().tobytes() for frame in pictures}) == FRAMES, "every frame is another one"


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["baseline", "cuda_graph"])
@pytest.mark.parametrize("schedule", ["sequential", "overlap"])
def test_every_schedule_hands_over_the_same_frames_on_a_gpu(schedule, variant):
    reference = delivered(FRAMES, device="cuda", schedule="sequential", deliver="device")
    pictures, sounds = delivered(FRAMES, device="cuda", schedule=schedule, variant=variant)
    assert (pictures.int() - reference[0].int()).abs().max() <= 1, "a rounding to another of 256 values"
    torch.testing.assert_close(sounds, reference[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("schedule", ["sequential", "overlap"])
def test_stages_that_overlap_are_captured_with_priorities(schedule):
    _, prepared, close = tiny_loop(schedule=schedule)
    close()
    priorities = {name: component.priority for name, component in prepared.components.items()}
    expected = {"world": -2, "sound": -1, "picture": 0} if schedule == "overlap" else dict.fromkeys(priorities, 0)
    assert priorities == expected
