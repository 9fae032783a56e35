"""The report over a sweep: pivot, best recipe, devices, charts, jobs; of sweeps whose numbers are known."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hostile import ALL, check_only_text
from msgspec.structs import replace
from planted_sweep import H100, Job, ceilings, cell, pair, plant
from report_records import build_loop, clocks, faster, frame_loop, rows, traces

from profiling.report import sweep_ranking
from profiling.report.__main__ import main
from profiling.report.page import Section
from profiling.report.sweep import heading_lines, write_sweep_report
from profiling.report.sweep_data import Contest, load_sweep
from profiling.report.sweep_sections import sections_of
from profiling.report.table import AnyTable
from profiling.results.record import NOT_ENDED, Record

BEST, PIVOT = "Best recipe by component", "p50 by override, component and variant"
REPEATED = "Cells that several jobs measured"


def sections(folder: Path) -> dict[str, Section]:
    return {section.key: section for section in sections_of(load_sweep(folder))}


def table(section: Section, title: str) -> list[dict[str, str]]:
    return rows(next(each for each in section.tables if each.title == title))


def contest(folder: Path, **work: str) -> Contest:
    (found,) = [each for each in load_sweep(folder).contests if dict(each.work) == work]
    return found


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two dtypes × two frame counts × two components; float16 halves the time of frames, whose number doubles it."""
    jobs = []
    for dtype, factor in (("bfloat16", 1.0), ("float16", 0.5)):
        for frames in (1, 2):
            world, audio = pair("world", 8 * factor * frames, 4 * factor * frames), pair("audio", 20.0, 10.0)
            jobs.append(Job(f"seed=0 dtype={dtype} component.world.inputs.frames={frames}", (*world, *audio)))
    return plant(tmp_path / "sweep", *jobs)


def test_the_pivot_has_the_overrides_that_differ_as_columns(grid: Path) -> None:
    found = table(sections(grid)["pivot"], PIVOT)
    times = [
        (row["job"], row["dtype"], row["frames"], row["component"], row["baseline ms"], row["compile ms"])
        for row in found
    ]
    assert times == [
        ("0", "bfloat16", "1", "world", "8.000", "4.000"),
        ("0", "bfloat16", "–", "audio", "20.00", "10.00"),
        ("1", "bfloat16", "2", "world", "16.00", "8.000"),
        ("1", "bfloat16", "–", "audio", "20.00", "10.00"),
        ("2", "float16", "1", "world", "4.000", "2.000"),
        ("2", "float16", "–", "audio", "20.00", "10.00"),
        ("3", "float16", "2", "world", "8.000", "4.000"),
        ("3", "float16", "–", "audio", "20.00", "10.00"),
    ]
    assert not any("seed" in header for header in found[0])
    assert {row["fastest correct"] for row in found} == {"compile"}


def test_the_best_recipe_of_each_work(grid: Path) -> None:
    found = table(sections(grid)["best"], BEST)
    facts = [[row[name] for name in ("component", "frames", "fastest correct", "dtype", "p50 ms")] for row in found]
    assert facts == [
        ["world", "1", "compile", "float16", "2.000"],
        ["world", "2", "compile", "float16", "4.000"],
        ["audio", "–", "cannot tell (compile)", "bfloat16", "10.00"],  # the dtypes take equally long
    ]
    assert [row["of roofline"] for row in found] == ["50%", "25%", "10%"]
    assert "of roofline:" in sections(grid)["best"].tables[0].notes[0]
    assert [row["speedup in its run"] for row in found] == ["2.00×", "2.00×", "–"]
    (doubt,) = sections(grid)["best"].lines
    assert doubt.startswith("! within noise (audio): compile, dtype=bfloat16 (job")
    assert "2.0%" in doubt


