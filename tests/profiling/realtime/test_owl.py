"""The default pipeline: delivered frames of every schedule against the same networks called in sequence."""

from itertools import islice

import pytest
import torch
from networks import TICKS, delivered, tiny_loop, tiny_pipeline, tiny_settings

from models.playback import draw_actions
from profiling.errors import InputError
from profiling.realtime.prepare import build_stages, calibrated

FRAMES = 25


@pytest.fixture(scope="module")
def expected():
    """Make the frames by calling the networks; only the noise is taken from the pipeline."""
    pipeline, prepared, _ = tiny_loop()
    world, picture, sound = (prepared.components[name] for name in ("world", "picture", "sound"))
    actions = draw_actions({"mouse": (1, 2), "btn": (1, 11)}, TICKS, 0)
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


@pytest.fixture(scope="module")
def networks():
    graph, specs = tiny_pipeline()
    with torch.inference_mode():
        yield graph, specs, build_stages(specs, tiny_settings())


def calibration(networks, **options):
    _, specs, blueprints = networks
    stage = {"window": "exact", "latents": 20, "min_snr_db": 40.0} | options
    changed, _ = tiny_pipeline(*(f"sound.{name}={value}" for name, value in stage.items()))
    with torch.inference_mode():
        return calibrated(changed, specs, blueprints, tiny_settings(), ticks=TICKS)


@pytest.mark.parametrize(
    ("least", "window", "chosen"),
    [(1.0, "auto", "windowed"), (200.0, "auto", "exact"), (200.0, "windowed", "windowed"), (1.0, "exact", "exact")],
)
def test_a_stage_chooses_how_it_runs_on_the_inputs_of_the_loop(networks, least, window, chosen):
    specs, reports = calibration(networks, window=window, min_snr_db=least)
    decoded = 20 if chosen == "windowed" else 30
    assert specs["sound"].module["decoded"] == decoded, "the build of the run gets it as an argument"
    report = reports["sound"]
    assert (report["window"], report["decoded"], report["window_latents"], report["samples"]) == (
        chosen,
        decoded,
        30,
        12,
    )
    assert set(report["snr_db"]) == {"4", "8", "15", "20", "22"}
    assert report["snr_db"]["22"] > report["snr_db"]["4"], "a longer window is nearer"
    assert specs["world"] == networks[1]["world"]


def test_calibration_sees_the_session_that_is_played(networks):
    from profiling.realtime.prepare import _inputs_of

    graph, _, blueprints = networks
    pipeline, prepared, _ = tiny_loop(deliver="device")
    with torch.inference_mode():
        seen = [
            inputs["latent"] for inputs in islice(_inputs_of("sound", graph, blueprints, tiny_settings(), TICKS), 5)
        ]
        for tick, latent in enumerate(seen):
            pipeline.begin(tick)
            torch.testing.assert_close(prepared.components["sound"].inputs["latent"], latent, rtol=1e-4, atol=1e-5)
    assert len({latent.numpy().tobytes() for latent in seen}) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": "windowed", "latents": 31}, "pipeline.stages.sound.calibrate: latents=31: the window holds 30"),
        ({"window": "wide"}, "pipeline.stages.sound.calibrate: window='wide' must be one of exact, windowed, auto"),
    ],
)
def test_a_calibration_that_is_refused(networks, options, message):
    with pytest.raises(InputError, match=message):
        calibration(networks, **options)


def test_a_module_without_a_calibration(networks):
    graph, specs, blueprints = networks
    with pytest.raises(InputError, match=r"sound\.calibrate: PictureStage has no method calibrate"):
        calibrated(graph, specs, {**blueprints, "sound": blueprints["picture"]}, tiny_settings(), ticks=TICKS)
