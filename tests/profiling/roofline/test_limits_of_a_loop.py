"""The floor of a frame: of parts counted by hand, and of the loop as a user plays it on a CPU."""

import pytest
import torch
from planted_networks import Copy, Product, component

from profiling.machine.ceilings import Ceilings
from profiling.realtime.cell import frame_roofline
from profiling.variants.variant import Step

#: 1 MB a ms and 1 MFLOP a ms, whatever the size.
CEILINGS = Ceilings("float32", 1e9, 1e9, ((1000, 1e9),), 1e9, 1.0, None, None, 0.0)
FEW = ("variant=[baseline]", "isolation=none", "loop.frames=4", "loop.warmup_frames=1")
KINDS = {"weights", "inputs", "outputs", "state_read", "state_written", "total"}


@torch.inference_mode()
def limits(frame_ms, part_ms=(), *, overlapping, fused=()):
    parts = {
        "world": component(Copy(), x=torch.ones(1_000_000)),
        "picture": component(Product(100, torch.float32), x=torch.ones(5000, 100)),
    }
    steps = {name: Step(part.call) for name, part in parts.items()}
    return frame_roofline(parts, steps, CEILINGS, frame_ms, dict(part_ms), fused=fused, overlapping=overlapping)


def test_one_part_after_the_other():
    found = limits(220.0, overlapping=False)
    world, picture = found["parts"].values()
    copied, multiplied = 2 * 4_000_000, 4 * (2 * 5000 * 100 + 100 * 100)
    assert (world["bytes"]["total"], world["flops"]["total"]) == (copied, 0)
    assert (picture["bytes"]["total"], picture["flops"]) == (multiplied, {"matmul": 10**8, "total": 10**8})
    assert (world["floor_ms"], picture["floor_ms"]) == pytest.approx((copied / 1e6, 100.0))
    assert found["bytes"]["total"] == copied + multiplied == sum(found["bytes"].values()) / 2
    assert found["flops"] == {"matmul": 10**8, "total": 10**8}
    assert (found["memory_ms"], found["compute_ms"]) == pytest.approx(((copied + multiplied) / 1e6, 100.0))
    assert found["floor_ms"] == pytest.approx(108.0)
    assert found["achieved_over_floor"] == pytest.approx(220 / 108)


def test_each_part_is_judged_by_its_own_time():
    found = limits(220.0, {"world": 10.0, "picture": 1000.0}, overlapping=False, fused={"picture"})["parts"]
    assert (found["world"]["bound"], found["picture"]["bound"]) == ("memory-bound", "host-bound")
    assert found["world"]["achieved_over_floor"] == pytest.approx(1.25)
    assert any("each operator" in said for said in found["world"]["evidence"])
    assert not any("each operator" in said for said in found["picture"]["evidence"]), "fused"
    alone = limits(220.0, {"world": 10.0}, overlapping=True)["parts"]["world"]
    assert "bound" not in alone, "its time is shared"


def test_parts_that_overlap_share_the_device():
    """One copies while the other multiplies: the frame takes at least as long as the longer of the two."""
    assert limits(None, overlapping=True)["floor_ms"] == pytest.approx(100.0)
    assert "achieved_over_floor" not in limits(None, overlapping=True)


@pytest.mark.parametrize(
    ("schedule", "parts"), [("sequential", ["world", "picture", "sound"]), ("one_graph", ["whole"])]
)
def test_a_loop_has_a_floor(realtime, monkeypatch, tmp_path, schedule, parts):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    outcome = realtime(*FEW, "ceilings=auto", f"loop.schedule={schedule}")
    assert outcome.code == 0, outcome.out + outcome.err
    (record,) = outcome.records.values()
    found, median = record.limits, record.realtime["frame_ms"]["p50"]
    assert not record.notes
    assert list(found["parts"]) == parts
    assert set(found["bytes"]) == KINDS
    for term in ("memory_ms", "compute_ms", "floor_ms"):
        assert found[term] == pytest.approx(sum(part[term] for part in found["parts"].values()))
    assert 0 < found["floor_ms"] < median
    assert found["achieved_over_floor"] == pytest.approx(median / found["floor_ms"])
    for name, part in found["parts"].items():
        taken = record.realtime["budget"]["parts"][name]["host_ms"]
        assert part["achieved_over_floor"] == pytest.approx(taken / part["floor_ms"])
        assert part["bound"] in ("host-bound", "memory-bound", "compute-bound")
    assert found["bytes"]["state_written"] > 0, "the cache of the world model, the window of the sound"
    assert found["bytes"]["weights"] <= 4 * record.parameters * 1.2
    report = (outcome.folder / "report.md").read_text()
    assert "### Roofline" in report


def test_without_ceilings_or_where_counting_fails_the_frames_stand(realtime, monkeypatch, tmp_path):
    (record,) = realtime(*FEW).records.values()
    assert (record.status, record.limits) == ("ok", None), "ceilings=off"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    failing = (  # the 9th call is the first one after the 5 frames
        "component=[world_model_frame,failing_picture,sound_stage]",
        "stages.picture=failing_picture",
        "component.failing_picture.module.call=9",
        "metric=[]",
    )
    outcome = realtime(*FEW, "ceilings=auto", *failing)
    (record,) = outcome.records.values()
    assert (record.status, record.realtime["frames"]) == ("ok", 4), record.reason
    assert record.limits is None
    assert record.notes == ("its limits could not be told: RuntimeError: planted in call 9",)
