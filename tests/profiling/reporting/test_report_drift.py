"""The table of drift: the calls that were made, and the worst of all of them."""

from profiling.reporting.drift import drift_tables
from profiling.results.records import Record


def record(errors):
    return Record("generic_forward", "net", "compile", "ok", metrics={"drift": {"rel_l2": errors, "max": max(errors)}})


def test_calls_that_were_not_made_have_no_column():
    errors = [0.001 * call for call in range(1, 61)]
    ((_, table),) = drift_tables([record(errors)], markdown=True)
    header, _, row = table.splitlines()
    assert [cell.strip() for cell in header.strip("|").split("|")] == [
        "component", "variant", "call 1", "call 2", "call 10", "call 50", "worst",
    ]  # fmt: skip
    assert [cell.strip() for cell in row.strip("|").split("|")][2:] == [
        "1.0e-03", "2.0e-03", "1.0e-02", "5.0e-02", "6.0e-02",
    ]  # fmt: skip


def test_nothing_measured_is_no_table():
    assert drift_tables([Record("generic_forward", "net", "baseline", "ok")], markdown=False) == ()
