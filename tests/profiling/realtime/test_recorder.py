"""Frames of an application: times on a planted clock and device, stages of threads, exceptions, and the journal."""

import asyncio
import errno
import gc
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from recorded_frames import saved, script

from profiling import FrameRecorder
from profiling.compare.__main__ import main as compare
from profiling.errors import InputError
from profiling.realtime import recorder as recorder_module
from profiling.realtime.recorded_run import MEASURED, RecordedRun
from profiling.report import render
from profiling.report.__main__ import main as report
from profiling.report.answer import held_rate
from profiling.report.realtime import verdict
from profiling.results.measured import ClockConditions


def play_frames(frames, number=1, work=lambda: None):
    for _ in range(number):
        with frames.frame():
            work()


def test_host_times_of_frames_and_stages(planted, make_recorder, tmp_path):
    clock, frames = planted(device=False), make_recorder()
    for number in range(40):
        with frames.frame():
            clock.work(1)
            with frames.stage("world"):
                clock.work(2)
                with frames.stage("attention"):
                    clock.work(3)
            for _ in range(2):
                with frames.stage("step"):
                    clock.work(1)
            if number % 10 == 0:
                with frames.stage("text"):
                    clock.work(20)
        clock.work(0.5)
    loop, series = saved(frames, tmp_path / "run")
    late = np.where(np.arange(40) % 10 == 0, 20, 0)
    np.testing.assert_allclose(series["frame_ms"], 8 + late)
    np.testing.assert_allclose(series["host_world_ms"], 2, err_msg="without the stage inside it")
    np.testing.assert_allclose(series["host_world/attention_ms"], 3)
    np.testing.assert_allclose(series["host_step_ms"], 2, err_msg="both of them")
    np.testing.assert_allclose(series["host_text_ms"][::10], 20)
    assert np.isnan(series["host_text_ms"][1:10]).all()
    np.testing.assert_allclose(series["rest_ms"], 1)
    np.testing.assert_allclose(series["gap_ms"][:-1], 0.5)
    assert loop.stages == ("world/attention", "world", "step", "text")
    assert (loop.late, loop.pace, loop.schedule) == (4, "application", "sequential")
    assert loop.budget.parts["unaccounted"].host_ms == pytest.approx(1)
    assert loop.deadlines["30"].misses == 0


def test_a_loop_that_waits_for_the_device(planted, make_recorder, tmp_path):
    """The device works behind the host; its clock drifts, which must not move any deadline."""
    device, frames = planted(speed=1.001), make_recorder()
    for _ in range(500):
        with frames.frame():
            with frames.stage("world"):
                device.work(0.25)
                device.launch(5)
            with frames.stage("decode"):
                device.launch(7)
            device.synchronize()
        device.work(4)
    loop, series = saved(frames, tmp_path / "run")
    np.testing.assert_allclose(series["frame_ms"], 12.25, rtol=0.002)
    np.testing.assert_allclose(series["device_decode_ms"], 7, rtol=0.002)
    np.testing.assert_allclose(series["host_world_ms"], 0.25)
    assert loop.late == 0
    assert loop.budget.parts["decode"].device_ms == pytest.approx(7, rel=0.002)
    assert device.in_use <= 5, "events are used again, but for those of the last frame"


def test_stages_share_a_mark_only_where_no_launch_fits_between_them(planted, make_recorder, tmp_path):
    device, frames = planted(), make_recorder()
    for between_ms in (0.0, 0.003, 0.005):
        marks = device.marks
        with frames.frame():
            with frames.stage("world"):
                device.launch(5)
            device.work(between_ms)
            if between_ms > 0.004:
                device.launch(3)  # belongs to no stage
            with frames.stage("decode"):
                device.launch(7)
            device.synchronize()
        assert device.marks - marks == (5 if between_ms > 0.004 else 4)
    series = saved(frames, tmp_path / "run")[1]
    np.testing.assert_allclose(series["device_world_ms"], 5)
    np.testing.assert_allclose(series["device_decode_ms"], 7)


