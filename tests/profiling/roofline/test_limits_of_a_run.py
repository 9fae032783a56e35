"""Floors and bounds in the main job, as a user runs it on a CPU."""

import json

import torch
from planted_networks import Chain, component

from profiling.machine.ceilings import Ceilings
from profiling.roofline.section import limits_of

NETWORKS = "component=[world_model_step,audio_decoder,net]"
NET = ("component=[net]", "variant=[baseline]", "isolation=none")


def test_every_cell_has_a_floor_that_nothing_is_below(profile, tmp_path):
    cache = tmp_path / "cache"
    outcome = profile(NETWORKS, *NET[1:], "ceilings=auto", XDG_CACHE_HOME=str(cache))
    assert outcome.code == 0, outcome.err
    assert len(outcome.records) == 3
    for record in outcome.records.values():
        limits = record.limits
        assert limits is not None, record.notes
        assert not record.notes
        assert limits["floor_ms"] == max(limits["memory_ms"], limits["compute_ms"]) > 0
        assert limits["floor_ms"] <= 1.1 * record.metrics["wall_ms"]["p50"]
        assert limits["achieved_over_floor"] == record.metrics["wall_ms"]["p50"] / limits["floor_ms"]
        assert limits["bytes"]["weights"] <= 4 * record.parameters * 1.2, "parameters, and a few constants"
        assert limits["bound"] in ("host-bound", "memory-bound", "compute-bound")
        assert f"{record.component}: " in outcome.out
    assert outcome.records["world_model_step", "baseline"].limits["bytes"]["state_written"] > 0
    environment = json.loads((outcome.folder / "environment.json").read_text())
    assert environment["ceilings"]["dtype"] == "float32"
    report = (outcome.folder / "report.md").read_text()
    assert "Measured ceilings: copy" in report
    assert "### Roofline" in report

    disturbed = environment["ceilings"].get("disturbed", False)  # by tests that run beside this one
    assert ("The ceilings are too low" in outcome.out) == disturbed
    kept = list(cache.rglob("*.json"))
    assert len(kept) == (0 if disturbed else 1)
    again = profile(*NET, "ceilings=auto", folder=tmp_path / "again", XDG_CACHE_HOME=str(cache))
    ceilings = json.loads((again.folder / "environment.json").read_text())["ceilings"]
    assert disturbed or ceilings == environment["ceilings"]
    for path in cache.rglob("*.json"):
        path.unlink()
    resumed = profile(*NET, "ceilings=auto", f"resume={again.folder}", folder=again.folder, XDG_CACHE_HOME=str(cache))
    assert resumed.code == 0, "ceilings of another hour are no other machine"


@torch.inference_mode()
def test_of_a_compiled_call_the_eager_operators_are_no_evidence():
    ceilings = Ceilings("float32", 1e9, 1e9, ((1000, 1e9),), 1e9, 1.0, None, None, 0.0)
    planted = component(Chain(), x=torch.ones(64))
    eager, fused = (limits_of(planted, planted.call, ceilings, 10.0, fused=fused) for fused in (False, True))
    assert any("500 operators, dispatch 5%" in line for line in eager["evidence"])
    assert not any("operator" in line or "dispatch" in line for line in fused["evidence"])
    assert eager["bound"] == fused["bound"] == "host-bound"
    assert eager["advice"] != fused["advice"]


def test_off_measures_nothing(profile, tmp_path):
    outcome = profile(*NET, "ceilings=off", XDG_CACHE_HOME=str(tmp_path / "cache"))
    (record,) = outcome.records.values()
    assert record.limits is None
    assert "ceilings" not in json.loads((outcome.folder / "environment.json").read_text())
    assert not (tmp_path / "cache").exists()


def test_a_misspelt_choice_is_told(profile):
    outcome = profile(*NET, "ceilings=always")
    assert outcome.code == 2
    assert "ceilings=always is none of auto, off." in outcome.err
