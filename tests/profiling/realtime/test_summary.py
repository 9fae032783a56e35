"""The section `realtime`: statistics by hand, and planted faults, of which each is named and nothing else is."""

import numpy as np
import pytest
from planted_series import GAP_MS, loop, noise, series_of

from profiling.realtime.graph import parse_graph
from profiling.realtime.summary import loop_energy, memory_section, summarize_frames
from profiling.results.loop import BudgetPart
from profiling.results.record import Record, encode_sections
from profiling.results.verdicts import holds_rate

FRAMES = 600
MIB = 2**20


def summary(series, events=(), media_rate=None, **options):
    return summarize_frames(series, loop(**options), events=events, media_rate=media_rate)


def faults(section):
    named = {
        "causes": section.slow.causes,
        "growing": section.slope.growing,
        "leaks": [kind for kind, memory in section.memory.items() if memory.leak],
        "unsettled": not section.steady.settled,
        "ramp": section.steady.from_frame,
        "late": section.late,
    }
    return {name: value for name, value in named.items() if value}


def at(*frames, value=1.0):
    planted = np.zeros(FRAMES)
    planted[list(frames)] = value
    return planted


def test_percentiles_are_numpys_and_rates_are_those_of_the_deliveries():
    frame_ms = noise(333)
    section = summary(series_of(frame_ms))
    for name, share in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert getattr(section.frame_ms, name) == np.percentile(frame_ms, share)
    assert section.frame_ms.n == 333
    assert section.frame_ms.samples == (), "they are in the file of series"
    assert section.steady.p50 == np.median(frame_ms), "no ramp"
    ours, theirs = (
        summary(series_of(np.full(101, 9.75)), media_rate=50.0, pace=pace) for pace in ("free", "application")
    )
    assert ours.wall_fps == pytest.approx(1000 / 9.75), "the 0.25 ms between two frames are the harness's"
    assert theirs.wall_fps == pytest.approx(100.0), "they are the application's"
    assert theirs.audio_rtf == pytest.approx(2.0)
    assert summary(series_of(np.full(101, 9.75))).audio_rtf is None


def test_the_budget_of_stages_in_sequence_or_overlapping_or_without_a_device_clock():
    series = series_of(np.full(50, 10.0))
    parts = summary(series, fps=50.0).budget.parts
    world, wait = parts["world"], parts["wait"]
    assert (world.host_ms, world.device_ms, world.share) == pytest.approx((0.1, 6.0, 0.3))
    assert (wait.host_ms, wait.share) == (pytest.approx(9.0), None), "while the host waits, the device works"
    assert parts["unaccounted"].host_ms == pytest.approx(0.5), "10 ms less 6, 2, 1 and 0.5 ms"
    parts = summary(series, schedule="overlap").budget.parts
    assert parts["unaccounted"].host_ms == pytest.approx(3.5), "10 ms less the longest, 6, and the delivery, 0.5"
    assert parts["world"].mean_ms is None
    for stage, ms in (("world", 5.0), ("picture", 2.0), ("sound", 1.5), ("deliver", 0.5)):
        series |= {f"device_{stage}_ms": np.full(50, np.nan), f"host_{stage}_ms": np.full(50, ms)}
    parts = summary(series, fps=50.0).budget.parts
    assert parts["world"] == BudgetPart(host_ms=5.0, share=0.25, mean_ms=5.0)
    assert parts["unaccounted"].host_ms == pytest.approx(1.0)


def test_the_parts_of_a_frame_add_up_to_its_time():
    series = series_of(noise(400))
    series["device_sound_ms"][np.arange(400) % 4 != 0] = np.nan  # a stage that runs in every fourth frame
    section = summary(series)
    parts = section.budget.parts
    total = sum(part.mean_ms for part in parts.values() if part.mean_ms is not None)
    assert total == pytest.approx(section.frame_ms.mean, rel=1e-9)
    assert parts["sound"].mean_ms == pytest.approx(0.1 * 5 / 4, rel=0.01)
    assert parts["sound"].device_ms == pytest.approx(0.1 * 5, rel=0.01), "the median of the frames in which it ran"
    assert parts["unaccounted"].mean_ms == pytest.approx((0.05 + 0.1 * 3 / 4) * 5, rel=0.01)