def test_the_time_of_the_recorder_is_not_room_for_a_launch(planted, make_recorder, monkeypatch, tmp_path):
    """On a slow host, too, one CUDA event is the end of a stage and the start of the next."""
    device, frames = planted(), make_recorder()
    for name in ("_push_range", "_pop_range"):
        monkeypatch.setattr(recorder_module, name, lambda *_: device.work(0.005))
    with frames.frame():
        for name in ("world", "decode", "sound"):
            with frames.stage(name):
                device.launch(5)
                device.work(1)
    assert device.marks == 4
    loop, series = saved(frames, tmp_path / "run")
    np.testing.assert_allclose(series["device_sound_ms"], 5)
    np.testing.assert_allclose(series["host_sound_ms"], 1)
    assert loop.stages == ("world", "decode", "sound")


def test_the_end_of_a_block_shares_the_mark_of_the_one_inside(planted, make_recorder, tmp_path):
    """But never its own first mark: a launch of a stage is not lost, however short the stage is."""
    device, frames = planted(), make_recorder()
    for inside in (True, False):
        marks = device.marks
        with frames.frame(), frames.stage("world"):
            device.launch(5)
            device.work(0.005)
            with frames.stage("attention"):
                device.launch(7)
            if not inside:
                device.work(0.005)
                device.launch(3)
        assert device.marks - marks == (3 if inside else 4)
        device.synchronize()
    series = saved(frames, tmp_path / "run")[1]
    np.testing.assert_allclose(series["device_world_ms"], [5, 8])
    np.testing.assert_allclose(series["device_world/attention_ms"], [7, 7])
    assert device.in_use <= 5, "events are used again, but for those of the last frame"


def test_a_loop_that_runs_ahead_of_the_device_never_waits_for_it(planted, make_recorder, tmp_path):
    device, frames = planted(), make_recorder()
    for _ in range(20):
        with frames.frame(), frames.stage("world"):
            device.work(1)
            device.launch(20)
    assert device.now == 20
    loop, series = saved(frames, tmp_path / "run")
    np.testing.assert_allclose(series["device_world_ms"][1:], 20)
    np.testing.assert_allclose(series["frame_ms"][1:], 20, err_msg="a frame counts from the delivery before")
    np.testing.assert_allclose(series["latency_ms"], 21 + 19 * np.arange(20), err_msg="the queue grows")
    assert loop.late == 20


def test_a_frame_leaves_no_work_to_the_garbage_collector(planted, make_recorder):
    planted()
    frames = make_recorder()
    left = []
    gc.disable()
    try:
        for _ in range(4):  # other threads and finalisers of earlier tests may leave objects, but not in every round
            gc.collect()
            for _ in range(50):
                with frames.frame(), frames.stage("world"), frames.stage("attention"):
                    pass
            left.append(gc.collect())
    finally:
        gc.enable()
    assert min(left) < 50, left


def test_warm_up_frames_are_not_recorded(planted, make_recorder, tmp_path):
    clock, frames = planted(device=False), make_recorder(warmup_frames=3)
    play_frames(frames, 3, lambda: clock.work(500))
    play_frames(frames, 7, lambda: clock.work(1))
    loop, series = saved(frames, tmp_path / "run")
    assert (loop.frames, loop.warmup_frames, loop.late) == (7, 3, 0)
    assert series["action_ms"][0] == 0


def test_stages_of_worker_threads_and_time_outside_the_stages_of_all(planted, make_recorder, tmp_path):
    """Worker threads run two stages of frame 5; its own thread then works for 100 ms, outside all stages."""
    clock, frames = planted(device=False), make_recorder()

    def decode(name):
        with frames.stage(name):
            clock.work(2)

    with ThreadPoolExecutor(2) as pool:
        for number in range(40):
            with frames.frame():
                pool.submit(decode, "picture").result()
                with frames.stage("world"):
                    pool.submit(decode, "sound").result()
                    clock.work(3)
                clock.work(101 if number == 5 else 1)
    loop, series = saved(frames, tmp_path / "run")
    assert loop.stages == ("picture", "sound", "world"), "not inside the stage of another thread"
    np.testing.assert_allclose(series["host_world_ms"], 5)
    np.testing.assert_allclose(series["host_sound_ms"], 2)
    np.testing.assert_allclose(np.delete(series["rest_ms"], 5), 1)
    assert series["rest_ms"][5] == pytest.approx(101)
    assert (loop.schedule, loop.slow.causes) == ("overlap", {"outside all stages": 1})
    assert loop.budget.parts["unaccounted"].host_ms == pytest.approx(3), "but for the longest one"


