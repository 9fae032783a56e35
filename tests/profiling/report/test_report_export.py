"""The formats for other programs hold the numbers of the records, and say why a cell has none."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from hostile import ALL, hostile_records
from report_records import build, build_loop, clocks, frame_loop, in_turns, run_data

from profiling.report.export import as_csv, as_json, as_junit
from profiling.report.run_data import RunData
from profiling.results.record import Record

SKIPPED = build("fx", status="skipped", reason="no CUDA device")


def cells(*records: Record) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_csv(run_data(*records)))))


def test_json_holds_the_rows_of_the_answer_and_where_the_records_are(three: tuple[Record, ...]) -> None:
    content = json.loads(as_json(run_data(*three, SKIPPED, build_loop("cuda_graph"))))
    call, loop = content["answer"]
    assert (call["fastest_correct"], call["p50_ms"], call["holds"]) == ("compile", 2.5, "≥ 120 FPS")
    assert (call["rates"]["60"]["answer"], call["rates"]["60"]["late"]) == ("yes", 0)
    assert (loop["component"], loop["p50_ms"], loop["holds"]) == ("realtime", 9.0, "60 FPS")
    assert [(cell["variant"], cell["status"]) for cell in content["not_ok"]] == [
        ("cuda_graph", "failed"),
        ("fx", "skipped"),
    ]
    assert content["records"] == "results.jsonl"


def test_csv_has_a_row_for_each_cell_with_units_in_the_headers(three: tuple[Record, ...]) -> None:
    baseline, fast, wrong, loop = cells(*three, build_loop("cuda_graph"))
    assert (fast["p50_ms"], fast["p99_ms"], fast["max_ms"], fast["prepare_s"]) == ("2.5", "2.6", "2.7", "28.0")
    numbers = [float(fast[name]) for name in ("p50_low_ms", "p50_high_ms", "speedup", "speedup_low", "speedup_high")]
    assert numbers == pytest.approx([2.5, 2.5, 11.48, 11.19, 11.78], rel=1e-3)
    assert fast["vs_baseline"] == "faster"
    assert (baseline["speedup"], wrong["speedup"]) == ("", ""), "no speedup against itself, none of a wrong variant"
    _, few = cells(in_turns("baseline", 20.0, windows=3), in_turns("compile", 2.0, windows=3))
    assert (few["vs_baseline"], few["speedup"]) == ("undecided", ""), (
        "no estimate without an interval, as on the screen"
    )
    assert (wrong["status"], wrong["reason"], wrong["holds"]) == ("failed", "parity: error 1.2", "")
    assert (loop["target"], loop["p50_ms"], loop["holds"]) == ("realtime", "9.0", "60 FPS")


def test_csv_says_what_was_measured_on_what() -> None:
    environment = {"device": {"type": "cuda", "name": "GPU"}, "user_git": {"revision": "a" * 40, "dirty": True}}
    data = run_data(build("baseline", 2.5), build("fx", status="skipped", reason="why"), environment=environment)
    rows = list(csv.DictReader(io.StringIO(as_csv(data))))
    assert [(row["device"], row["revision"], row["dtype"]) for row in rows] == [("GPU", "aaaaaaa+", "bfloat16")] * 2
    assert [row["mean_ms"] for row in rows] == ["2.5", ""]
    assert cells(build("baseline", 2.5))[0]["device"] == "cuda:0", "where the environment is not known"


def test_junit_counts_failures_and_gives_their_reasons(three: tuple[Record, ...]) -> None:
    invalid = build("other", 1.0, status="invalid", reason="recompiled in the timed window")
    lie = build("lie", 1.0, parity={"reference": "x", "passed": False})
    suite = ElementTree.fromstring(as_junit(run_data(*three, invalid, lie, SKIPPED))).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("6", "3", "1")
    failures = {
        f"{case.get('classname')}.{case.get('name')}": (failure.get("type"), failure.get("message"))
        for case in suite
        if (failure := case.find("failure")) is not None
    }
    assert failures == {
        "world_model.cuda_graph": ("failed", "parity: error 1.2"),
        "world_model.other": ("invalid", "recompiled in the timed window"),
        "world_model.lie": ("parity failed", "the parity check failed"),
    }
    times = {case.get("name"): case.get("time") for case in suite if case.get("time") is not None}
    assert times == {"baseline": "0.028700000", "compile": "0.002500000"}, "in seconds, of what counts"
    assert suite.get("time") == "0.031200000"
    skipped = suite.find("testcase[@name='fx']/skipped")
    assert skipped is not None
    assert skipped.get("message") == "no CUDA device"


@pytest.mark.parametrize("export", [as_json, as_csv, as_junit])
def test_names_that_look_like_code_leave_each_format_readable(export: Callable[[RunData], str]) -> None:
    text = export(run_data(*hostile_records(build, frame_loop())))
    if export is as_json:
        assert len(json.loads(text)["answer"]) > 1
    elif export is as_csv:
        assert len({len(row) for row in csv.reader(io.StringIO(text))}) == 1
    else:
        assert len(list(ElementTree.fromstring(text).iter("testcase"))) > len(ALL) // 2


def test_few_samples_have_a_longest_and_no_p99() -> None:
    few, enough = (build("baseline", 5.0, metrics=clocks(5.0, n=n, p99=8.2, max=40.0)) for n in (99, 100))
    assert [cells(each)[0]["p99_ms"] for each in (few, enough)] == ["", "8.2"]
    answers = [json.loads(as_json(run_data(each)))["answer"][0] for each in (few, enough)]
    assert [(each["p99_ms"], each["max_ms"]) for each in answers] == [(None, 40.0), (8.2, 40.0)]
