"""Records survive what happens to files."""

import json
from dataclasses import replace

import pytest

from profiling.errors import InputError
from profiling.results.records import Record, append_record, read_records

OK = Record(target="t", component="c", variant="v", status="ok", metrics={"wall_ms": {"p50": 1.5}}, notes=("a",))


def test_a_record_comes_back_as_it_was(tmp_path):
    append_record(tmp_path, OK)
    assert read_records(tmp_path) == (OK,)


def test_absent_is_absent_and_the_schema_is_there():
    content = json.loads(OK.to_json())
    assert content["schema"] == 1
    assert content["reason"] is None
    assert "memory" not in content
    assert "bad_input" not in content


def test_the_newest_record_of_a_cell_counts(tmp_path):
    append_record(tmp_path, OK.with_status("failed", "first\ntry"))
    append_record(tmp_path, replace(OK, variant="w"))
    append_record(tmp_path, OK)
    assert read_records(tmp_path) == (OK, replace(OK, variant="w"))


def test_a_line_cut_off_by_a_crash_does_not_swallow_the_next(tmp_path):
    append_record(tmp_path, OK)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(OK.to_json()[:40])
    append_record(tmp_path, replace(OK, variant="w"))
    assert [record.variant for record in read_records(tmp_path)] == ["v", "w"]


def test_a_field_of_a_later_version_is_passed_over():
    line = json.dumps({**json.loads(OK.to_json()), "invented_later": 1})
    assert Record.from_json(line) == OK


def test_another_schema_is_refused(tmp_path):
    (tmp_path / "results.jsonl").write_text(json.dumps({**json.loads(OK.to_json()), "schema": 2}) + "\n")
    with pytest.raises(InputError, match="schema 2"):
        read_records(tmp_path)


def test_a_folder_without_results_is_no_run(tmp_path):
    with pytest.raises(InputError, match="no run"):
        read_records(tmp_path)


@pytest.mark.parametrize(("status", "reason"), [("ok", "because"), ("failed", None), ("great", None)])
def test_status_and_reason_belong_together(status, reason):
    with pytest.raises(ValueError, match="status"):
        replace(OK, status=status, reason=reason)


def test_nan_never_reaches_a_file():
    with pytest.raises(ValueError, match="JSON compliant"):
        replace(OK, metrics={"wall_ms": {"p50": float("nan")}}).to_json()
