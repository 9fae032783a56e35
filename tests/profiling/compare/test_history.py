"""`python -m profiling.history`: the fastest correct variant of every run and job of a sweep, in order."""

import pytest
from msgspec.structs import replace
from planted_runs import WRONG, cell, dated, failed, loop, noisy, write_run

from profiling import history
from profiling.history import main, read_history
from profiling.report import render
from profiling.report.format import Estimate
from profiling.report.table import WIDTH
from profiling.results.sweep import Sweep, SweepJob, write_sweep

DATE = "2026-01-01T23:30:00+00:00"


@pytest.fixture
def runs(tmp_path):
    """Three runs, written in another order than they were made in: 8 ms, then 4 ms, then 5 ms."""
    wrong = cell("x", noisy(1), parity=WRONG)
    (tmp_path / "deep").mkdir()
    days = [f"2026-01-0{day}T00:00:00+00:00" for day in (1, 2, 3)]
    last, first, second = dated(days[2], "c", dirty=True), dated(days[0], "a"), dated(days[1], "b")
    write_run(tmp_path / "a", cell("v", noisy(5)), cell("w", noisy(9)), cell("x", noisy(7)), environment=last)
    write_run(tmp_path / "deep" / "b", cell("v", noisy(8)), wrong, failed("w"), environment=first)
    write_run(tmp_path / "c", cell("v", noisy(8)), cell("w", noisy(4)), cell("x", noisy(7)), environment=second)
    return tmp_path


def test_the_fastest_correct_variant_run_by_run(runs):
    ((title, series),) = read_history(runs).items()
    assert title == "net · GPU of 2026 · float32 · target generic_forward · scale full · frames per call 1"
    assert [(point.run, point.variant, point.revision) for point in series] == [
        ("deep/b", "v", "a" * 7),
        ("c", "w", "b" * 7),
        ("a", "v", "c" * 7 + "+"),
    ]
    assert [point.p50.value for point in series] == pytest.approx([8, 4, 5], rel=0.01)
    ratios = [(point.vs_first, point.vs_previous) for point in series[1:]]
    for versus, known in zip([each for pair in ratios for each in pair], (2, 2, 1.6, 0.8), strict=True):
        assert versus.value == pytest.approx(known, rel=0.01)
        assert versus.low < known < versus.high
    assert (series[0].vs_first, series[0].vs_previous) == (None, None)


def test_runs_with_other_variants_have_no_ratio(runs):
    """The fastest of more variants would be called a gain of the code."""
    write_run(runs / "d", cell("v", noisy(5)), environment=dated("2026-01-04T00:00:00+00:00", "d"))
    busy = (cell(name, noisy(6 + place), lost=0.38) for place, name in enumerate("vwx"))
    write_run(runs / "deep" / "c", *busy, environment=dated("2026-01-02T12:00:00+00:00", "d"))
    ((first, _, disturbed, _, other),) = read_history(runs).values()
    assert (other.vs_first, other.vs_previous) == ("other variants", "other variants")
    assert (first.conditions, disturbed.conditions) == (None, "38% of the CPU went to other processes")
    assert disturbed.vs_previous.startswith("undecided: ")


def test_a_variant_that_was_skipped_was_not_measured_and_threads_of_a_cpu_are_another_series(tmp_path):
    skipped = replace(cell("w"), status="skipped", reason="needs a GPU")
    for day, (threads, more) in enumerate(((2, [skipped]), (2, []), (1, [])), 1):
        environment = dated(f"2026-01-0{day}T00:00:00", "a") | {"device": {"type": "cpu"}, "threads": threads}
        write_run(tmp_path / str(day), cell("v", noisy(5, seed=day)), *more, environment=environment)
    two, one = read_history(tmp_path).items()
    assert ("2 threads" in two[0], "1 thread" in one[0], len(one[1])) == (True, True, 1)
    assert "×" in str(two[1][1].vs_first) or isinstance(two[1][1].vs_first, Estimate)


def test_one_measurement_in_two_runs_is_the_same_however_noisy(tmp_path):
    for day, name in enumerate("ab", 1):
        write_run(tmp_path / name, cell("v", noisy(5, spread=0.2)), environment=dated(f"2026-01-0{day}T00:00:00", "a"))
    ((_, again),) = read_history(tmp_path).values()
    assert again.vs_previous.startswith("same: 1.00×")


@pytest.mark.parametrize(("other_ms", "others"), [(5.0, "same: w"), (5.045, "undecided: w"), (6.0, None)])
def test_those_that_may_be_as_fast_are_named_with_the_leader(other_ms, others, tmp_path):
    write_run(tmp_path / "run", *(cell(name, noisy(ms)) for name, ms in (("v", 5.0), ("w", other_ms))))
    ((point,),) = read_history(tmp_path).values()
    assert (point.variant, point.not_slower) == ("v", others)


