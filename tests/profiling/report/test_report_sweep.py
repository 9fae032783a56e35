"""The report over a sweep: the answer, cells and jobs; of sweeps whose numbers are known."""

import csv
import io
import json
import os
import socket

import pytest
from hostile import ALL, check_only_text
from msgspec.structs import replace
from planted_sweep import H100, Job, cell, pair, plant, turns
from report_records import build_loop, clocks, frame_loop, titled

from profiling.report import sweep
from profiling.report import table as table_module
from profiling.report.__main__ import main
from profiling.report.sweep import load_sweep, sweep_report
from profiling.results.record import NOT_ENDED, Record


def sections(folder):
    return {section.key: section for section in sweep_report(load_sweep(folder)).sections}


def table(folder, key):
    section = sections(folder)[key]
    return titled(section)[section.title]


def only(folder):
    (found,) = load_sweep(folder).answers
    return found


@pytest.fixture
def grid(tmp_path):
    """Two dtypes × two frame counts × two components; float16 halves the time of frames, whose number doubles it."""
    jobs = []
    for dtype, factor in (("bfloat16", 1.0), ("float16", 0.5)):
        for frames in (1, 2):
            world, audio = pair("world", 8 * factor * frames, 4 * factor * frames), pair("audio", 20.0, 10.0)
            jobs.append(Job(f"seed=0 dtype={dtype} component.world.inputs.frames={frames}", (*world, *audio)))
    return plant(tmp_path / "sweep", *jobs)


def test_all_cells_have_the_overrides_that_differ_as_columns(grid):
    found = table(grid, "cells")
    assert [tuple(row.values())[:5] for row in found[:4]] == [
        ("0", "bfloat16", "1", "world", "baseline"),
        ("0", "bfloat16", "1", "world", "compile"),
        ("0", "bfloat16", "–", "audio", "baseline"),
        ("0", "bfloat16", "–", "audio", "compile"),
    ]
    times = [row["p50 ms"].split()[0] for row in found if row["component"] == "world"]
    assert times == ["8.000", "4.000", "16.00", "8.000", "4.000", "2.000", "8.000", "4.000"]
    assert [row["vs baseline"].split()[0] for row in found[:2]] == ["1.00×", "2.00×"]
    assert not any("seed" in header for header in found[0])


def test_the_fastest_recipe_of_each_work(grid):
    shown = ("component", "fastest correct", "p50 ms", "vs baseline", "jobs")
    assert [[row[name].split(" ±")[0] for name in shown] for row in table(grid, "answer")] == [
        ["world (frames=1)", "compile, dtype=float16", "2.000", "2.00×", "2"],
        ["world (frames=2)", "compile, dtype=float16", "4.000", "2.00×", "3"],
        ["audio", "compile, dtype=bfloat16", "10.00", "2.00×", "2 jobs"],
    ]
    (line,) = sections(grid)["answer"].lines
    assert line.startswith("audio: undecided: whether compile, dtype=float16 is as fast")


def test_cells_of_two_jobs_are_judged_by_all_their_windows(tmp_path):
    """Two runs may differ by 1.5%; others may explain 10%, and not that it takes ten times as long."""
    known = ((4.4, 0.0, "slower"), (4.06, 0.0, "undecided"), (4.4, 0.5, "undecided"), (40.0, 0.5, "slower"))
    for ms, taken, answer in known:
        slow, fast = cell("net", "compile", ms, turns=turns(ms, taken=taken)), pair("net", 50.0, 4.0)
        jobs = Job("dtype=bfloat16", fast), Job("dtype=float16", (slow,))
        ranking = only(plant(tmp_path / f"{ms} {taken}", *jobs)).ranking
        assert (ranking.leader, ranking.answers["compile, dtype=float16"]) == ("compile, dtype=bfloat16", answer)


def test_cells_that_took_turns_in_each_job_are_compared_in_turns(tmp_path):
    """The second host is 30% slower, which hides 5% between jobs, and not in turns."""
    jobs = [Job(f"seed={i}", pair("net", 4.2 * slow, 4.0 * slow)) for i, slow in enumerate((1.0, 1.3))]
    folder = plant(tmp_path / "s", *jobs)
    ranking = only(folder).ranking
    assert (ranking.leader, ranking.answers) == ("compile", {"baseline": "slower"})
    assert ranking.pairs["baseline"].in_turns
    assert ranking.pairs["baseline"].ratio == pytest.approx(1.05)
    (row,) = table(folder, "answer")
    assert row["vs baseline"].startswith("1.05× ±")


