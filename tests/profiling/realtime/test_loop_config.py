"""A wrong configuration of the loop: one line that says what to type next."""

import numpy as np
import pytest
import torch
from networks import built, composed, tiny_pipeline, tiny_settings

from profiling.cli.config import steps_of
from profiling.errors import InputError
from profiling.realtime.__main__ import checked, mixed, run
from profiling.realtime.loop import Loop
from profiling.realtime.options import LoopOptions

FEW = ("variant=[baseline]", "loop.frames=4", "loop.warmup_frames=1")

PICTURE = "pipeline.stages.picture.component"
BEFORE_ANY_CELL = {
    "component": ([f"{PICTURE}=nothing"], "picture.component=nothing is none of"),
    "two components": ([f"{PICTURE}=[picture_stage]"], "component=['picture_stage'] is none of"),
    "near component": ([f"{PICTURE}=picture_stag"], "Did you mean 'picture_stage'"),
    "a component that was not chosen": (
        ["component=[world_model_frame,sound_stage]"],
        "Name it in component=[...] too",
    ),
    "no stages": (["pipeline.stages=null"], "pipeline.stages is empty"),
    "no options": (["loop=fast"], "must be a mapping"),
    "another option": (["+loop.frame=3"], "Did you mean 'frames'"),
    "half a mix": (["mix={world:baseline,picture:baseline}"], "sound:baseline}"),
    "a mix of all": (["mix=baseline"], "mix={world:baseline"),
    "a mix of nothing": (["mix={world:baseline,picture:baseline,sound:[baseline]}"], "mix.sound"),
    "another variant": (["mix={world:baseline,picture:compil,sound:baseline}"], "Did you mean 'compile'"),
}


@pytest.mark.parametrize("case", BEFORE_ANY_CELL)
def test_wrong_before_any_cell(tmp_path, case):
    overrides, message = BEFORE_ANY_CELL[case]
    with pytest.raises(InputError) as caught:
        run(composed(*overrides), tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


OPTIONS = {
    "schedule": ("one_graph", "sequential, overlap"),
    "pace": ("realtme", "Did you mean 'realtime'"),
    "deliver": (None, "host, device"),
    "gc": (True, "frozen, on, off"),
    "frames": (0, "whole number"),
    "warmup_frames": (2.5, "whole number"),
    "profile_frames": (True, "whole number"),
    "fps": (float("nan"), "above 0"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_wrong_option(name):
    value, message = OPTIONS[name]
    with pytest.raises(InputError, match=rf"^loop\.{name}=.*{message}"):
        LoopOptions(**{name: value})


STAGES = {
    "pipeline.stages.picture.component=world_model_frame": "inputs.z: world_model_frame has no such input, only x",
    "~pipeline.stages.world.inputs.audio": "stages.world.inputs: world_model_frame also takes audio. Give it an edge",
    "pipeline.stages.sound.inputs.latent=world.0": r"latent=world.0: the input takes float32 \[1, 8\] on cpu, but gets",
    "pipeline.stages.picture.inputs.z=world.2": "pipeline: world.2: the stage world returns world.0, world.1",
}


@pytest.mark.parametrize("case", STAGES)
def test_a_component_that_does_not_fit(case):
    graph, specs = tiny_pipeline(case)
    settings = tiny_settings()
    loop = Loop(graph, LoopOptions(), settings, 9)
    components = loop.components(built(specs, settings))
    with pytest.raises(InputError, match=STAGES[case]) as caught, torch.inference_mode():
        loop.play_sessions(loop.pipeline(components))
    assert "\n" not in str(caught.value)


def test_without_mix():
    assert mixed(*checked(composed()), {}) is None


def test_a_mix_is_made_of_expressions_that_no_row_need_have():
    cfg = composed("mix={world:baseline,picture:cuda_graph+channels_last,sound:compile_cuda_graph}")
    stages = mixed(*checked(cfg), steps_of(cfg))["mixed"]["stages"]
    named = {stage: [*each["transforms"], each["compiler"], each["capture"]] for stage, each in stages.items()}
    classes = {stage: [each and each["_target_"].rpartition(".")[2] for each in some] for stage, some in named.items()}
    assert classes == {
        "world": [None, None],
        "picture": ["ChannelsLast", None, "CudaGraph"],
        "sound": ["Inductor", "CudaGraph"],
    }


def test_options_of_a_component_that_was_replaced_are_dropped():
    config, graph = checked(
        composed(
            "component=[world_model_step,picture_stage,sound_stage]", "pipeline.stages.world.component=world_model_step"
        )
    )
    assert [spec.name for spec in config.components] == ["world_model_step", "picture_stage", "sound_stage"]
    assert graph.work == {"steps": 1, "commit": "fused", "guidance": None, "sound_latents": None}


def test_input_that_only_a_cell_can_refuse(realtime, tmp_path):
    """Exit code 2 and the reason on the terminal, from a cell in a process of its own or in this one."""
    np.savez(tmp_path / "narrow.npz", mouse=np.zeros((5, 3)), btn=np.zeros((5, 11)))
    latency = "metric.latency times single steps, and the loop has its own clocks. Use metric=[parity,drift]"
    cases = (
        ([f"pipeline.sources.action.file={tmp_path / 'narrow.npz'}"], "its values are [5, 3]. Give [n, 1, 2]"),
        (["metric=[latency]", "isolation=none"], latency),
    )
    for overrides, message in cases:
        outcome = realtime(*FEW, *overrides)
        assert outcome.code == 2, outcome.out + outcome.err
        assert message in " ".join((outcome.err + outcome.out).split()), "also where the console wraps the line"
        # With isolation=none the log of the cell is on the terminal too.
        assert "Traceback" not in outcome.err or "isolation=none" in overrides


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("component.sound_stage.checkpoint=nowhere.pt", "component.sound_stage.checkpoint=nowhere.pt does not exist"),
        ("checkpoint=required", "checkpoint=required, but world_model_frame has none"),
    ],
)
def test_checkpoints_of_all_stages_are_looked_for_before_any_cell(realtime, override, says):
    outcome = realtime(*FEW, override)
    assert outcome.code == 2
    assert says in outcome.err
    assert not (outcome.folder / "results.jsonl").exists()
