"""The loop as a user runs it, tiny on a CPU: schedules, paces, mixed variants, and frames before a failure."""

import numpy as np

from profiling.results.frames import DISTURBANCES, read_series
from profiling.results.jsonl import read_records

BASELINE = "variant=[baseline]"
HERE = "isolation=none"  # faster, where no process dies
FEW = ("loop.frames=8", "loop.warmup_frames=2")
STAGES = ("world", "picture", "sound")


def series_of(outcome, variant="baseline"):
    return read_series(outcome.folder / "cells" / f"realtime.{variant}.frames.npz")


def only(outcome, status="ok"):
    assert outcome.code == (status == "failed"), outcome.out + outcome.err
    (record,) = read_records(outcome.folder).records
    assert record.status == status, record.reason
    return record


def test_stages_in_sequence(realtime):
    """The default schedule; a variant that needs a GPU is skipped; a run that is done is not done again."""
    arguments = ("variant=[baseline,cuda_graph]", *FEW)
    outcome = realtime(*arguments)
    assert outcome.code == 0, outcome.out + outcome.err
    record, skipped = read_records(outcome.folder).records
    assert (record.status, skipped.status) == ("ok", "skipped")
    assert "CUDA" in skipped.reason
    section, series = record.realtime, series_of(outcome)
    assert section.stages == (*STAGES, "deliver")
    assert (section.frames, section.warmup_frames) == (8, 2)
    assert (section.schedule, section.pace, section.deliver) == ("sequential", "free", "host")
    assert section.frame_ms.n == 8
    assert {len(values) for values in series.values()} == {8}
    taken = sum(series[f"host_{stage}_ms"] for stage in section.stages) + series["wait_ms"] + series["rest_ms"]
    np.testing.assert_allclose(taken, series["frame_ms"], atol=1e-9)
    assert (np.diff(series["delivered_ms"]) >= series["frame_ms"][1:] - 1e-6).all()
    known = {name for name in DISTURBANCES if np.isfinite(series[name]).all()}
    assert {"compiles", "captures", "graphs_recorded", "collections", "collection_ms", "switches"} <= known
    assert np.isnan(series["device_world_ms"]).all(), "no device, no device time"
    assert set(record.parity.stages) == {*STAGES, "pipeline"}
    assert record.parity.passed
    assert not list((outcome.folder / "cells").glob("*.part"))
    assert "Stage budget" in outcome.out
    before = (outcome.folder / "results.jsonl").read_bytes()
    again = realtime(*arguments, f"resume={outcome.folder}", folder=outcome.folder)
    assert again.code == 0, again.err
    assert (outcome.folder / "results.jsonl").read_bytes() == before


def test_paced_from_a_recording_with_a_short_window_of_sound_by_a_variant_that_drifts(realtime, tmp_path):
    np.savez(tmp_path / "played.npz", mouse=np.ones((5, 2)), btn=np.eye(5, 11))
    outcome = realtime(
        HERE,
        *("variant=[baseline,own_eight_bits]", "mix={world:own_eight_bits,picture:baseline,sound:baseline}"),
        *("loop.pace=realtime", "loop.fps=20", f"pipeline.sources.action.file={tmp_path / 'played.npz'}"),
        *("metric=[parity,drift]", "metric.drift.calls=6", "sound.latents=10", "steps=2", *FEW),
        "trace=true",
    )
    record, series = only(outcome), series_of(outcome, "mixed")
    section = record.realtime
    assert (outcome.folder / record.trace.trace).exists()
    assert (section.pace, section.target_fps) == ("realtime", 20.0)
    assert (np.diff(series["due_ms"]) >= 50 - 1e-6).all()
    assert (series["action_ms"] >= series["due_ms"]).all()
    assert section.deadlines["20"].budget_ms == 50
    assert (section.work["steps"], section.work["sound_latents"]) == (2, 10)
    assert section.first_frame_ms > 0
    assert section.input_age_ms["action"].p50 == section.latency_ms.p50
    allowed = {name: check.tolerance for name, check in record.parity.stages.items()}
    assert allowed == {"world": 0.2, "picture": 1e-4, "sound": 1e-4, "pipeline": 0.2}
    assert record.parity.stages["pipeline"].rel_l2 > 1e-4, "the stages that are exact pass the error on"
    drift = record.metrics.drift
    assert drift is not None, record.reason
    assert len(drift.rel_l2) == 6
    assert 0 < drift.rel_l2[-1] < 0.5
    assert [(step.stage, step.name) for step in record.recipe] == [("world", "ReplaceLinears")]
    assert record.recipe[0].choices.replaced > 0


