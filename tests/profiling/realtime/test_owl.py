"""The default pipeline: delivered frames of every schedule against the same networks called in sequence."""

from dataclasses import replace

import pytest
import torch
from networks import TICKS, built, delivered, played, tiny_pipeline, tiny_settings

from profiling.components.actions import draw_actions
from profiling.realtime.loop import Loop
from profiling.realtime.options import LoopOptions

FRAMES = 25


def prepared(schedule):
    """Return a loop of this schedule and the components of its stages."""
    graph, specs = tiny_pipeline()
    settings = tiny_settings()
    loop = Loop(graph, LoopOptions(schedule=schedule), settings, TICKS)
    return loop, loop.sides(lambda: built(specs, settings)).components


@pytest.fixture(scope="module")
def loops():
    return {schedule: prepared(schedule) for schedule in ("sequential", "overlap")}


def pipeline_of(loop, components, deliver="host"):
    calls = {name: component.call for name, component in components.items()}
    pipeline = replace(loop, options=replace(loop.options, deliver=deliver)).pipeline(components, calls)
    with torch.inference_mode():
        pipeline.reset()
    return pipeline


@pytest.fixture(scope="module")
def expected(loops):
    """Make the frames by calling the networks; only the noise is taken from the pipeline."""
    loop, components = loops["sequential"]
    pipeline = pipeline_of(loop, components)
    world, picture, sound = (components[name] for name in ("world", "picture", "sound"))
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
def test_every_schedule_hands_over_the_same_frames(loops, expected, schedule, deliver):
    pictures, sounds = played(pipeline_of(*loops[schedule], deliver), FRAMES)
    assert pictures.dtype == torch.uint8
    torch.testing.assert_close(pictures, expected[0], rtol=0, atol=0)
    torch.testing.assert_close(sounds, expected[1], rtol=0, atol=0)
    assert len({frame.numpy().tobytes() for frame in pictures}) == FRAMES, "every frame is another one"


def test_stages_that_overlap_are_captured_with_priorities(loops):
    priorities = {
        schedule: {name: component.priority for name, component in components.items()}
        for schedule, (_, components) in loops.items()
    }
    assert priorities["overlap"] == {"world": -2, "sound": -1, "picture": 0}
    assert set(priorities["sequential"].values()) == {0}


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["baseline", "cuda_graph"])
@pytest.mark.parametrize("schedule", ["sequential", "overlap"])
def test_every_schedule_hands_over_the_same_frames_on_a_gpu(schedule, variant):
    reference = delivered(FRAMES, device="cuda", schedule="sequential", deliver="device")
    pictures, sounds = delivered(FRAMES, device="cuda", schedule=schedule, variant=variant)
    assert (pictures.int() - reference[0].int()).abs().max() <= 1, "a rounding to another of 256 values"
    torch.testing.assert_close(sounds, reference[1], rtol=1e-3, atol=1e-4)
