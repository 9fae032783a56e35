"""A wrong configuration of the loop: one line that says what to type next."""

import numpy as np
import pytest

from profiling.cli.app import CONF, compose_config
from profiling.cli.config import steps_of
from profiling.realtime.__main__ import checked, mixed

FEW = ("variant=[baseline]", "loop.frames=4", "loop.warmup_frames=1")


def composed(*overrides):
    return compose_config("realtime", overrides, [CONF])


def test_a_mix_is_made_of_expressions_that_no_row_need_have():
    assert mixed(*checked(composed()), {}) is None, "without mix"
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
    replaced = "pipeline.stages.world.component=world_model_step"
    config, graph = checked(composed("component=[world_model_step,picture_stage,sound_stage]", replaced))
    assert [spec.name for spec in config.components] == ["world_model_step", "picture_stage", "sound_stage"]
    assert graph.work == {"steps": 1, "commit": "fused", "guidance": None, "sound_latents": None}


@pytest.mark.parametrize(
    ("override", "isolation", "message"),
    [
        ("pipeline.sources.action.file=narrow.npz", "process", "its values are [5, 3]. Give [n, 1, 2]"),
        ("metric=[latency]", "none", "metric.latency times single steps, and the loop has its own clocks. Use metric"),
        ("checkpoint=required", "none", "checkpoint=required, but world_model_frame has none"),
    ],
)
def test_input_that_only_a_cell_or_its_files_can_refuse(realtime, tmp_path, override, isolation, message):
    """Exit code 2 and the reason on the terminal; checkpoints of all stages are looked for before any cell."""
    np.savez(tmp_path / "narrow.npz", mouse=np.zeros((5, 3)), btn=np.zeros((5, 11)))
    outcome = realtime(*FEW, override, f"isolation={isolation}")
    assert outcome.code == 2, outcome.out + outcome.err
    assert message in " ".join((outcome.err + outcome.out).split()), "also where the console wraps the line"
    # With isolation=none the log of the cell is on the terminal too.
    assert "Traceback" not in outcome.err or isolation == "none"
    assert (outcome.folder / "results.jsonl").exists() == ("checkpoint" not in override)
