"""The shipped pipelines at scale tiny: each schedule delivers the same, and what is delivered has the right form.

Frames of the default pipeline are compared with those of the same networks called in sequence.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from profiling.cli.app import CONF, compose_config
from profiling.components.actions import draw_actions
from profiling.components.build import build
from profiling.components.instantiate import instantiate
from profiling.components.spec import Settings
from profiling.realtime.__main__ import checked
from profiling.realtime.assemble import assemble
from profiling.realtime.cell import play_stages
from profiling.realtime.plan import LoopOptions, Plan
from profiling.realtime.play import Clock, FrameLoop

TICKS, FRAMES = 200, 25
VARIANTS = "variant=[baseline,cuda_graph]"
FORMS = {
    "stream_img2img": ((1, 64, 64, 3), torch.uint8),
    "chunked_video": ((1, 12, 16, 16, 3), torch.uint8),
    "speech": ((1, 1, 1920), torch.float32),
}
ALL = sorted(path.stem for path in (CONF / "pipeline").glob("*.yaml"))


def of(name):
    GlobalHydra.instance().clear()
    return checked(compose_config("realtime", (f"pipeline={name}", VARIANTS), [CONF]))


def prepared(name, stack, *, device="cpu", variant="baseline", **options):
    """Return (pipeline, its components) with the steps of a variant, which are closed with the stack."""
    config, graph = of(name)
    settings = Settings(device=device, dtype="float32", scale="tiny", checkpoint="random")
    specs = {spec.name: spec.at("tiny") for spec in config.components}
    plan = Plan(graph, LoopOptions(**options), settings, TICKS)
    blueprints = {name: specs[stage.component] for name, stage in graph.stages.items()}
    components = play_stages(
        plan, lambda: {name: build(spec, settings) for name, spec in blueprints.items()}
    ).components
    with torch.inference_mode():
        by = instantiate(config.variants[variant], "variant")
        steps = {name: by(each, Path("unused")) for name, each in components.items()}
        for step in steps.values():
            stack.callback(step.close)
        pipeline = assemble(plan, components, {name: step.run for name, step in steps.items()})
        pipeline.reset()
    return pipeline, components


@torch.inference_mode()
def played(pipeline, frames):
    """Return the delivered tensors [frames, ...] in their order, in host memory."""
    ticks = []

    def collect(tick, _ms):
        ticks.append([tensor.cpu().clone() for tensor in pipeline.delivered(tick).values()])
        return {}

    FrameLoop(pipeline, Clock(), collect).run(range(frames), lambda row: None)
    return [torch.stack(each) for each in zip(*ticks, strict=True)]


def delivered(name, frames, **options):
    """Return what a pipeline delivers that is prepared for these frames alone."""
    with ExitStack() as stack:
        return played(prepared(name, stack, **options)[0], frames)


@pytest.mark.parametrize(
    ("options", "priorities"),
    [({}, [0, 0, 0]), ({"schedule": "overlap", "deliver": "device"}, [-2, -1, 0])],
    ids=["sequential", "overlap"],
)
def test_the_default_pipeline_hands_over_the_frames_of_its_networks(options, priorities):
    """Those are called in sequence; only the noise is taken from the pipeline."""
    actions = draw_actions({"mouse": (1, 2), "btn": (1, 11)}, TICKS, 0, moves=["mouse"], held=["btn"])
    expected = []
    with ExitStack() as stack, torch.inference_mode():
        pipeline, components = prepared("owl", stack, **options)
        world, picture, sound = (components[name] for name in ("world", "picture", "sound"))
        assert [each.priority for each in (world, picture, sound)] == priorities, "with which stages are captured"
        for frame in range(FRAMES):
            for write in pipeline._runs[0].first:
                write(frame, None)
            noise = {name: world.inputs[name].clone() for name in ("x", "audio")}
            for name, values in actions.items():
                torch.testing.assert_close(world.inputs[name], torch.from_numpy(values[frame : frame + 1]))
            video, latent = world.module(**noise, **{name: world.inputs[name] for name in actions})
            expected.append((picture.module(video), sound.module(latent)))
        pipeline.reset()
        pictures, sounds = played(pipeline, FRAMES)
    for found, made in zip((pictures, sounds), zip(*expected, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(made), rtol=0, atol=0)
    assert pictures.dtype == torch.uint8
    assert len({frame.numpy().tobytes() for frame in pictures}) == FRAMES, "every frame is another one"


@pytest.mark.parametrize("name", ALL)
def test_a_pipeline_composes_and_says_what_it_is(name):
    config, graph = of(name)
    assert graph.name == ("realtime" if name == "owl" else name)
    assert {spec.name for spec in config.components} == {stage.component for stage in graph.stages.values()}
    if name == "chunked_video":  # its chunks are judged by their playback
        assert (graph.frames_per_tick, graph.frame_rate, graph.rates) == (12, 16, (16, 24))
        assert graph.stages["denoise"].repeat == 4


@pytest.mark.parametrize("name", FORMS)
def test_frames_have_the_right_form_and_differ(name):
    pytest.importorskip("diffusers")
    pytest.importorskip("transformers")
    (frames,) = delivered(name, 3)
    assert (tuple(frames.shape[1:]), frames.dtype) == FORMS[name]
    assert len({frame.numpy().tobytes() for frame in frames}) == 3, "each is another one"
    assert frames.float().std() > 0


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["baseline", "cuda_graph"])
@pytest.mark.parametrize("schedule", ["sequential", "overlap"])
def test_every_schedule_hands_over_the_same_frames_on_a_gpu(schedule, variant):
    reference = delivered("owl", FRAMES, device="cuda", schedule="sequential", deliver="device")
    pictures, sounds = delivered("owl", FRAMES, device="cuda", schedule=schedule, variant=variant)
    assert (pictures.int() - reference[0].int()).abs().max() <= 1, "a rounding to another of 256 values"
    torch.testing.assert_close(sounds, reference[1], rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["baseline", "cuda_graph"])
@pytest.mark.parametrize("name", FORMS)
def test_stages_that_overlap_deliver_the_same_on_a_gpu(name, variant):
    pytest.importorskip("diffusers")
    pytest.importorskip("transformers")
    reference = delivered(name, 8, device="cuda", deliver="device")[0]
    frames = delivered(name, 8, device="cuda", schedule="overlap", variant=variant)[0]
    torch.testing.assert_close(
        frames.float(), reference.float(), rtol=1e-2, atol=1.5 if frames.dtype == torch.uint8 else 1e-3
    )