def test_what_was_not_sampled_is_absent():
    names = ("reserved", "device_used", "wait_ms", "collection_ms", "others")
    section = summary(series_of(noise(40), **{name: np.full(40, np.nan) for name in names}))
    assert set(section.memory) == {"allocated", "host_rss"}
    assert section.budget.parts["wait"] == BudgetPart()
    assert encode_sections(realtime=section)["realtime"]["frames"] == 40, "all numbers are finite"


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"pace": "realtime"}, "a frame has no due_ms"),
        ({"frame_ms": np.array([9.0, 9.0, 9.0, 9.0, -1.0])}, {}, "frame_ms is below 0"),
        ({"frame_ms": np.zeros(5)}, {}, "0 in half of the frames"),
    ],
)
def test_what_is_refused(change, options, message):
    with pytest.raises(ValueError, match=message):
        summary(series_of(np.full(5, 10.0)) | change, **options)


def test_clean_noise_has_no_fault():
    for seed in range(20):
        section = summary(series_of(noise(FRAMES, seed=seed)))
        assert faults(section) == {}
        assert section.unsteady == ()
        assert not any(deadline.misses or deadline.bursts for deadline in section.deadlines.values())
        assert faults(summary(series_of(noise(FRAMES, share=0.03, seed=seed)))) == {}
    section = summary(series_of(noise(FRAMES, share=0.0005) * (1 + 0.005 * np.arange(FRAMES) / FRAMES)))
    assert faults(section) == {}
    assert section.slope.ci95[0] > 0, "it is measurable, but half a percent over the run"


