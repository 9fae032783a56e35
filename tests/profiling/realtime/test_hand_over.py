"""What the player gets is what the networks make, one after the other, whatever the schedule."""

import pytest
import torch
from networks import played, tiny_loop

from profiling.realtime.pipeline import drawn_actions, make_feeder

FRAMES = 25


@pytest.fixture(scope="module")
def expected():
    """Make the frames by calling the networks, without a pipeline."""
    _, parts, _ = tiny_loop()
    feed = make_feeder(parts.components["world"], drawn_actions(200, 2, 11, 0), 1, 0)
    world, picture, sound = (parts.components[name] for name in ("world", "picture", "sound"))
    pictures, sounds = [], []
    with torch.inference_mode():
        for frame in range(FRAMES):
            feed(frame)
            video, latent = world.module(**world.inputs)
            pictures.append(picture.module(video))
            sounds.append(sound.module(latent))
    return torch.stack(pictures), torch.stack(sounds)


@pytest.mark.parametrize("deliver", ["host", "device"])
@pytest.mark.parametrize("schedule", ["sequential", "overlap", "one_graph"])
def test_every_schedule_hands_over_the_same_frames(expected, schedule, deliver):
    pictures, sounds = played(FRAMES, schedule=schedule, deliver=deliver)
    assert pictures.dtype == torch.uint8
    torch.testing.assert_close(pictures, expected[0], rtol=0, atol=0)
    torch.testing.assert_close(sounds, expected[1], rtol=0, atol=0)
    assert len({frame.numpy().tobytes() for frame in pictures}) == FRAMES, "every frame is another one"


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["baseline", "cuda_graph"])
@pytest.mark.parametrize("schedule", ["sequential", "overlap", "one_graph"])
def test_every_schedule_hands_over_the_same_frames_on_a_gpu(schedule, variant):
    reference = played(FRAMES, device="cuda", schedule="sequential", deliver="device")
    pictures, sounds = played(FRAMES, device="cuda", schedule=schedule, variant=variant)
    assert (pictures.int() - reference[0].int()).abs().max() <= 1, "a rounding to another of 256 values"
    torch.testing.assert_close(sounds, reference[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("schedule", ["sequential", "overlap"])
def test_stages_that_overlap_are_captured_with_priorities(schedule):
    """What the next frame waits for goes first, and what fills the GPU last."""
    _, parts, close = tiny_loop(schedule=schedule)
    close()
    priorities = {name: component.priority for name, component in parts.components.items()}
    expected = {"world": -2, "sound": -1, "picture": 0} if schedule == "overlap" else dict.fromkeys(priorities, 0)
    assert priorities == expected
