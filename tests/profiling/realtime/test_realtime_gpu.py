"""The loop on a GPU: every schedule, delivery and pace; variants that follow eager over many frames."""

import numpy as np
import pytest

from profiling.results.frames import read_series
from profiling.results.jsonl import read_records

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

TINY = ("device=cuda", "scale=tiny", "loop.frames=80", "loop.warmup_frames=20")


def test_variants_follow_eager_over_300_frames(profile):
    outcome = profile(
        "component=[world_model_frame]",
        "variant=[baseline,compile,cuda_graph,compile+cuda_graph]",
        "metric=[parity,latency,drift]",
        "metric.drift.tolerance=1e-3",
        "device=cuda",
        "scale=tiny",
        "dtype=float32",
        "component.world_model_frame.module.steps=2",
    )
    assert outcome.code == 0, outcome.out
    records = read_records(outcome.folder).records
    assert len(records) == 4
    assert all(len(record.metrics.drift.rel_l2) == 300 for record in records)


@pytest.mark.parametrize("schedule", ["sequential", "overlap"])
@pytest.mark.parametrize("deliver", ["host", "device"])
def test_schedules(realtime, schedule, deliver):
    outcome = realtime("variant=[baseline,cuda_graph]", f"loop.schedule={schedule}", f"loop.deliver={deliver}", *TINY)
    assert outcome.code == 0, outcome.out
    for record in read_records(outcome.folder).records:
        assert record.status == "ok", record.reason
        series = read_series(outcome.folder / "cells" / f"realtime.{record.variant}.frames.npz")
        stages = ("world", "picture", "sound", *("deliver",) * (deliver == "host"))
        assert record.realtime.stages == stages
        for stage in stages:
            assert (series[f"device_{stage}_ms"] > 0).all()
        assert (series["frame_ms"] > 0).all()
        assert np.ptp(series["allocated"][10:]) == 0, "memory is flat to the byte"
        assert not series["compiles"].any()
        assert not series["graphs_recorded"].any()


def test_compiled_stages_do_not_disturb_each_other(realtime):
    outcome = realtime("variant=[compile,compile+cuda_graph]", *TINY)
    assert outcome.code == 0, outcome.out
    assert all(record.status == "ok" for record in read_records(outcome.folder).records)


def test_a_paced_loop_begins_frames_when_they_are_due(realtime):
    outcome = realtime("variant=[cuda_graph]", "loop.pace=realtime", "loop.fps=100", *TINY)
    (record,) = read_records(outcome.folder).records
    series = read_series(outcome.folder / "cells" / "realtime.cuda_graph.frames.npz")
    assert (series["action_ms"] >= series["due_ms"] - 1e-3).all()
    assert series["delivered_ms"][0] < series["due_ms"][0] + 10, "the first frame is not late"
    assert record.realtime.wall_fps == pytest.approx(100, rel=0.05)


def test_mixed_variants_and_a_trace(realtime):
    mix = "mix={world:cuda_graph,picture:compile+cuda_graph,sound:baseline}"
    outcome = realtime("variant=[baseline,cuda_graph,compile+cuda_graph]", mix, "trace=true", *TINY)
    (record,) = read_records(outcome.folder).records
    assert record.variant == "mixed"
    assert record.status == "ok", record.reason
    assert (outcome.folder / record.trace.trace).exists()
    analysis = record.trace_analysis
    assert analysis.calls == 20, "means of a frame, not of twenty"
    idle_ms = analysis.idle.host_ms + analysis.idle.between_ms
    assert analysis.busy_ms + idle_ms == pytest.approx(analysis.span_ms, rel=0.01)
    assert analysis.busy_ms < 1.2 * record.realtime.frame_ms.max, "the device does no more than a frame's work"


def test_stages_of_a_loop_have_findings_of_their_own(realtime):
    outcome = realtime("variant=[cuda_graph,compile+cuda_graph]", "ceilings=auto", *TINY)
    for record in read_records(outcome.folder).records:
        assert record.status == "ok", record.reason
        assert not [note for note in record.notes if "trace" in note]
        parts = record.roofline.parts
        assert set(parts) == {"world", "picture", "sound"}
        assert any(part.findings for part in parts.values())
        for part in parts.values():
            saved = sum(finding.saves_ms for finding in part.findings)
            assert saved <= sum(finding.ms for finding in part.findings)