@pytest.mark.parametrize(
    ("second", "more", "mark"),
    [
        pytest.param(4.2, {}, None, id="5% apart"),
        pytest.param(4.06, {}, "within noise", id="1.5% apart"),
        pytest.param(4.4, {"sm_clock": 1700.0}, "clocks differ", id="SM clocks"),
        pytest.param(4.2, {"ceilings": 6.0}, "hosts differ", id="slower host"),
        pytest.param(5.2, {"ceilings": 6.0}, None, id="slower than the host explains"),
        pytest.param(4.2, {"lost": 0.5}, "disturbed", id="other processes"),
        pytest.param(4.2, {"wide": True}, "within noise", id="intervals meet"),
        pytest.param(400.0, {"short": True}, "few samples", id="no interval"),
    ],
)
def test_cells_of_two_runs_are_ranked_beyond_what_two_runs_differ_by(
    tmp_path: Path, second: float, more: dict[str, Any], mark: str | None
) -> None:
    clock = more.get("sm_clock")
    one = pair("net", 8.0, 4.0, sm_clock=1980.0 if clock else None)
    two = list(pair("net", 9.0, second, sm_clock=clock))
    if "lost" in more:
        two = [with_lost(record, more["lost"]) for record in two]
    if "wide" in more:
        two = [with_interval(record, 0.2) for record in two]
    if "short" in more:
        two = [with_interval(record, None) for record in two]
    slow = ceilings(launch_us=more.get("ceilings", 5.0))
    folder = plant(tmp_path / "s", Job("dtype=bfloat16", one), Job("dtype=float16", two, ceilings=slow))
    found = contest(folder)
    assert found.fastest is not None
    assert found.fastest.recipe == ("compile", "dtype=bfloat16")
    assert found.is_ranked == (mark is None)
    assert [doubt.mark for doubt in found.doubts] == ([] if mark is None else [mark])


def with_lost(record: Any, share: float) -> Any:
    latency = replace(record.metrics.latency, cpu_lost_share=share)
    return replace(record, metrics=replace(record.metrics, latency=latency))


def with_interval(record: Any, half: float | None) -> Any:
    wall = record.metrics.wall_ms
    ends = None if half is None else (wall.p50 - half, wall.p50 + half)
    return replace(record, metrics=replace(record.metrics, wall_ms=replace(wall, ci95=ends)))


def test_other_work_is_never_ranked(tmp_path: Path) -> None:
    jobs = [Job(f"component.net.inputs.batch={n}", pair("net", 2.0 * n, 1.0 * n)) for n in (1, 2)]
    found = load_sweep(plant(tmp_path / "s", *jobs)).contests
    assert [(each.work["component.net.inputs.batch"], len(each.cells)) for each in found] == [("1", 2), ("2", 2)]
    assert all(each.is_ranked for each in found)


def test_an_option_of_one_variant_says_nothing_of_the_others(tmp_path: Path) -> None:
    jobs = [Job(f"variant.compile.mode={mode}", pair("net", 8.0, ms)) for mode, ms in (("default", 4.0), ("fast", 3.0))]
    found = contest(plant(tmp_path / "s", *jobs))
    assert {cell.recipe for cell in found.cells} == {
        ("baseline",),
        ("compile", "mode=default"),
        ("compile", "mode=fast"),
    }
    assert found.is_ranked
    assert found.fastest is not None
    assert found.fastest.recipe == ("compile", "mode=fast")


def test_a_recipe_that_was_measured_again_is_ranked_by_its_slowest_and_shown_by_its_median(tmp_path: Path) -> None:
    def jobs(*times: float) -> list[Job]:
        return [Job(f"dtype=float16 seed={i}", pair("net", 9.0, ms)) for i, ms in enumerate(times)]

    rival = Job("dtype=bfloat16 seed=0", pair("net", 9.0, 4.5))
    steady = contest(plant(tmp_path / "steady", *jobs(4.0, 4.1, 4.2), rival))
    assert steady.fastest is not None
    assert steady.fastest.record.median_ms == 4.1
    assert steady.is_ranked
    unsteady = contest(plant(tmp_path / "unsteady", *jobs(4.0, 4.1, 4.6), rival))
    assert [doubt.mark for doubt in unsteady.doubts] == ["within noise", "jobs differ"]


def test_repetitions_are_shown_by_their_median_and_range(tmp_path: Path) -> None:
    times = ((13.0, 7.0), (17.0, 7.07), (14.0, 7.01))
    folder = plant(tmp_path / "s", *(Job(f"seed={i}", pair("net", *each)) for i, each in enumerate(times)))
    found = sections(folder)
    repeated = table(found["repeated"], REPEATED)
    assert [(row["variant"], row["jobs"], row["p50 ms"], row["range"]) for row in repeated] == [
        ("baseline", "3", "14.00 [13.00, 17.00]", "29%"),
        ("compile", "3", "7.010 [7.000, 7.070]", "1.0%"),
    ]
    assert repeated[1]["speedup in its run"] == "2.00× [1.86, 2.40]"
    assert [row["conditions"] for row in repeated] == ["! jobs differ", "–"]
    (row,) = table(found["best"], BEST)
    assert (row["jobs"], row["p50 ms"], row["job"]) == ("3", "7.010 [7.000, 7.070]", "2")
    assert not found["best"].lines
    (pivot,) = found["pivot"].tables
    assert pivot.depth == "report"