def test_overlapping_left_on_the_device_each_stage_by_a_variant_of_its_own(realtime):
    variants, mix = "baseline,own_unchanged,faulty_stale", "world:baseline,picture:own_unchanged,sound:faulty_stale"
    placed = ("loop.schedule=overlap", "loop.deliver=device")
    outcome = realtime(f"variant=[{variants}]", f"mix={{{mix}}}", *placed, HERE, *FEW)
    record = only(outcome, "failed")
    assert record.variant == "mixed"
    assert record.reason.startswith("sound: "), "the one stage that has the variant that is wrong"
    passed = {stage: check.passed for stage, check in record.parity.stages.items()}
    assert passed == {"world": True, "picture": True, "sound": False, "pipeline": False}
    assert not record.parity.passed
    assert [(step.stage, step.name) for step in record.recipe] == [("picture", "unchanged")]
    assert record.realtime.stages == STAGES, "nothing is copied"
    assert record.realtime.schedule == "overlap"
    assert record.realtime.frames == len(series_of(outcome, "mixed")["frame_ms"]) == 8


def test_a_stage_that_is_wrong_from_a_timed_frame_on_is_not_called_right(realtime):
    """Its first 110 calls in a process are right: those before the timed frames, and the first of these."""
    outcome = realtime("pipeline=stale", BASELINE, "loop.frames=150", "component.stale.module.factor=0.0")
    record = only(outcome, "failed")
    assert record.realtime.frames == 150
    assert record.reason.startswith("correct before the timed frames, wrong after them: only: parity: ")
    assert not record.parity.passed


def test_a_transform_may_change_some_stages_only(realtime):
    """The picture has 2D convolutions, the sound has none; a mix asks for the transform in the sound alone."""
    asked = ("variant=[channels_last]", "metric=[parity]", HERE, *FEW)
    mix = "mix={world:baseline,picture:baseline,sound:channels_last}"
    (record,) = read_records(realtime(*asked).folder).records
    changed = {step.stage: step.changed for step in record.recipe}
    assert (record.status, changed["sound"], changed["picture"] > 0) == ("ok", 0, True), record.reason
    (mixed,) = read_records(realtime(*asked, mix).folder).records
    assert mixed.status == "skipped"
    assert mixed.reason.startswith("the stage sound: transform channels_last changes nothing: ")


FAILING = (
    *(BASELINE, "component=[world_model_frame,failing_picture,sound_stage]", "metric=[]", "loop.gc=off"),
    *("pipeline.stages.picture.component=failing_picture", "loop.frames=100", "loop.warmup_frames=5"),
)


def test_frames_before_a_failure_are_kept(realtime):
    """Two failures in the same call of the same network: an error, and the death of the process; without metrics."""
    frames, raised = {}, "RuntimeError: planted in call 60"
    for how, where, reason in (("raise", HERE, raised), ("kill", "isolation=process", "SIGKILL")):
        outcome = realtime(*FAILING, where, f"component.failing_picture.module.how={how}")
        record = only(outcome, "failed")
        assert reason in record.reason
        series = series_of(outcome)
        frames[how] = len(series["frame_ms"])
        assert record.realtime.frames == record.realtime.frame_ms.n == frames[how]
        assert (record.realtime.warmup_frames, record.realtime.work["commit"]) == (5, "fused")
        assert record.parity is None
        assert record.realtime.gc == "off"
        assert not series["collections"].any()
        assert np.isfinite(series["frame_ms"]).all()
        assert np.isfinite(series["host_rss"]).all()
        assert f"{frames[how]} frames" in outcome.out, "the report counts the frames before the failure"
        assert not list((outcome.folder / "cells").glob("*.part"))
    assert frames["raise"] == frames["kill"]
    assert 0 < frames["kill"] < 60 - 5, "not all of the 60 calls were timed frames"