def test_a_stage_that_runs_now_and_then_is_the_cause_of_its_frames():
    """In the other frames it took no time: 4 ms are its excess, not those beyond its own median."""
    every = np.arange(FRAMES) % 10 == 0
    frame_ms = noise(FRAMES) + 4.0 * every
    keyframe = np.where(every, 4.0, np.nan)
    series = series_of(frame_ms) | {"host_keyframe_ms": keyframe, "device_keyframe_ms": keyframe}
    slow = summary(series).slow
    assert slow.causes == {"stage keyframe": FRAMES // 10}
    assert slow.cause_ms["stage keyframe"] == pytest.approx(4.0 * FRAMES / 10, rel=0.05)


@pytest.mark.parametrize(("burst", "every"), [(10, 100), (25, 100), (40, 200), (60, 400)])
def test_every_frame_of_a_burst_is_slow(burst, every):
    slow = np.arange(FRAMES) % every < burst
    slow[: every // 2] = False  # the first frames alone would be a warm-up
    section = summary(series_of(noise(FRAMES) + 30.0 * slow))
    assert section.slow.causes == {"stage world": slow.sum()}
    assert section.slow.cause_ms["stage world"] == pytest.approx(30.0 * slow.sum(), rel=0.05)


@pytest.mark.parametrize(
    ("name", "device", "answer"),
    [
        ("host_world_ms", "cuda:0", "no"),
        ("host_world_ms", "cpu", "undecided"),  # threads that wait for each other lose more than was counted
        ("run_queue_ms", "cuda:0", "undecided"),
    ],
)
def test_beside_others_a_rate_is_missed_by_frames_that_are_late_without_them(name, device, answer):
    stalls = 40.0 * (np.arange(FRAMES) % 10 == 0)
    series = series_of(noise(FRAMES) + stalls)
    section = summary(series | {"run_queue_ms": np.full(FRAMES, 1.0)} | {name: series[name] + stalls})
    made = Record(target="realtime", component="loop", variant="v", status="ok", device=device, realtime=section)
    assert holds_rate(made, section.deadlines["60"]).answer == answer


def test_a_drift_has_no_slow_frames():
    section = summary(series_of(noise(200) * (1 + 0.01 * np.arange(200))), fps=30.0)
    assert faults(section) == {"growing": True, "unsettled": True}
    assert section.slope.us_per_frame == pytest.approx(50.0, rel=0.1), "1% of 5 ms; the line is one of the logarithms"
    section = summary(series_of(noise(FRAMES) * 1.01 ** np.arange(FRAMES)), fps=0.1)
    assert faults(section) == {"growing": True, "unsettled": True}, "also where it compounds"


def test_spikes_do_not_make_a_late_step_a_burst():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        frame_ms = 5.0 * np.exp(0.01 * rng.standard_normal(60)) * np.where(np.arange(60) >= 40, 1.5, 1.0)
        spikes = rng.random(60) < 0.05
        section = summary(series_of(frame_ms + 20.0 * spikes), fps=30.0)
        assert (sum(section.slow.causes.values()) if section.slow else 0) <= spikes.sum()


@pytest.mark.parametrize("level", [np.clip((np.arange(FRAMES) - 350) / 200, 0, 1), np.arange(FRAMES) >= 400])
def test_a_late_step_or_ramp_before_a_short_last_frame_has_no_slow_frames(level):
    frame_ms = noise(FRAMES) * (1 + 0.5 * level)
    frame_ms[-1] /= 2
    section = summary(series_of(frame_ms), fps=30.0)
    assert section.slow is None or not section.slow.causes


def test_a_ramp_is_found_and_left_out_of_the_slope_and_the_warm_up_was_too_short():
    ramp = 1 + 0.15 * np.clip(1 - np.arange(FRAMES) / 80, 0, None)
    named = faults(summary(series_of(noise(FRAMES) * ramp)))
    assert 60 <= named.pop("ramp") <= 75, "the ramp is within 3% of the level from frame 64 on"
    assert named == {}
    step = noise(FRAMES) * np.where(np.arange(FRAMES) < 100, 1.1, 1.0)
    named = faults(summary(series_of(step + at(*range(5, 100, 10), value=40.0))))
    assert named == {"ramp": 100, "causes": {"stage world": 10}, "late": 10}
    section = summary(series_of(step))
    assert faults(section) == {"ramp": 100}
    assert section.unsteady == ("frame times settle only at timed frame 100: use loop.warmup_frames=160",)
    (of_a_script,) = summary(series_of(step), pace="application").unsteady
    assert of_a_script.endswith("use FrameRecorder(warmup_frames=160)")
    change = 0.03 * np.arange(FRAMES) / FRAMES
    (sign,) = summary(series_of(noise(FRAMES, share=0.0005) * (1 - change))).unsteady
    assert sign.startswith("frame times still fall, from 4.99")
    assert summary(series_of(noise(FRAMES, share=0.0005) * (1 + change))).unsteady == (), "growth is said elsewhere"


def test_a_recompile_by_its_id():
    series = series_of(noise(FRAMES) + at(60, value=900.0), compiles=at(60), compile_ms=at(60, value=850.0))
    events = [{"frame": 60, "id": "0/1"}, {"frame": 61, "kind": "recompile", "id": "7/7"}]
    section = summary(series, events)
    assert faults(section) == {"causes": {"recompile 0/1 in world": 1}, "late": 1}
    [frame] = section.slow.frames
    assert (frame.frame, frame.ms, frame.causes) == (60, series["frame_ms"][60], ("recompile 0/1 in world",))
    assert summary(series).slow.causes == {"compile in world": 1}, "no id is known"


@pytest.mark.parametrize(
    ("series", "cause"),
    [
        ("capture_ms", "CUDA graph captured"),
        ("malloc_ms", "cudaMalloc"),
        ("collection_ms", "garbage collection"),
        ("run_queue_ms", "run-queue wait"),
        ("steal_ms", "CPU stolen by another virtual machine"),
        ("others_ms", "another process on the GPU"),
    ],
)
def test_a_cause_is_named_only_where_it_took_half_of_the_excess(series, cause):
    late = noise(FRAMES) + at(333, value=30.0)

    def said(took_ms, frame_ms=late):
        return faults(summary(series_of(frame_ms, **{series: took_ms})))

    assert said(at(333, value=16.0)) == {"causes": {f"{cause} in world": 1}, "late": 1}
    assert said(at(333, value=14.0)) == {"causes": {"stage world": 1}, "late": 1}, "too short to explain 30 ms"
    assert said(at(333, value=30.0), noise(FRAMES)) == {}, "what happens in a frame of usual length is no cause"
    every = said(np.full(FRAMES, 20.0))
    assert every["causes"] == {"stage world": 1}, "what takes as long in every frame makes none of them late"


@pytest.mark.parametrize(
    ("planted", "cause"),
    [
        (("rest_ms",), "outside all stages"),
        (("host_picture_ms",), "stage picture"),
        (("host_sound_ms", "device_sound_ms"), "stage sound"),
        (("gap_ms",), "not attributed"),
    ],
)
def test_a_slow_frame_names_the_stage_in_which_it_was_slow(planted, cause):
    """A sleep of 100 ms in frame 333, in a stage, outside all stages, or where nothing was measured."""
    series = series_of(noise(FRAMES))
    for name in ("frame_ms", *planted):
        series[name] = series[name] + at(333, value=100.0)
    slow = summary(series).slow
    assert slow.causes == {cause: 1}
    assert slow.cause_ms == {cause: pytest.approx(100.0, abs=0.2)}
    series["collection_ms"] = at(333, value=80.0)
    slow = summary(series).slow
    where = {"outside all stages": " outside all stages", "not attributed": ""}.get(cause, f" in {cause[6:]}")
    assert slow.causes == {f"garbage collection{where}": 1}
    assert slow.cause_ms == pytest.approx({f"garbage collection{where}": 80.0, cause: 20.0}, abs=0.2)


def test_a_slow_frame_names_the_fewest_stages_that_explain_it():
    """100 ms longer: 40 in a stage, 35 in another, and 25 outside all of them."""
    longer = {"device_world_ms": 40.0, "device_picture_ms": 35.0, "rest_ms": 25.0}
    for planted, cause in (
        (longer, "stages world, picture"),
        (longer | {"device_picture_ms": 5.0}, "stage world, outside all stages"),
        (longer | {"device_picture_ms": 5.0, "rest_ms": 4.0}, "not attributed"),
    ):
        series = series_of(noise(FRAMES))
        for name, ms in (("frame_ms", 100.0), *planted.items()):
            series[name] = series[name] + at(333, value=ms)
        assert summary(series).slow.causes == {cause: 1}


def test_a_loop_without_stages_was_slow_outside_all_of_them():
    series = series_of(noise(FRAMES))
    for stage in ("world", "picture", "sound", "deliver"):
        del series[f"host_{stage}_ms"], series[f"device_{stage}_ms"]
    for name in ("frame_ms", "rest_ms"):
        series[name] = series[name] + at(333, value=100.0)
    assert summary(series).slow.causes == {"outside all stages": 1}


@pytest.mark.parametrize(("clock", "cause"), [(900.0, "lower SM clock in world"), (1800.0, "stage world")])
def test_a_lower_clock_explains_what_it_can_of_the_device_time(clock, cause):
    """Stages work on the device for 95% of a frame: at 900 of 1980 MHz 55% of that are the clock's."""
    clocks, slow = np.full(FRAMES, 1980.0), noise(FRAMES) + at(333, value=5.0)
    clocks[333] = clock
    assert summary(series_of(slow, sm_clock_mhz=clocks)).slow.causes == {cause: 1}
    unread = np.where(np.arange(FRAMES) % 16 == 0, 1980.0, np.nan)
    assert summary(series_of(slow, sm_clock_mhz=unread)).slow.causes == {"stage world": 1}
    held = range(400, 430)
    clocks[held] = 900.0
    section = summary(series_of(noise(FRAMES) + at(*held, value=5.0), sm_clock_mhz=clocks))
    assert faults(section) == {"causes": {"lower SM clock in world": 30}}, "for a while: this is no ramp"


def test_a_frame_may_have_several_causes_and_the_run_sums_them():
    frame_ms = np.full(FRAMES, 5.0) + at(100, 340, value=20.0)
    waits, collections = at(100, 340, value=12.0), at(100, value=15.0)
    slow = summary(series_of(frame_ms, run_queue_ms=waits, collection_ms=collections)).slow
    assert slow.causes == {"run-queue wait in world": 2, "garbage collection in world": 1}
    assert slow.count == 2
    assert slow.frames[0].cause_ms == {"garbage collection in world": 15.0, "run-queue wait in world": 12.0}
    summed = {"run-queue wait in world": 17.0, "garbage collection in world": 15.0, "stage world": 8.0}
    assert slow.cause_ms == pytest.approx(summed)
    assert sum(slow.cause_ms.values()) == pytest.approx(2 * 20.0), "no millisecond is counted twice"


@pytest.mark.parametrize("frames", [0, 1, 7, 8, 29, 30, 100])
def test_a_series_cut_off_by_a_crash(frames):
    series = series_of(noise(FRAMES) + at(49, 99, value=40.0))
    section = summary({name: values[:frames] for name, values in series.items()})
    assert (section.frames, section.work) == (frames, {"steps": 1})
    if frames == 0:
        assert section == loop()
        return
    assert section.late == frames // 50
    assert section.slow.causes == ({"stage world": 2} if frames == 100 else {})
    assert section.steady.settled == (frames >= 30), "two windows of frames are needed to say so"
    assert (section.slope is not None) == (frames >= 8)
    assert (section.wall_fps is not None) == (frames > 1), "one delivery has no rate"


def leaks(from_frame=0, **memory):
    section = memory_section(series_of(noise(FRAMES), **memory), from_frame)
    return [kind for kind, trend in section.items() if trend.leak]


GROWTH = np.arange(FRAMES, dtype=np.float64)


def test_leaks():
    for kind, growth, leak in (
        ("allocated", 512 * GROWTH, True),
        ("allocated", 512 * (GROWTH // 100), False),  # 3 KiB over the run
        ("allocated", MIB * ((GROWTH >= 200) + 1.0 * (GROWTH >= 400)), False),  # two steps up
        ("allocated", MIB * (GROWTH % 100), False),  # collected now and then
        ("allocated", -512 * GROWTH, False),
        ("reserved", 2 * MIB * (GROWTH // 60), True),  # a segment now and then
        ("device_used", 0.01 * MIB * GROWTH, False),  # 6 MiB over the run
        ("host_rss", 0.02 * MIB * GROWTH, True),
    ):
        assert leaks(**{kind: 2.0**30 + growth}) == ([kind] if leak else []), (kind, growth)


def test_neither_memory_that_fluctuates_nor_what_grows_in_the_ramp_is_a_leak():
    for seed in range(100):
        assert leaks(host_rss=2.0**33 + np.random.default_rng(seed).normal(0, 64 * MIB, FRAMES)) == []
    memory = 2.0**30 + MIB * np.minimum(GROWTH, 450)
    assert leaks(450, allocated=memory) == []
    assert leaks(0, allocated=memory) == ["allocated"]


def test_memory_that_is_sampled_now_and_then():
    sampled = np.where(GROWTH % 20 == 0, 2.0**30 + 0.1 * MIB * GROWTH, np.nan)
    used = memory_section(series_of(noise(FRAMES), device_used=sampled), 0)["device_used"]
    assert used.leak
    assert used.bytes_per_frame == pytest.approx(0.1 * MIB, rel=0.01)
    assert (used.first, used.last) == (2**30, int(2**30 + 58 * MIB))
    few = memory_section(series_of(noise(5), allocated=2.0**30 + MIB * np.arange(5.0)), 0)["allocated"]
    assert (few.first, few.last) == (2**30, 2**30 + 4 * MIB)
    assert few.bytes_per_frame is few.leak is None, "too few make no claim"


NODE = {
    "sources": {"camera": {"draw": {"x": "normal"}}, "prompt": {"draw": {"x": "normal"}, "period": 4}},
    "stages": {
        "a": {"component": "net", "inputs": {"x": "camera.x", "y": "prompt.x", "z": "b@-1"}},
        "b": {"component": "net", "inputs": {"x": "a", "y": "camera.x"}},
    },
    "deliver": ["a"],
}


def test_chunks_of_frames_are_judged_by_their_playback():
    """12 frames every 700 ms: 17.1 FPS. One chunk of 900 ms is late at 16 FPS, and a buffer hides it."""
    chunk_ms = np.full(600, 700.0)
    chunk_ms[100] = 900.0
    series = series_of(chunk_ms, delivered_ms=np.cumsum(chunk_ms), gap_ms=np.zeros(600))
    graph = parse_graph({**NODE, "frames_per_tick": 12, "frame_rate": 16, "rates": [24]}, ["net"])
    section = summarize_frames(series, loop(fps=16.0, frames_per_tick=12), graph)
    assert section.budget_ms == section.deadlines["16"].budget_ms == 750
    assert list(section.deadlines) == ["16", "24"]
    assert (section.late, section.deadlines["16"].longest_stall_ms) == (1, 150.0)
    assert section.deadlines["24"].misses == 600
    assert section.wall_fps == pytest.approx(12 / 0.701, rel=0.01)
    assert section.sustained_fps == pytest.approx(2 * 12 / (0.9 + 0.7), rel=0.05), "one late burst of 600 may be"
    assert section.held_ms == 700
    strict = summarize_frames(series, loop(fps=16.0, frames_per_tick=12), graph, late=0.001)
    assert strict.sustained_fps is strict.held_ms is None, "600 are too few to tell"
    assert section.underruns == {"0": 1, "1": 0, "2": 0, "3": 0}


def test_how_old_the_inputs_are_when_they_are_delivered():
    """Frames of 10 ms with a gap of 0.25: the prompt of a frame was sampled 0 to 3 frames before."""
    ages = summarize_frames(series_of(np.full(40, 10.0)), loop(), parse_graph(NODE, ["net"])).input_age_ms
    assert ages["camera"].p50 == ages["camera"].max == pytest.approx(10)
    prompt = ages["prompt"]
    assert (prompt.min, prompt.max, prompt.mean) == pytest.approx((10, 10 + 3 * 10.25, 10 + 1.5 * 10.25))
    late = {**NODE, "stages": {**NODE["stages"], "c": {"component": "net", "inputs": {"x": "a@-1"}}}, "deliver": ["c"]}
    ages = summarize_frames(series_of(np.full(40, 10.0)), loop(), parse_graph(late, ["net"])).input_age_ms
    assert ages["camera"].min == ages["camera"].p50 == pytest.approx(20.25), "one frame later; the first shows none"


@pytest.mark.parametrize(
    ("planted", "cpu", "gpu"),
    [
        ({"run_queue_ms": [1.0] * 50 + [0.0] * 50}, 0.1, None),
        ({"run_queue_ms": [0.5] * 100, "steal_ms": [0.25, np.nan] * 50}, 0.15, None),
        ({"others_ms": [np.nan, 2.0] * 50}, None, 0.4),
    ],
)
def test_what_others_took_of_the_frames(planted, cpu, gpu):
    """Frames of 5 ms, and as far as the host's waits count the gaps before them; what was not read says nothing."""
    unread = {name: np.full(100, np.nan) for name in ("run_queue_ms", "steal_ms", "others_ms")}
    series = series_of([5.0] * 100, **unread | {name: np.array(values) for name, values in planted.items()})
    section = summarize_frames(series, loop())
    if cpu is not None:
        cpu *= 500 / (500 + 99 * GAP_MS)
    assert (section.cpu_lost_share, section.gpu_lost_share) == (pytest.approx(cpu, rel=1e-3) if cpu else None, gpu)


def loop_of_joules(frames=600, *, watts=300.0, **options):
    """Return the energy of a paced loop whose counter is read after every 16th frame, and steps every 0.1 s."""
    delivered_s = np.arange(1, frames + 1) / 30
    joules = np.full(frames, np.nan)
    joules[::16] = watts * np.floor(delivered_s[::16] / 0.1) * 0.1
    series = series_of(np.full(frames, 20.0), delivered_ms=1e3 * delivered_s, energy_j=joules)
    return loop_energy(series, summary(series, **options), idle_w=100.0, step_ms=100.0)


def test_energy_of_a_frame_is_that_of_the_frames_between_two_readings():
    energy = loop_of_joules()
    assert energy.joules_per_frame == pytest.approx(300 / 30, rel=0.01)
    assert energy.watts == pytest.approx(300, rel=0.01)
    assert energy.above_idle_per_frame == pytest.approx(200 / 30, rel=0.02)
    low, high = energy.joules_per_call_ci95
    assert low <= 300 / 30 <= high
    assert high - low < 0.1 * 10
    assert sum(each.calls for each in energy.windows) == 592
    energy = loop_of_joules(frames_per_tick=4)
    assert energy.joules_per_call == pytest.approx(10, rel=0.01)
    assert energy.joules_per_frame == pytest.approx(2.5, rel=0.01)


def test_energy_that_is_not_known():
    assert loop_of_joules(frames=140).joules_per_call_ci95 is None
    assert "too short" in loop_of_joules(frames=40).reason
    assert "too short" in loop_of_joules(frames=16).reason, "one reading"
    assert loop_of_joules(frames=140, watts=0.0).reason == "the driver's energy counter did not change for 4.27 s"
    assert loop_energy(series_of(np.full(600, 20.0)), loop()) is None
    series = series_of(np.full(600, 20.0), energy_j=np.arange(600.0), others_ms=np.full(600, 4.0))
    assert "other processes used the GPU for 20% of the time" in loop_energy(series, summary(series)).reason