def test_other_work_and_other_devices_are_never_compared(tmp_path):
    jobs = [Job(f"component.net.inputs.batch={n}", pair("net", 2.0 * n, 1.0 * n)) for n in (1, 2)]
    work = load_sweep(plant(tmp_path / "work", *jobs)).answers
    assert [(each.work["component.net.inputs.batch"], len(each.cells)) for each in work] == [("1", 2), ("2", 2)]
    on_h100 = Job("dtype=float16", pair("net", 4.0, 2.0), device=H100)
    unknown = [Job(f"dtype={dtype}", pair("net", 8.0, ms), device={}) for dtype, ms in (("float16", 5), ("float32", 7))]
    folder = plant(tmp_path / "devices", Job("dtype=float16", pair("net", 8.0, 4.0)), on_h100, *unknown)
    assert [(row["device"], row["p50 ms"].split()[0], row["jobs"]) for row in table(folder, "answer")] == [
        ("NVIDIA H200", "4.000", "0"),
        ("NVIDIA H100", "2.000", "1"),
        *(("–", "5.000", "2"), ("–", "7.000", "3")),  # those that are not known may be of several kinds
    ]
    folder = plant(tmp_path / "cores", *(Job(f"seed={i}", pair("net", 8, 4), device={"type": "cpu"}) for i in (0, 1)))
    environment = folder / "1" / "environment.json"
    environment.write_text(environment.read_text().replace('"cores": 8', '"cores": 1'))
    assert sweep_report(load_sweep(folder)).heading[1] == "CPU · 8 cores · CPU · 1 core"


def test_an_option_of_one_variant_says_nothing_of_the_others(tmp_path):
    jobs = [Job(f"variant.compile.mode={mode}", pair("net", 8.0, ms)) for mode, ms in (("default", 4.0), ("fast", 3.0))]
    found = only(plant(tmp_path / "s", *jobs))
    assert set(found.recipes) == {"baseline", "compile, mode=default", "compile, mode=fast"}
    assert len(found.recipes["baseline"]) == 2
    assert found.ranking.leader == "compile, mode=fast"


def test_repetitions_are_placements_of_one_recipe(tmp_path):
    times = ((13.0, 7.0), (17.0, 7.1), (14.0, 7.01))
    folder = plant(tmp_path / "s", *(Job(f"seed={i}", pair("net", *each)) for i, each in enumerate(times)))
    found = only(folder).p50
    assert (found.value, found.low, found.high) == pytest.approx((7.01, 6.97, 7.10), abs=0.005), "over processes"
    (row,) = table(folder, "answer")
    assert (row["fastest correct"], row["jobs"], row["p50 ms"]) == ("compile", "3 jobs", "7.010 ±1.3%")


def test_conditions_are_facts_with_a_number(tmp_path):
    def busy(share, mhz):
        timed = clocks(4.0)
        timed["latency"] |= {"cpu_lost_share": share, "sm_clock_median_mhz": mhz}
        same = cell("net", "cuda_graph", 4.004, sm_clock=mhz)
        return cell("net", "baseline", 8.0, sm_clock=mhz), cell("net", "compile", 4.0, metrics=timed), same

    folder = plant(tmp_path / "s", Job("seed=0", busy(0.38, 1980.0)), Job("seed=1", busy(0.0, 1755.0)))
    assert sections(folder)["answer"].lines == (
        "net: same within 1%: cuda_graph.",
        "net: compile, job 0: 38% of the CPU went to other processes.",
        "net: SM clocks of its jobs: 1755 to 1980 MHz while timed.",
    )
    assert table(folder, "cells")[1]["conditions"] == "38% of the CPU went to other processes"