def test_a_cell_of_one_job_is_no_repetition(grid: Path) -> None:
    repeated = table(sections(grid)["repeated"], REPEATED)
    assert {row["component"] for row in repeated} == {"audio"}


def test_repetitions_that_differ_by_more_than_equal_code_are_doubted(tmp_path: Path) -> None:
    jobs = (Job(f"seed={i}", (cell("net", "baseline", ms),)) for i, ms in enumerate((0.6, 0.7, 37.0)))
    (line,) = sections(plant(tmp_path / "s", *jobs))["best"].lines
    assert line.startswith("! jobs differ (net): p50 of baseline is 0.6000 to 37.00 ms in 3 jobs")


def test_a_doubt_names_the_job_where_several_rows_have_its_component(tmp_path: Path) -> None:
    def near(n: int) -> tuple[Record, ...]:
        return (*pair("net", 8.0 * n, 4.0 * n), cell("net", "cuda_graph", 4.02 * n))

    jobs = [Job(f"component.net.inputs.batch={n}", near(n)) for n in (1, 2)]
    heads = [line.partition(":")[0] for line in sections(plant(tmp_path / "two", *jobs))["best"].lines]
    assert len(heads) == 1
    assert heads[0].endswith("(net in jobs 0 and 1)")
    (line,) = sections(plant(tmp_path / "one", jobs[0]))["best"].lines
    assert line.partition(":")[0].endswith("(net)")


def test_values_as_long_as_a_line_do_not_widen_the_tables(tmp_path: Path) -> None:
    jobs = [Job(f"component.net.checkpoint={'/folder' * 40}/{n}.pt", pair("net", 8.0, 4.0)) for n in (1, 2)]
    text = write_sweep_report(plant(tmp_path / "s", *jobs))
    assert max(map(len, text.splitlines()[:-2])) <= 100


def test_a_p99_that_is_not_shown_is_no_doubt(tmp_path: Path) -> None:
    metrics = clocks(4.0, half=0.004, n=98)
    few = (cell("net", "baseline", 8.0), cell("net", "compile", 4.0, metrics=metrics, speedup=faster(2.0)))
    assert few[1].metrics.wall_ms is not None
    assert few[1].metrics.wall_ms.percentile("p99") is None
    found = sections(plant(tmp_path / "s", Job("seed=0", few)))
    assert not found["best"].lines
    assert "conditions" not in table(found["pivot"], PIVOT)[0]


def test_of_roofline_and_ceilings_are_explained_where_there_are_some(tmp_path: Path) -> None:
    without = [cell("net", "baseline", 8.0, roofline=None)]
    folder = plant(tmp_path / "s", Job("seed=0", without, ceilings={}))
    environment = folder / "0" / "environment.json"
    environment.write_text(json.dumps(json.loads(environment.read_text()) | {"ceilings": None}))
    text = write_sweep_report(folder)
    assert "of roofline" not in text
    assert "Ceilings" not in text


def test_what_a_run_cannot_tell_the_sweep_cannot_either(tmp_path: Path) -> None:
    near = (*pair("net", 8.0, 4.0), cell("net", "cuda_graph", 4.02))
    far = pair("net", 9.0, 6.0)
    found = contest(plant(tmp_path / "s", Job("dtype=bfloat16", near), Job("dtype=float16", far)))
    assert not found.is_ranked
    assert "not ranked" in [doubt.mark for doubt in found.doubts]


def test_a_variant_that_wins_elsewhere_and_not_in_each_of_its_runs_is_not_the_fastest(tmp_path: Path) -> None:
    one = (*pair("net", 8.0, 4.0), cell("net", "cuda_graph", 5.0))
    two = (*pair("net", 8.0, 4.4), cell("net", "cuda_graph", 4.2))
    found = contest(plant(tmp_path / "s", Job("seed=0", one), Job("seed=1", two)))
    assert next(doubt.mark for doubt in found.doubts) == "not in every job"