def test_what_does_not_compare_has_a_series_of_its_own(runs):
    changed = {"scale": "tiny", "dtype": "bfloat16", "parameters": 2, "frames_per_call": 2}
    for name, value in changed.items():
        write_run(runs / name, cell("v", noisy(0.1), **{name: value}), environment=dated(DATE, "d"))
    for name, config in (("d", ""), ("e", "training: {autocast: bfloat16}\n")):
        write_run(runs / name, cell("v", noisy(0.1)), environment=None, config=config)
    history = read_history(runs)
    assert sorted(map(len, history.values())) == [1] * 6 + [3]
    assert sum("autocast bfloat16" in title for title in history) == 1, "records of a training have its weights' dtype"
    (undated,) = (points[0] for points in history.values() if points[0].run == "d")
    assert (undated.date, undated.revision) == (None, None), "without an environment the times are left"


def test_a_loop_of_different_work_has_a_series_of_its_own(tmp_path):
    for number, options in enumerate(({}, {"frames_per_tick": 4}, {"schedule": "overlap"})):
        write_run(tmp_path / str(number), loop(noisy(9), **options), environment=dated(f"2026-01-0{number + 1}"))
    series = read_history(tmp_path).values()
    assert sorted([point.run for point in points] for points in series) == [["0", "2"], ["1"]]


def test_recordings_of_different_programs_have_series_of_their_own(tmp_path):
    for number, program in enumerate(("a/game.py --seed 1", "b/game.py --seed 2", "viewer.py")):
        environment = {**dated(f"2026-01-0{number + 1}"), "command": f"python {program}"}
        write_run(tmp_path / str(number), replace(loop(noisy(9)), scale=None), environment=environment)
    series = read_history(tmp_path)
    assert [(title.rpartition(" ")[2], len(points)) for title, points in series.items()] == [
        ("game.py", 2),
        ("viewer.py", 1),
    ]


@pytest.mark.parametrize("text", ["garbage\n", None])
def test_a_run_that_cannot_be_read_is_skipped_with_a_line(runs, capsys, monkeypatch, text):
    killed, load = runs / "killed", history.read_run
    killed.mkdir()
    (killed / "results.jsonl").write_text(text or "{}")

    def fails_once(run):
        if run == killed and text is None:
            raise ValueError("planted")
        return load(run)

    monkeypatch.setattr(history, "read_run", fails_once)
    assert main([str(runs)]) == 0
    printed = capsys.readouterr()
    (*_, last) = lines = [line for line in printed.out.splitlines() if "2026-01-0" in line]
    assert len(lines) == 3
    assert "1.60×" in last, "8 / 5"
    assert "0.800×" in last, "4 / 5"
    assert max(map(len, printed.out.splitlines())) <= WIDTH
    (line,) = printed.err.splitlines()
    assert line.startswith(f"skipped {killed}: {'' if text else 'ValueError: planted'}")


def test_no_runs_is_one_line(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "holds no runs" in capsys.readouterr().err
    write_run(tmp_path / "run", failed("v"))
    assert main([str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_page_that_cannot_be_written_is_code_two(runs, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    assert main([str(runs), "--html", str(runs / "nowhere" / "page.html")]) == 2
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1), "refused first"
    monkeypatch.setattr(render, "write_text", full)
    assert main([str(runs), "--html", str(runs / "page.html")]) == 2
    printed = capsys.readouterr()
    assert "2026-01-03" in printed.out
    assert "No space left on device" in printed.err
    assert not (runs / "page.html").exists()


def sweep_of(folder, jobs, *, when="2026-01-01", **records):
    """Write a sweep with a run of one cell for each job: its overrides, and the median of its windows in ms."""
    folder.mkdir()
    planned = []
    for number, (words, p50) in enumerate(jobs.items()):
        planned.append(SweepJob(number=number, folder=str(number), overrides=tuple(words.split())))
        record = cell("compile", noisy(p50, seed=number), **records)
        write_run(folder / str(number), record, environment=dated(f"{when}T00:00:0{number}+00:00"))
    plan = Sweep(target="generic_forward", launcher="local", began=when, argv=(), jobs=tuple(planned))
    write_sweep(folder, plan)
    return folder


def test_the_runs_of_sweeps_are_points_of_a_history(tmp_path):
    jobs = {"component.net.inputs.frames=1 seed=0": 4.0, "component.net.inputs.frames=2 seed=0": 8.0}
    first = sweep_of(tmp_path / "one", jobs)
    second = sweep_of(tmp_path / "two", {key: 2.0 * (place + 1) for place, key in enumerate(jobs)}, when="2026-02-01")
    history = read_history(first, second)
    assert sorted(title.rpartition(" · ")[2] for title in history) == ["frames=1", "frames=2"]
    for title, series in history.items():
        assert [point.run for point in series] == [f"{name}/{int(title[-1]) - 1}" for name in ("one", "two")]
        assert series[1].vs_first.value == pytest.approx(2, rel=0.02)


def test_what_changes_the_recipe_stands_behind_the_variant_and_a_wrong_run_is_no_point(tmp_path):
    jobs = {"variant.compile.mode=fast variant.other.x=1": 4.0, "variant.compile.mode=slow variant.other.x=2": 8.0}
    good, bad = sweep_of(tmp_path / "good", jobs), sweep_of(tmp_path / "bad", {"seed=0": 1.0}, parity=WRONG)
    ((series),) = read_history(good, bad).values()
    points = [f"{point.run}: {point.variant}" for point in series]
    assert points == ["good/0: compile, mode=fast", "good/1: compile, mode=slow"]
