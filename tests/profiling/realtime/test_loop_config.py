"""A wrong configuration of the loop: one line that says what to type next."""

import numpy as np

from profiling.cli.app import CONF, compose_config
from profiling.realtime.__main__ import checked, mixed

FEW = ("variant=[baseline]", "loop.frames=4", "loop.warmup_frames=1")


def composed(*overrides):
    return compose_config("realtime", overrides, [CONF])


def test_a_mix_is_made_of_expressions_that_no_row_need_have():
    assert mixed(*checked(composed())) is None, "without mix"
    cfg = composed("mix={world:baseline,picture:cuda_graph+channels_last,sound:compile_cuda_graph}")
    stages = mixed(*checked(cfg))["mixed"]["stages"]
    named = {stage: [*each["transforms"], each["compiler"], each["capture"]] for stage, each in stages.items()}
    classes = {stage: [each and each["_target_"].rpartition(".")[2] for each in some] for stage, some in named.items()}
    assert classes == {
        "world": [None, None],
        "picture": ["ChannelsLast", None, "CudaGraph"],
        "sound": ["Inductor", "CudaGraph"],
    }


def test_options_of_a_component_that_was_replaced_are_dropped():
    replaced = "pipeline.stages.world.component=world_model_step"
    config, graph = checked(composed("component=[world_model_step,picture_stage,sound_stage]", replaced))
    assert [spec.name for spec in config.components] == ["world_model_step", "picture_stage", "sound_stage"]
    assert graph.work == {"steps": 1, "commit": "fused", "guidance": None, "sound_latents": None}


def test_a_file_that_only_a_cell_can_refuse(realtime, tmp_path):
    """Exit code 2 and the reason on the terminal. What else is wrong input of the loop is in `tests/faults`."""
    np.savez(tmp_path / "narrow.npz", mouse=np.zeros((5, 3)), btn=np.zeros((5, 11)))
    outcome = realtime(*FEW, "pipeline.sources.action.file=narrow.npz", "isolation=process")
    assert outcome.code == 2, outcome.out + outcome.err
    said = " ".join((outcome.err + outcome.out).split())
    assert "its values are [5, 3]. Give [n, 1, 2]" in said, "also where the console wraps the line"
    assert "Traceback" not in outcome.err
    assert (outcome.folder / "results.jsonl").exists()