def test_devices_stand_side_by_side_and_only_shares_of_the_roofline_are_ranked(tmp_path: Path) -> None:
    slower = {"copy_bytes_per_s": 2.1e12}
    folder = plant(
        tmp_path / "s",
        Job("seed=0", pair("net", 8.0, 4.0, sm_clock=1980.0)),
        Job("seed=1", pair("net", 4.0, 2.0, sm_clock=1755.0), device=H100, ceilings=ceilings(**slower)),
    )
    found = load_sweep(folder).contests
    assert [(each.device, each.is_ranked, len(each.cells)) for each in found] == [
        ("NVIDIA H200", True, 2),
        ("NVIDIA H100", True, 2),
    ]
    (row,) = table(sections(folder)["best"], "On several kinds of device")
    assert row["NVIDIA H200: p50 ms"] == "4.000"
    assert row["NVIDIA H100: p50 ms"] == "2.000"
    assert row["NVIDIA H200: of roofline"] == "25%"
    assert row["NVIDIA H100: of roofline"] == "50%"
    assert row["nearest its roofline"] == "NVIDIA H100"
    h200, h100 = table(sections(folder)["devices"], "Devices")
    assert (h200["SM clock while timed"], h100["SM clock while timed"]) == ("1980 MHz", "1755 MHz")
    assert (h200["copy"], h100["copy"]) == ("4.20 TB/s", "2.10 TB/s")


def test_devices_that_are_not_known_may_be_of_several_kinds(tmp_path: Path) -> None:
    known = Job("dtype=float16", pair("net", 8.0, 4.0))
    unknown = [
        Job(f"dtype={name}", pair("net", 8.0, ms), device={}) for name, ms in (("float16", 5.0), ("float32", 7.0))
    ]
    found = sections(plant(tmp_path / "s", known, *unknown))
    best = table(found["best"], BEST)
    assert [(row["device"], row["p50 ms"], row["job"]) for row in best] == [
        ("NVIDIA H200", "4.000", "0"),
        ("–", "5.000", "1"),
        ("–", "7.000", "2"),
    ]
    assert [each.title for each in found["best"].tables if each] == [BEST]
    assert not found["repeated"]


def test_shares_that_ceilings_could_make_are_not_ranked(tmp_path: Path) -> None:
    jobs = [Job("seed=0", pair("net", 8.0, 4.0)), Job("seed=1", pair("net", 8.0, 4.1), device=H100)]
    (row,) = table(sections(plant(tmp_path / "s", *jobs))["best"], "On several kinds of device")
    assert row["nearest its roofline"] == "cannot tell"


def test_cpus_with_other_numbers_of_cores_are_other_devices(tmp_path: Path) -> None:
    folder = plant(tmp_path / "s", *(Job(f"seed={i}", pair("net", 8.0, 4.0), device={"type": "cpu"}) for i in (0, 1)))
    environment = folder / "1" / "environment.json"
    environment.write_text(environment.read_text().replace('"cores": 8', '"cores": 1'))
    assert load_sweep(folder).devices == ("CPU · 8 cores", "CPU · 1 core")


def test_a_wrong_cell_is_named_and_never_the_best(tmp_path: Path) -> None:
    wrong = cell("net", "compile", 1.0, status="failed", reason="out of memory")
    jobs = [Job(f"seed={i}", (cell("net", "baseline", 8.0), wrong)) for i in (0, 1)]
    folder = plant(tmp_path / "s", *jobs)
    found = contest(folder)
    assert found.fastest is not None
    assert found.fastest.record.variant == "baseline"
    assert {row["compile ms"] for row in table(sections(folder)["pivot"], PIVOT)} == {"failed"}
    (line,) = sections(folder)["failures"].lines
    assert line == "2 cells failed: out of memory (net.compile in job 0, for example)"


def test_a_sweep_that_runs_shows_what_there_is_and_each_job_that_is_not_done(tmp_path: Path) -> None:
    died = Job("seed=1", state="died", facts={"exit_code": -9, "reason": "killed by signal 9", "tries": 2})
    folder = plant(tmp_path / "s", Job("seed=0", pair("net", 8.0, 4.0)), died, Job("seed=2", state="waiting"))
    assert "3 jobs: 1 done, 1 died, 1 waiting" in heading_lines(load_sweep(folder))[0]
    jobs = sections(folder)["jobs"]
    assert jobs.lines == ("1 job of 3 did not start yet.",)
    (row,) = table(jobs, "Jobs that are not done")
    assert (row["seed"], row["state"], row["exit code"], row["reason"]) == (
        *("1", "died", "-9"),
        "killed by signal 9",
    )
    assert contest(folder).is_ranked