def test_a_wrong_cell_is_named_and_never_the_fastest(tmp_path):
    wrong = cell("net", "compile", 1.0, status="failed", reason="out of memory")
    folder = plant(tmp_path / "s", *(Job(f"seed={i}", (cell("net", "baseline", 8.0), wrong)) for i in (0, 1)))
    log = folder / "0" / "cells" / "net.compile.log"
    log.parent.mkdir()
    log.touch()
    assert only(folder).ranking.leader == "baseline"
    found = [row for row in table(folder, "cells") if row["variant"] == "compile"]
    assert {(row["p50 ms"][:2], row["vs baseline"], row["status"]) for row in found} == {("~~", "–", "failed")}
    assert sections(folder)["failures"].lines == (
        "job 0 net.compile and job 1 net.compile failed: out of memory (log: 0/cells/net.compile.log)",
    )


def test_where_nothing_may_be_compared_the_answer_says_why(tmp_path):
    untimed = cell("net", "baseline", 8.0, metrics={}, turns=None)
    failed = cell("net", "baseline", 8.0, status="failed", reason="out of memory")
    for record, remark in ((untimed, "no latency was measured"), (failed, "no correct result")):
        folder = plant(tmp_path / remark, Job("seed=0", [record]))
        assert [row["fastest correct"] for row in table(folder, "answer")] == ["none"]
        assert sections(folder)["answer"].lines == (f"net: {remark}.",)


def test_a_sweep_that_runs_shows_what_there_is_and_each_job_that_is_not_done(tmp_path):
    waiting = plant(tmp_path / "waiting", Job("seed=0", state="waiting"))
    assert "No cell has a time yet that can be compared." in sweep_report(load_sweep(waiting)).console()
    died = Job("seed=1", state="died", facts={"exit_code": -9, "reason": "killed by signal 9", "tries": 2})
    interrupted = Job("seed=2", pair("net", 8.0, 4.0), state="waiting", facts={"reason": "interrupted"})
    lost, waiting = Job("seed=3", pair("net", 8.0, 4.0)), Job("seed=4", state="waiting")
    folder = plant(tmp_path / "s", Job("seed=0", pair("net", 8.0, 4.0)), died, interrupted, lost, waiting)
    (folder / "3" / "job.json").write_text('{"number": 3')
    assert "5 jobs: 1 done, 1 died, 3 waiting" in sweep_report(load_sweep(folder)).heading[0]
    damaged = "its job.json is damaged: resume= runs what it lacks"
    assert sections(folder)["jobs"].lines == (
        "job 1 (seed=1) died: killed by signal 9",
        "job 2 (seed=2) waiting: interrupted",
        f"job 3 (seed=3) waiting: {damaged}",
    )
    assert [(row["seed"], row["state"], row["reason"]) for row in table(folder, "jobs")] == [
        ("0", "done", "–"),
        ("1", "died", "killed by signal 9"),
        ("2", "waiting", "interrupted"),
        ("3", "waiting", damaged),
        ("4", "waiting", "–"),
    ]


def not_ended(variant="baseline"):
    return cell("net", variant, 8.0, status="failed", reason=NOT_ENDED, metrics={}, parameters=None, turns=None)


def test_cells_that_still_run_have_not_failed(tmp_path):
    def alive(seed, *records):
        return Job(f"seed={seed}", records, state="running", facts={"host": socket.gethostname(), "pid": os.getpid()})

    own = pair("net", 8.0, 4.0)
    folder = plant(tmp_path / "s", Job("seed=0", own), alive(1, own[0], not_ended("compile")), alive(2, not_ended()))
    assert "1 done, 2 running" in sweep_report(load_sweep(folder)).heading[0]
    ended = [f"{row['job']} {row['variant']}" for row in table(folder, "cells")]
    assert ended == ["0 baseline", "0 compile", "1 baseline"]
    assert not sections(folder)["failures"]


def test_cells_that_failed_before_anything_was_known_of_them_are_no_other_work(tmp_path):
    died = Job("seed=0", (not_ended(),), state="died")
    folder = plant(tmp_path / "s", died, Job("seed=1", pair("net", 8.0, 4.0)))
    (row,) = table(folder, "answer")
    assert (row["fastest correct"], row["jobs"]) == ("compile", "1")
    assert sections(folder)["failures"].lines == (f"job 0 net.baseline failed: {NOT_ENDED}",)