def test_without_a_frame_nothing_is_saved_and_a_stage_that_begins_too_late_is_lost(make_recorder, tmp_path):
    frames = make_recorder(device="cpu")
    with pytest.raises(InputError, match=r"save\(\): no frame has ended. Put `with frames.frame\(\):`"):
        frames.save(tmp_path / "run")
    assert not list(tmp_path.iterdir())
    with frames.frame() as frame:
        pass
    with frame.stage("sound"):
        pass
    (record,) = frames.save(tmp_path / "run").records
    assert record.notes[0] == "stages 'sound' that began after their frames had ended are not recorded"


def entered(pool, block):
    return pool.submit(block.__enter__).result()


def left(pool, block):
    pool.submit(block.__exit__, None, None, None).result()


def test_what_never_ends_is_missing_and_all_other_frames_are_written(planted, make_recorder, tmp_path):
    """A stage of frame 10, and a frame of another thread, which are open until after the first save."""
    clock, frames = planted(device=False), make_recorder()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        for number in range(600):
            with frames.frame() as frame, frames.stage("world"):
                clock.work(2 if number < 500 else 30)
                if number == 10:
                    stage = entered(one, frame.stage("upload"))
            if number == 20:
                endless = entered(two, frames.frame())
        assert len(frames._unread) < 300, "frames are not held in memory until it ends"
        (first,) = frames.save(tmp_path / "run").records
        left(one, stage)
        left(two, endless)
    assert (first.realtime.frames, first.realtime.late) == (600, 100)
    missing = "stages that had not ended when their frames were written are missing: 'upload' (1)"
    assert first.notes == ("frames that had not ended are missing: 1", missing)
    (again,) = frames.save(tmp_path / "again").records
    assert (again.realtime.frames, again.notes) == (601, (missing,))


def test_a_frame_that_ends_after_others_were_saved_is_in_the_next_save(make_recorder, tmp_path):
    frames = make_recorder(device="cpu")

    async def play(name, turns):
        with frames.frame() as frame, frames.stage(name) as stage:
            assert stage.frame is frame
            for _ in range(turns):
                await asyncio.sleep(0)

    async def both():
        slow = asyncio.create_task(play("slow", 50))
        await asyncio.sleep(0)
        await play("quick", 3)
        assert frames.save(tmp_path / "first").records[0].realtime.frames == 1
        await slow

    asyncio.run(both())
    loop, _ = saved(frames, tmp_path / "second")
    assert (loop.frames, set(loop.stages)) == (2, {"quick", "slow"})


FORKS = """
import os, sys
import profiling

frames = profiling.FrameRecorder(fps=60, device="cpu", folder="journal")
for number in range(100):
    with frames.frame(), frames.stage("world"):
        if number == 50 and os.fork() == 0:
            break
else:
    assert os.wait()[1] == 0
    print(frames.save("run").records[0].realtime.frames)
    sys.exit()
for _ in range(500):
    with frames.frame(), frames.stage("other"):
        pass
try:
    frames.save("child")
except profiling.errors.InputError as error:
    print(error)
frames.close()
sys.exit(0)
"""


def test_a_recompile_is_named_in_its_frame_where_an_earlier_one_is_written_later(tmp_path):
    """Frame 0 is written last, so that frame 5 is row 4; the monitor knows the numbers in which frames began."""
    run = RecordedRun(60.0, 0, tmp_path / "run")
    run.open()
    usual, compiled = {"compiles": 0.0, "compile_ms": 0.0}, {"compiles": 1.0, "compile_ms": 50.0}
    for place, number in enumerate([*range(1, 40), 0]):
        observed = compiled if number == 5 else usual
        row, frame_ms = run.row(observed), 5 + observed["compile_ms"]
        delivered_ms = 5.0 * place + 5 + 50 * (place >= 4)
        row[:MEASURED] = delivered_ms - frame_ms, delivered_ms, frame_ms, frame_ms, 0.0, 0.0, 0.0
        run.append(row, number, observed)
    events = [{"frame": 5, "id": "1/0"}]
    result = run.save(None, "cpu", SimpleNamespace(events=events, clocks=ClockConditions))
    run.close()
    (record,) = result.records
    assert [(slow.frame, slow.causes) for slow in record.realtime.slow.frames] == [(4, ("recompile 1/0",))]


