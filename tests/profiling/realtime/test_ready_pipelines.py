"""The ready pipelines at scale tiny: each schedule delivers the same, and what is delivered has the right form."""

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from networks import composed, delivered, tiny_pipeline

from profiling.cli.app import CONF
from profiling.realtime.__main__ import checked

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

FORMS = {
    "stream_img2img": ((1, 64, 64, 3), torch.uint8),
    "chunked_video": ((1, 12, 16, 16, 3), torch.uint8),
    "speech": ((1, 1, 1920), torch.float32),
}
ALL = sorted(path.stem for path in (CONF / "pipeline").glob("*.yaml"))


@pytest.mark.parametrize("name", ALL)
def test_a_pipeline_composes_and_says_what_it_is(name):
    GlobalHydra.instance().clear()
    config, graph = checked(composed(f"pipeline={name}"))
    assert graph.name == ("realtime" if name == "owl" else name)
    assert {spec.name for spec in config.components} == {stage.component for stage in graph.stages.values()}


@pytest.mark.parametrize("name", FORMS)
def test_frames_have_the_right_form_and_differ(name):
    (frames,) = delivered(3, f"pipeline={name}")
    shape, dtype = FORMS[name]
    assert (tuple(frames.shape[1:]), frames.dtype) == (shape, dtype)
    assert len({frame.numpy().tobytes() for frame in frames}) == 3, "each is another one"
    assert frames.float().std() > 0


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["baseline", "cuda_graph"])
@pytest.mark.parametrize("name", FORMS)
def test_stages_that_overlap_deliver_the_same_on_a_gpu(name, variant):
    reference = delivered(8, f"pipeline={name}", device="cuda", deliver="device")[0]
    frames = delivered(8, f"pipeline={name}", device="cuda", schedule="overlap", variant=variant)[0]
    torch.testing.assert_close(
        frames.float(), reference.float(), rtol=1e-2, atol=1.5 if frames.dtype == torch.uint8 else 1e-3
    )


def test_chunks_are_judged_by_their_playback():
    graph, _ = tiny_pipeline("pipeline=chunked_video")
    assert (graph.frames_per_tick, graph.frame_rate, graph.rates) == (12, 16, (16, 24))
    assert graph.stages["denoise"].repeat == 4