def test_loops_of_frames_are_compared_by_their_frames_and_have_no_speedup(tmp_path):
    def loop(name, ms):
        windows = [ms * (1 + 5e-4 * (-1) ** n) for n in range(12)]
        return Job(f"loop.schedule={name}", (build_loop("baseline", frame_loop(ms, windows_ms=windows)),))

    folder = plant(tmp_path / "s", loop("a", 30.0), loop("b", 8.0))
    ranking = only(folder).ranking
    assert (ranking.leader, ranking.answers) == ("baseline, schedule=b", {"baseline, schedule=a": "slower"})
    assert "vs baseline" not in table(folder, "answer")[0]


def test_the_console_shows_the_first_rows_and_files_more(grid, monkeypatch):
    monkeypatch.setattr(sweep, "_CONSOLE", 3)
    text = sweep_report(load_sweep(grid)).written(grid).text
    assert "13 of 16 rows are left out here." in text
    assert "16.00" not in text
    assert "16.00" in (grid / "report.md").read_text()
    monkeypatch.setattr(table_module, "MOST_ROWS", 4)
    (cells,) = sections(grid)["cells"].tables
    assert len(cells.shown()[1]) == 4
    assert cells.notes_at() == ["12 of 16 rows are left out here."]


def test_the_command_writes_both_files_and_links_to_the_runs(grid, capsys):
    (grid / "2" / "report.html").touch()
    (grid / "3" / "job.log").touch()
    assert main([str(grid)]) == 0
    assert str(grid / "report.html") in capsys.readouterr().out
    page = (grid / "report.html").read_text(encoding="utf-8")
    links = ("2/report.html", "3/job.log", "1/report.html")
    assert [f'href="{link}"' in page for link in links] == [True, True, False]
    for found in load_sweep(grid).cells:
        assert not any(isinstance(value, Record) for value in vars(found).values()), "samples are dropped once judged"


def test_as_csv_and_json(grid, capsys):
    assert main([str(grid), "--format", "csv"]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(found) == 16
    assert [float(row["p50_ms"]) for row in found if row["job"] == "3" and row["component"] == "world"] == [8.0, 4.0]
    assert {row["dtype"] for row in found} == {"bfloat16", "float16"}
    assert main([str(grid), "--format", "json"]) == 0
    answers = json.loads(capsys.readouterr().out)["answer"]
    assert [(each["fastest_correct"], each["undecided"], each["jobs"]) for each in answers] == [
        ("compile, dtype=float16", [], [2]),
        ("compile, dtype=float16", [], [3]),
        ("compile, dtype=bfloat16", ["compile, dtype=float16"], [0, 1]),
    ]
    assert (answers[0]["p50_ms"], answers[0]["speedup"]) == (2.0, pytest.approx(2.0))
    assert answers[0]["speedup_low"] < 2 < answers[0]["speedup_high"]
    assert not (grid / "report.md").exists()


def test_the_interval_on_the_screen_is_that_of_the_ranking(tmp_path):
    """A baseline that is 3% slower: a pair alone claims it; corrected for six cells it is undecided."""
    cells = [cell("world", "baseline", 2.06), *(cell("world", name, 2.0) for name in ("a", "b", "c", "d", "e"))]
    noisy = [replace(each, turns=replace(each.turns, spread=replace(each.turns.spread, std=0.0088))) for each in cells]
    answer = only(plant(tmp_path / "s", Job("seed=1", noisy)))
    assert "baseline" in answer.ranking.named("undecided")
    assert answer.vs_baseline.low < 1 < answer.vs_baseline.high
    assert (answer.vs_baseline.low, answer.vs_baseline.high) == answer.speedup.interval()


def test_names_from_outside_stay_text_on_the_page_and_long_ones_do_not_widen_tables(tmp_path):
    jobs = [
        Job(f"dtype={text.replace(' ', '_')} n={n}", pair(text, 2.0 * n, 1.0 * n), facts={"reason": text, "host": text})
        for text in ALL
        for n in (1, 2)
    ]
    folder = plant(tmp_path / "s", *jobs)
    sweep_report(load_sweep(folder)).written(folder)
    check_only_text((tmp_path / "s" / "report.html").read_text(encoding="utf-8"))
    jobs = [Job(f"component.net.checkpoint={'/folder' * 40}/{n}.pt", pair("net", 8.0, 4.0)) for n in (1, 2)]
    text = sweep_report(load_sweep(plant(tmp_path / "long", *jobs))).console()
    assert max(map(len, text.splitlines()[:-1])) <= 100