def test_a_job_that_was_interrupted_or_whose_state_is_lost_has_started(tmp_path: Path) -> None:
    interrupted = Job("seed=0", pair("net", 8.0, 4.0), state="waiting", facts={"reason": "interrupted"})
    folder = plant(tmp_path / "s", interrupted, Job("seed=1", pair("net", 8.0, 4.0)), Job("seed=2", state="waiting"))
    (folder / "1" / "job.json").write_text('{"number": 1')
    jobs = sections(folder)["jobs"]
    assert jobs.lines == ("1 job of 3 did not start yet.",)
    found = [(row["seed"], row["state"], row["reason"]) for row in table(jobs, "Jobs that are not done")]
    assert found == [
        ("0", "waiting", "interrupted"),
        ("1", "waiting", "its job.json is damaged: resume= runs what it lacks"),
    ]


def not_ended(variant: str = "baseline") -> Record:
    return cell("net", variant, 8.0, status="failed", reason=NOT_ENDED, metrics={}, parameters=None)


def alive(seed: int, *records: Record) -> Job:
    """A job whose process is this one."""
    return Job(f"seed={seed}", records, state="running", facts={"host": socket.gethostname(), "pid": os.getpid()})


def test_cells_that_still_run_have_not_failed(tmp_path: Path) -> None:
    own = pair("net", 8.0, 4.0)
    folder = plant(tmp_path / "s", Job("seed=0", own), alive(1, own[0], not_ended("compile")), alive(2, not_ended()))
    assert "1 done, 2 running" in heading_lines(load_sweep(folder))[0]
    assert [row["compile ms"] for row in table(sections(folder)["pivot"], PIVOT)] == ["4.000", "–"]
    assert not sections(folder)["failures"]


def test_cells_that_failed_before_anything_was_known_of_them_are_no_other_work(tmp_path: Path) -> None:
    died = Job("seed=0", (not_ended(),), state="died")
    folder = plant(tmp_path / "s", died, Job("seed=1", pair("net", 8.0, 4.0)))
    (row,) = table(sections(folder)["best"], BEST)
    assert (row["fastest correct"], row["job"]) == ("compile", "1")
    (line,) = sections(folder)["failures"].lines
    assert line == f"1 cell failed: {NOT_ENDED} (net.baseline in job 0)"


def test_before_the_first_cell_has_ended(tmp_path: Path) -> None:
    folder = plant(tmp_path / "s", Job("seed=0", state="waiting"), Job("seed=1", state="waiting"))
    assert "No cell has ended yet." in write_sweep_report(folder)
    assert "No job has measured a cell." in write_sweep_report(plant(tmp_path / "t", Job("seed=0", state="failed")))
    assert "No job has measured a time that can be compared." in write_sweep_report(
        plant(tmp_path / "u", Job("seed=0"))
    )


def test_a_cell_without_a_time_is_not_called_wrong(tmp_path: Path) -> None:
    untimed = [cell("net", "baseline", 8.0, metrics={})]
    wrong = [cell("net", "baseline", 8.0, status="failed", reason="out of memory")]
    for name, records, mark in (("a", untimed, "no latency was measured"), ("b", wrong, "no correct result")):
        folder = plant(tmp_path / name, Job("seed=0", records))
        assert [doubt.mark for doubt in contest(folder).doubts] == [mark]
        assert [row["fastest correct"] for row in table(sections(folder)["best"], BEST)] == [f"none: {mark}"]


def test_two_repetitions_have_the_median_between_them(tmp_path: Path) -> None:
    folder = plant(
        tmp_path / "s", *(Job(f"seed={i}", (cell("net", "baseline", ms),)) for i, ms in enumerate((8.0, 9.0)))
    )
    (row,) = table(sections(folder)["repeated"], REPEATED)
    assert row["p50 ms"] == "8.500 [8.000, 9.000]"


def test_charts_over_a_swept_number(grid: Path) -> None:
    (chart,) = sections(grid)["charts"].charts
    assert chart.title == "p50 over component.world.inputs.frames"
    assert [view.label for view in chart.views] == ["world · dtype=bfloat16", "world · dtype=float16"]
    drawn = traces(chart, 1)
    assert (drawn["compile"]["x"], drawn["compile"]["y"]) == ([1, 2], [2.0, 4.0])
    assert drawn["baseline"]["y"] == [4.0, 8.0]


