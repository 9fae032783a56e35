"""The formats for other programs hold the numbers of the records, and say why a cell has none."""

import csv
import io
import json
from xml.etree import ElementTree

import pytest
from hostile import ALL, hostile_records
from report_records import build, build_loop, frame_loop, in_turns, run_data

from profiling.report.export import as_csv, as_json, as_junit

SKIPPED = build("fx", status="skipped", reason="no CUDA device")


def cells(*records):
    return list(csv.DictReader(io.StringIO(as_csv(run_data(*records)))))


def test_json_holds_the_rows_of_the_answer_and_where_the_records_are(three):
    counted = build("compile", 2.5, component="counted", energy={"joules_per_frame": 1.25})
    content = json.loads(as_json(run_data(*three, SKIPPED, counted, build_loop("cuda_graph"))))
    call, energy, loop = content["answer"]
    assert (call["fastest_correct"], call["p50_ms"], call["holds"]) == ("compile", 2.5, "≥ 120 FPS")
    assert (call["rates"]["60"]["answer"], call["rates"]["60"]["late"]) == ("yes", 0)
    assert energy["joules_per_frame"] == 1.25
    assert (loop["component"], loop["p50_ms"], loop["holds"]) == ("realtime", 9.0, "60 FPS")
    states = [(cell["variant"], cell["status"]) for cell in content["cells"] if cell["status"] != "ok"]
    assert states == [("cuda_graph", "failed"), ("fx", "skipped")]
    of_csv = cells(*three, SKIPPED, counted, build_loop("cuda_graph"))
    text = [{key: "" if value is None else str(value) for key, value in each.items()} for each in content["cells"]]
    assert text == of_csv
    assert content["records"] == "results.jsonl"


def test_csv_has_a_row_for_each_cell_with_units_in_the_headers(three):
    baseline, fast, wrong, loop = cells(*three, build_loop("cuda_graph"))
    assert (fast["p50_ms"], fast["p99_ms"], fast["max_ms"], fast["prepare_s"]) == ("2.5", "2.6", "2.7", "28.0")
    numbers = [float(fast[name]) for name in ("p50_low_ms", "p50_high_ms", "speedup", "speedup_low", "speedup_high")]
    assert numbers == pytest.approx([2.5, 2.5, 11.48, 10.17, 12.96], rel=1e-3)
    assert (fast["vs_baseline"], fast["joules_per_frame"]) == ("faster", "")
    assert (fast["peak_memory_kind"], fast["peak_memory_bytes"]) == ("peak allocated", "2506")
    assert (baseline["speedup"], wrong["speedup"]) == ("", ""), "no speedup against itself, none of a wrong variant"
    assert (wrong["status"], wrong["reason"], wrong["holds"]) == ("failed", "parity: error 1.2", "")
    assert (loop["target"], loop["p50_ms"], loop["holds"]) == ("realtime", "9.0", "60 FPS")
    _, few = cells(*(in_turns(name, ms, windows=3) for name, ms in (("baseline", 20.0), ("compile", 2.0))))
    assert (few["vs_baseline"], few["speedup"]) == ("undecided", ""), "without an interval no estimate"
    for baseline, ends in ((20.0, ("11.9", "")), (0.2, ("", "0.100"))):
        _, busy = cells(in_turns("baseline", baseline, taken=0.4), in_turns("compile", 1.0 if baseline > 1 else 2.0))
        assert busy["speedup"] == ""
        assert (busy["speedup_low"][:4], busy["speedup_high"][:5]) == ends, "beside others what the screen says"


def test_csv_says_what_was_measured_on_what():
    environment = {"device": {"type": "cuda", "name": "GPU"}, "user_git": {"revision": "a" * 40, "dirty": True}}
    rows = list(csv.DictReader(io.StringIO(as_csv(run_data(build("baseline", 2.5), SKIPPED, environment=environment)))))
    assert [(row["device"], row["revision"], row["dtype"]) for row in rows] == [("GPU", "aaaaaaa+", "bfloat16")] * 2
    assert [row["mean_ms"] for row in rows] == ["2.5", ""]
    assert cells(build("baseline", 2.5))[0]["device"] == "cuda:0", "where the environment is not known"


def test_junit_counts_failures_and_gives_their_reasons(three):
    invalid = build("other", 1.0, status="invalid", reason="recompiled in the timed window")
    lie = build("lie", 1.0, parity={"reference": "x", "passed": False})
    suite = ElementTree.fromstring(as_junit(run_data(*three, invalid, lie, SKIPPED))).find("testsuite")
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "time")] == ["6", "3", "1", "0.031200000"]
    cases = {f"{case.get('classname')}.{case.get('name')}": case for case in suite}
    failures = {name: failure for name, case in cases.items() if (failure := case.find("failure")) is not None}
    assert {name: (failure.get("type"), failure.get("message")) for name, failure in failures.items()} == {
        "world_model.cuda_graph": ("failed", "parity: error 1.2"),
        "world_model.other": ("invalid", "recompiled in the timed window"),
        "world_model.lie": ("parity failed", "the parity check failed"),
    }
    times = {case.get("name"): case.get("time") for case in suite if case.get("time") is not None}
    assert times == {"baseline": "0.028700000", "compile": "0.002500000"}, "in seconds, of what counts"
    assert cases["world_model.fx"].find("skipped").get("message") == "no CUDA device"


def test_names_that_look_like_code_leave_each_format_readable():
    data = run_data(*hostile_records(build, frame_loop()))
    assert len(json.loads(as_json(data))["answer"]) > 1
    assert len({len(row) for row in csv.reader(io.StringIO(as_csv(data)))}) == 1
    assert len(list(ElementTree.fromstring(as_junit(data)).iter("testcase"))) > len(ALL) // 2