def test_a_forked_process_records_nothing(tmp_path):
    done = script(FORKS, tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "100"), done.stderr
    assert "save(): this process was forked from the one that records" in done.stdout
    again = "FrameRecorder: frames of a forked process are not recorded. Make another FrameRecorder in it.\n"
    assert done.stderr == again
    assert [path.name for path in (tmp_path / "journal").glob("**/*.part")] == []


@pytest.mark.parametrize("closed", [False, True])
def test_a_folder_that_is_removed_loses_no_frame_of_a_process_that_lives(make_recorder, tmp_path, closed):
    frames = make_recorder(device="cpu", folder=tmp_path / "journal")
    for number in range(100):
        if number == 50:
            shutil.rmtree(tmp_path / "journal")
        with frames.frame(), frames.stage("late" if number > 80 else "early"):
            pass
    if closed:
        frames.close()
    (record,) = frames.save().records
    assert record.realtime.frames == 100
    assert set(record.realtime.stages) == {"early", "late"}
    assert "the folder of the journal was removed while frames were recorded" in record.notes


def test_no_recovery_is_promised_of_a_journal_that_was_removed(tmp_path, capfd):
    frames = FrameRecorder(device="cpu", folder=tmp_path / "journal")
    play_frames(frames, 5)
    shutil.rmtree(tmp_path / "journal")
    del frames
    gc.collect()
    said = f"5 frames were not saved, and their journal was removed from {tmp_path / 'journal'}.\n"
    assert said in capfd.readouterr().err  # recorders of other tests may end here, too


def test_frames_of_several_threads(make_recorder, tmp_path):
    """Each thread's stages are those of its own frame, and no frame is lost."""
    frames, count = make_recorder(device="cpu"), 200
    start = threading.Barrier(4)

    def play(number):
        start.wait()
        for _ in range(count):
            with frames.frame() as frame, frames.stage(f"stage {number}"):
                assert frames.stage("x").frame is frame

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(play, number) for number in range(4)]:
            done.result()
    loop, series = saved(frames, tmp_path / "run")
    assert loop.frames == 4 * count
    stages = np.stack([np.isfinite(series[f"host_stage {number}_ms"]) for number in range(4)])
    assert (stages.sum(axis=0) == 1).all()
    assert (np.diff(series["delivered_ms"]) >= 0).all()
    assert (series["frame_ms"] >= 0).all()


def test_which_frame_a_stage_belongs_to(make_recorder):
    frames, other = make_recorder(device="cpu"), make_recorder(device="cpu")
    with pytest.raises(InputError, match=r"stage\('x'\): no frame is open: open frames.frame\(\) around it"):
        frames.stage("x")
    with ThreadPoolExecutor(1) as pool, frames.frame() as outer, other.frame() as inner:
        assert frames.stage("x").frame is outer, "another recorder's frame inside is no hindrance"
        assert other.stage("x").frame is inner
        with pytest.raises(InputError, match="a frame is open here already"), frames.frame():
            pass
        with ThreadPoolExecutor(1) as second:
            frame = entered(second, frames.frame())
            with pytest.raises(InputError, match=r"several frames are open: use frame.stage"):
                pool.submit(frames.stage, "x").result()
            with pool.submit(outer.stage, "x").result() as stage:
                assert stage.frame is outer
            left(second, frame)
    assert outer.end_ns


