"""The roofline section of a call and of a frame: parts counted by hand, and runs on a CPU as a user starts them."""

import json
import re

import pytest
import torch
from fixed_component import fixed_component as component
from hand_made_ceilings import ceilings_of
from planted_networks import Chain, Copy, Product

from profiling.results.explanations import KernelFinding, ModuleTime, TraceAnalysis
from profiling.results.jsonl import read_records
from profiling.results.record import decode_section, encode_sections
from profiling.roofline.section import call_roofline, frame_roofline, longest_modules
from profiling.variants.variant import Step

#: 1 MB a ms and 1 MFLOP a ms.
CEILINGS = ceilings_of(1e9)
BOUNDS = ("host", "memory bandwidth", "compute")
KINDS = {"weights", "inputs", "outputs", "state_read", "state_written", "total"}


@torch.inference_mode()
def test_of_a_compiled_call_the_eager_operators_are_no_evidence():
    planted = component(Chain(), x=torch.ones(64))
    for _ in range(3):  # another process may take the CPU while an operator runs, which then seems to take the time
        eager, fused = (call_roofline(planted, planted.call, CEILINGS, 10.0, fused=fused) for fused in (False, True))
        if eager.bound == fused.bound == "host":
            break
    assert any("tensors that operators hand to each other" in line for line in eager.evidence)
    assert not any("tensors that operators hand to each other" in line for line in fused.evidence)
    assert any(line.startswith("Python and operators that take little more") for line in fused.evidence), "the bound"
    assert eager.bound == fused.bound == "host"
    assert [each.words for each in eager.steps] != [each.words for each in fused.steps]


@torch.inference_mode()
def frame(frame_ms, stage_ms=(), *, overlapping=False, fused=(), traced=None, **calls):
    parts = {
        "world": component(Copy(), x=torch.ones(1_000_000)),
        "picture": component(Product(100, torch.float32), x=torch.ones(5000, 100)),
    }
    steps = {name: Step(part.call) for name, part in parts.items()}
    how = {
        "fused": fused,
        "overlapping": overlapping,
        "calls": calls,
        "analyse": lambda stage: (None, (traced or {}).get(stage)),
    }
    return frame_roofline(parts, steps, CEILINGS, frame_ms, dict(stage_ms), **how)


def test_of_the_modules_of_a_short_trace_those_are_kept_that_take_time():
    def module(path, ms, self_ms):
        return ModuleTime(path=path, ms=ms, share=ms / 10, self_ms=self_ms)

    modules = [module("", 10.0, 1.0), module("a", 6.0, 1.0), module("a.b", 0.05, 0.05), module("a.b.c", 4.95, 4.95)]
    kept = longest_modules([*modules, module("d", 3.0, 3.0)])
    expected = [("", 1.0), ("a", 1.05), ("a.b.c", 4.95), ("d", 3.0)]
    assert [(each.path, round(each.self_ms, 6)) for each in kept] == expected


def test_stages_in_turn():
    found = frame(220.0, overlapping=False)
    world, picture = found.parts.values()
    copied, multiplied = 2 * 4_000_000, 4 * (2 * 5000 * 100 + 100 * 100)
    assert (world.bytes["total"], world.flops["total"]) == (copied, 0)
    assert (picture.bytes["total"], picture.flops) == (multiplied, {"matmul": 10**8, "total": 10**8})
    assert (world.roofline_ms, picture.roofline_ms) == pytest.approx((copied / 1e6, 100.0))
    assert found.bytes["total"] == copied + multiplied == sum(found.bytes.values()) / 2
    assert found.flops == {"matmul": 10**8, "total": 10**8}
    assert (found.memory_ms, found.compute_ms) == pytest.approx(((copied + multiplied) / 1e6, 100.0))
    assert found.roofline_ms == pytest.approx(108.0)
    assert found.over_roofline == pytest.approx(220 / 108)
    overlapping = frame(None, overlapping=True)
    assert overlapping.roofline_ms == pytest.approx(100.0), "one copies while the other multiplies"
    assert overlapping.over_roofline is None
    # Four calls of the one in 40 ms, and the other in every second frame.
    found = frame(440.0, {"world": 40.0, "picture": 1000.0}, world=(4, 1.0), picture=(1, 1 / 2))
    assert found.bytes["total"] == 4 * copied + multiplied / 2
    assert found.flops["matmul"] == 10**8 / 2
    assert found.roofline_ms == pytest.approx(4 * 8.0 + 100 / 2)
    assert found.parts["world"].over_roofline == pytest.approx(1.25)


