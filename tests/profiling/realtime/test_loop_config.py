"""A wrong configuration of the loop: one line that says what to type next."""

import numpy as np
import pytest
from networks import TINY, composed, tiny_specs

from profiling.errors import InputError
from profiling.realtime.__main__ import mixed, read_config, run
from profiling.realtime.options import LoopOptions
from profiling.realtime.prepare import build_stages, reference_outputs

FEW = ("variant=[baseline]", "loop.frames=4", "loop.warmup_frames=1")

BEFORE_ANY_CELL = {
    "stage": (["stages.picture=nothing"], "stages.picture=nothing is none of"),
    "two stages": (["stages.picture=[picture_stage]"], "stages.picture=['picture_stage'] is none of"),
    "near stage": (["stages.picture=picture_stag"], "Did you mean 'picture_stage'"),
    "no stage": (["stages=null"], "stages.world=None"),
    "no stages": (["stages=fast"], "stages.picture=picture_stage"),
    "no options": (["loop=fast"], "must be a mapping"),
    "half a mix": (["mix={world:baseline,picture:baseline}"], "sound:baseline}"),
    "a mix of all": (["mix=baseline"], "mix={world:baseline"),
    "a mix of nothing": (["mix={world:baseline,picture:baseline,sound:[baseline]}"], "mix.sound"),
    "another variant": (["mix={world:baseline,picture:compil,sound:baseline}"], "none of variant=[baseline"),
    "a mix of one graph": (
        ["loop.schedule=one_graph", "mix={world:baseline,picture:baseline,sound:baseline}"],
        "mix={whole:baseline}",
    ),
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
    "schedule": ("x", "sequential, overlap, one_graph"),
    "pace": ("realtme", "Did you mean 'realtime'"),
    "deliver": (None, "host, device"),
    "sound": ("short", "exact, auto, windowed"),
    "gc": (True, "frozen, on, off"),
    "frames": (0, "whole number"),
    "warmup_frames": (2.5, "whole number"),
    "sound_latents": (None, "whole number"),
    "profile_frames": (True, "whole number"),
    "fps": (float("nan"), "above 0"),
    "sound_snr_db": ("loud", "above 0"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_wrong_option(name):
    value, message = OPTIONS[name]
    with pytest.raises(InputError, match=rf"^loop\.{name}=.*{message}"):
        LoopOptions(**{name: value})


STAGES = {
    "picture=world_model_frame": "stages.picture=world_model_frame: it takes x, audio, mouse, btn",
    "world=sound_stage": "stages.world=sound_stage: the loop writes `mouse` and `btn`",
    "sound=picture_stage": r"stages.sound=picture_stage: it takes .*, but the world model returns \[1, 8\]",
    "world=world_model": r"stages.picture=picture_stage: it takes .*, but the world model returns \[1, 1, 16, 4, 4\]",
}


@pytest.mark.parametrize("case", STAGES)
def test_a_component_that_does_not_fit_its_role(case):
    specs = tiny_specs(f"stages.{case}", "component=[world_model_frame,picture_stage,sound_stage,world_model]")
    with pytest.raises(InputError, match=STAGES[case]) as caught:
        reference_outputs(build_stages(specs, TINY), TINY, whole=False)
    assert "\n" not in str(caught.value)


def test_without_mix():
    assert mixed(read_config(composed())) is None


def test_input_that_only_a_cell_can_refuse(realtime, tmp_path):
    """Exit code 2 and the reason on the terminal, from a cell in a process of its own or in this one."""
    np.savez(tmp_path / "narrow.npz", mouse=np.zeros((5, 3)), btn=np.zeros((5, 11)))
    latency = "metric.latency times single steps, and the loop has its own clocks. Use metric=[parity]"
    cases = (
        ([f"loop.actions={tmp_path / 'narrow.npz'}"], "mouse has the shape [5, 3]. It must be finite numbers [n, 2]"),
        (["metric=[latency]", "isolation=none"], latency),
    )
    for overrides, message in cases:
        outcome = realtime(*FEW, *overrides)
        assert outcome.code == 2, outcome.out + outcome.err
        assert message in " ".join((outcome.err + outcome.out).split()), "also where the console wraps the line"
        # With isolation=none the log of the cell is on the terminal too.
        assert "Traceback" not in outcome.err or "isolation=none" in overrides