def test_of_many_variants_the_fastest_is_shown(tmp_path: Path) -> None:
    many = [cell("net", "baseline", 9.0), *(cell("net", f"recipe_{i}", 8.0 - 0.5 * i) for i in range(10))]
    (row,) = table(sections(plant(tmp_path / "s", Job("seed=0", many), Job("seed=1")))["pivot"], PIVOT)
    assert (row["fastest correct"], row["p50 ms"]) == ("recipe_9", "3.500")
    assert "recipe_1 ms" not in row


def test_loops_of_frames_are_compared_by_their_frames(tmp_path: Path) -> None:
    jobs = [
        Job(f"loop.schedule={name}", (build_loop("baseline", frame_loop(ms)),)) for name, ms in (("a", 9.0), ("b", 8.0))
    ]
    found = contest(plant(tmp_path / "s", *jobs))
    assert found.is_ranked
    assert found.fastest is not None
    assert found.fastest.recipe == ("baseline", "schedule=b")


def test_the_page_has_a_limit(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_ranking, "_PAGE", 3)
    pivot = next(each for each in sections(grid)["pivot"].tables)
    assert len(pivot.rows) == 3
    assert any("The first 3 of 8 rows" in note and "--format csv" in note for note in pivot.notes)


def test_long_tables_are_left_to_the_files(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_ranking, "_CONSOLE", 3)
    text = write_sweep_report(grid)
    assert "8 rows in report.md" in text
    assert "16.00" not in text
    assert "16.00" in (grid / "report.md").read_text()


def test_the_command_writes_both_files_and_links_to_the_runs(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (grid / "2" / "report.html").touch()
    (grid / "3" / "job.log").touch()
    assert main([str(grid)]) == 0
    out = capsys.readouterr().out
    assert "cannot tell" in out
    assert str(grid / "report.html") in out
    page = (grid / "report.html").read_text(encoding="utf-8")
    assert 'href="2/report.html"' in page
    assert 'href="3/job.log"' in page
    assert 'href="1/report.html"' not in page
    assert "#### Best recipe" not in (grid / "report.md").read_text()


def test_as_csv_and_json(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(grid), "--format", "csv"]) == 0
    found = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(found) == 16
    assert {row["dtype"] for row in found} == {"bfloat16", "float16"}
    assert [float(row["p50 ms"]) for row in found if row["job"] == "3" and row["component"] == "world"] == [8.0, 4.0]
    assert main([str(grid), "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [(each["fastest_correct"], each["is_ranked"]) for each in content["best"]] == [
        (["compile", "dtype=float16"], True),
        (["compile", "dtype=float16"], True),
        (["compile", "dtype=bfloat16"], False),
    ]
    assert not (grid / "report.md").exists()


def test_names_from_outside_stay_text_on_the_page(tmp_path: Path) -> None:
    jobs = [
        Job(f"dtype={text.replace(' ', '_')} n={n}", pair(text, 2.0 * n, 1.0 * n), facts={"reason": text, "host": text})
        for text in ALL
        for n in (1, 2)
    ]
    folder = plant(tmp_path / "s", *jobs)
    write_sweep_report(folder)
    check_only_text((folder / "report.html").read_text(encoding="utf-8"))


def test_every_table_of_a_sweep_can_be_empty(tmp_path: Path) -> None:
    found: list[AnyTable] = [each for s in sections(plant(tmp_path / "s", Job("a=1"))).values() for each in s.tables]
    assert all(isinstance(rows(each), list) for each in found)


@pytest.mark.browser
def test_the_page_in_a_browser(show: Any, tmp_path: Path) -> None:
    jobs = [
        Job(f"dtype=a component.net.inputs.n={n} seed={n % 2}", pair("net", 2.0 * n, 1.0 * n)) for n in range(1, 31)
    ]
    folder = plant(tmp_path / "s", *jobs)
    write_sweep_report(folder)
    page = show(folder / "report.html")
    assert page.locator("#charts .chart .trace").count() > 0
    block = page.locator("#pivot .table").first
    assert block.locator("tbody tr:visible").count() == 15
    block.locator("input").fill("29.00")
    assert block.locator("tbody tr:visible").count() == 1
    block.locator("input").fill("")
    block.get_by_role("button", name="show all").click()
    assert block.locator("tbody tr:visible").count() == 30