def test_each_stage_is_judged_by_its_own_time():
    found = frame(220.0, {"world": 10.0, "picture": 200.0}, overlapping=False, fused={"picture"}).parts
    assert (found["world"].bound, found["picture"].bound) == ("memory bandwidth", "compute")
    assert found["world"].over_roofline == pytest.approx(1.25)
    assert any("operators hand to each other" in line for line in found["world"].evidence)
    assert not any("operators hand to each other" in line for line in found["picture"].evidence), "fused"
    lines = " ".join((*found["world"].evidence, *found["picture"].evidence))
    assert "above the measured" in lines, "these planted ceilings are far below this machine's"
    alone = frame(220.0, {"world": 10.0}, overlapping=True).parts["world"]
    assert alone.bound is None, "it shares the device"


def test_a_stage_that_was_traced_has_findings_which_its_verdict_follows():
    moments = KernelFinding(kind="reduction", what="group norm reductions", ms=150.0, saves_ms=120.0, blocks=2.0)
    traced = TraceAnalysis(calls=1, findings=(moments,), modules=(ModuleTime(path="", ms=1.0, share=1.0, self_ms=1.0),))
    for overlapping in (False, True):
        stage_ms = {"world": 10.0, "picture": 200.0}
        section = frame(220.0, stage_ms, overlapping=overlapping, traced={"picture": traced})
        content = encode_sections(roofline=section)
        assert decode_section("roofline", content["roofline"]).parts.keys() == {"world", "picture"}
        found = section.parts
        assert found["picture"].findings == (moments,)
        assert found["world"].findings == ()
        assert any("group norm" in line for line in found["picture"].evidence) is not overlapping


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder in which the first run keeps the ceilings for the others, unless other processes disturbed them."""
    return tmp_path_factory.mktemp("cache")


RUN = ("component=[world_model_step,audio_decoder,net]", "variant=[baseline]", "isolation=none", "ceilings=auto")


def test_no_cell_of_a_run_is_faster_than_its_roofline(profile, cache):
    outcome = profile(*RUN, XDG_CACHE_HOME=str(cache))
    assert outcome.code == 0, outcome.err
    records = read_records(outcome.folder).records
    assert len(records) == 3
    for record in records:
        found, wall_ms = record.roofline, record.metrics.wall_ms.p50
        assert found is not None, record.notes
        assert not record.notes
        assert found.roofline_ms == max(found.memory_ms, found.compute_ms) > 0
        assert found.roofline_ms <= 1.1 * wall_ms
        assert found.over_roofline == wall_ms / found.roofline_ms
        assert found.bytes["weights"] <= 4 * record.parameters * 1.2, "parameters, and a few constants"
        assert found.bound in BOUNDS or re.search(r"\d%$", found.bound)
        assert found.evidence
        assert found.kernels, "the longest operators"
    assert next(each for each in records if each.component == "world_model_step").roofline.bytes["state_written"] > 0
    environment = json.loads((outcome.folder / "environment.json").read_text())
    assert environment["ceilings"]["dtype"] == "float32"
    report = (outcome.folder / "report.md").read_text()
    assert "Measured ceilings: copy" in report
    assert "### Roofline" in report


FEW = ("variant=[baseline]", "isolation=none", "loop.frames=4", "loop.warmup_frames=1")


def test_a_loop_has_a_roofline(realtime, monkeypatch, cache):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    outcome = realtime(*FEW, "ceilings=auto")
    assert outcome.code == 0, outcome.out + outcome.err
    (record,) = read_records(outcome.folder).records
    found, median = record.roofline, record.realtime.frame_ms.p50
    assert not record.notes
    assert list(found.parts) == ["world", "picture", "sound"]
    assert set(found.bytes) == KINDS
    for term in ("memory_ms", "compute_ms", "roofline_ms"):
        assert getattr(found, term) == pytest.approx(sum(getattr(part, term) for part in found.parts.values()))
    assert 0 < found.roofline_ms < median
    assert found.over_roofline == pytest.approx(median / found.roofline_ms)
    for name, part in found.parts.items():
        host_ms = record.realtime.budget.parts[name].host_ms
        assert part.over_roofline == pytest.approx(host_ms / part.roofline_ms)
        assert part.bound in BOUNDS or re.search(r"\d%$", part.bound)
    assert found.bytes["state_written"] > 0, "the cache of the world model, the window of the sound"
    assert found.bytes["weights"] <= 4 * record.parameters * 1.2
    assert "### Roofline" in (outcome.folder / "report.md").read_text()


def test_where_counting_fails_the_frames_are_kept(realtime, monkeypatch, cache):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    failing = (  # the 38th call is the first one after the frames: 25 of eager, 2 to prepare, 5 + 5 frames
        "component=[world_model_frame,failing_picture,sound_stage]",
        "pipeline.stages.picture.component=failing_picture",
        "component.failing_picture.module.call=38",
        "metric=[]",
    )
    outcome = realtime(*FEW, "ceilings=auto", *failing)
    (record,) = read_records(outcome.folder).records
    assert (record.status, record.realtime.frames) == ("ok", 4), record.reason
    assert record.roofline is None
    assert record.notes == ("the roofline failed: RuntimeError: planted in call 38",)