def test_saving_twice_and_going_on(make_recorder, tmp_path, capsys):
    frames = make_recorder(device="cpu")
    play_frames(frames, 10)
    assert frames.save(tmp_path / "a").records[0].realtime.frames == 10
    with frames.frame():
        assert frames.save(tmp_path / "a").records[0].realtime.frames == 10, "a frame that is open is not one of them"
    assert (tmp_path / "a" / "results.jsonl").read_text().count("\n") == 1
    result = frames.save(tmp_path / "b")
    assert result.records[0].realtime.frames == 11
    assert "Frames against" in (tmp_path / "b" / "report.html").read_text()
    assert "1 of 11 frames miss" in " ".join(str(result).split())
    assert report([str(tmp_path / "a")]) == 0
    assert compare([str(tmp_path / "a"), str(tmp_path / "b")]) in (0, 2)


def test_frames_whose_report_cannot_be_written_are_saved(tmp_path, monkeypatch, capfd):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    frames = FrameRecorder(device="cpu", folder=tmp_path / "journal")
    play_frames(frames, 5)
    with monkeypatch.context() as patch:
        patch.setattr(render, "write_text", full)
        with pytest.raises(OSError, match=r"report\.html could not be written: No space left on device\..*report"):
            frames.save(tmp_path / "run")
    assert report([str(tmp_path / "run")]) == 0
    assert frames.save(tmp_path / "run").records[0].realtime.frames == 5
    frames.close()
    assert "not saved" not in capfd.readouterr().err
    assert not (tmp_path / "journal").exists()


def test_a_folder_that_holds_something_else_is_refused(make_recorder, tmp_path):
    for name in ("mine", "mine-2"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    first, other = make_recorder(device="cpu"), make_recorder(device="cpu")
    play_frames(first)
    first.save(tmp_path / "run")
    play_frames(other)
    holds = r"mine is not empty: it holds notes\.txt\. Choose another folder, mine-3 for example"
    for folder, message in (("mine", holds), ("run", "run holds a run already. Choose another folder, run-2 for")):
        with pytest.raises(InputError, match=message):
            other.save(tmp_path / folder)
        with pytest.raises(InputError, match=message):
            FrameRecorder(folder=tmp_path / folder)


def test_files_are_tidied_up(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with FrameRecorder(device="cpu") as frames:
        play_frames(frames)
        assert list(tmp_path.glob("runs/realtime/*/cells/loop.recorded.frames.part"))
        frames.save("mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    FrameRecorder().close()
    with FrameRecorder(device="cpu") as frames:
        play_frames(frames)
    frames.save("later")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["later", "mine"]
    with FrameRecorder(device="cpu", folder="other") as frames:
        play_frames(frames)
        frames.save()
    assert [path.name for path in (tmp_path / "other" / "cells").iterdir()] == ["loop.recorded.frames.npz"]
    assert capfd.readouterr().err == ""
    with pytest.raises(InputError, match="this recorder is closed"), frames.frame():
        pass


@pytest.mark.parametrize("name", [" ", "rest", 5, "\ud800", "a\nb", "x" * 70_000])
def test_a_stage_needs_a_name_that_can_be_written(make_recorder, tmp_path, name):
    frames = make_recorder(device="cpu")
    with frames.frame(), pytest.raises(InputError, match=r"the name must be .* text") as caught, frames.stage(name):
        pass
    assert len(str(caught.value)) < 400
    assert saved(frames, tmp_path / "run")[0].frames == 1


@pytest.mark.parametrize("number", [40, 400])
def test_the_rate_of_a_loop_that_is_slow_outside_its_frames(planted, make_recorder, tmp_path, number):
    """So few that none tells that 99% are in time, or enough: the application is too slow."""
    clock, frames = planted(device=False), make_recorder()
    for _ in range(number):
        with frames.frame():
            clock.work(5)
        clock.work(20)
    (record,) = frames.save(tmp_path / "run").records
    rate = "the application delivers 40 frames a second, not 60; 20 ms lie between two frames, outside frame()"
    assert record.notes == (rate,)
    said = verdict(record)
    assert said.startswith(
        f"60 FPS: not held, the application delivers 40 frames/s. All {number} frames meet their 16.7 ms"
    )
    assert ("Holds 24 and 30 FPS. Not tried: 120 FPS, the application delivers 40" in said) == (number == 400)
    assert (held_rate(record) == "30 FPS") == (number == 400), "the first screen says the same"
