"""Starts and preparations in the report, and what a comparison makes of cold and warm ones."""

from make_record import record

from profiling.compare.differences import cell_changes
from profiling.report.answer import notes_section
from profiling.report.cells import prepare_seconds
from profiling.report.format import Marked
from profiling.report.render import render_console, render_markdown
from profiling.report.run_data import RunData
from profiling.report.targets import starts_section, total_seconds
from profiling.results.environment import Environment
from profiling.results.measured import Calls, CallsPoint, Metrics, Prepare, Start, Starts
from profiling.run.rounds import break_even_calls

COLD = Prepare(seconds=40.0, graphs=1, cache="cold", phases={"inductor": 30.0, "dynamo": 5.0})
WARM = Prepare(
    seconds=9.0, graphs=1, cache_hits=1, cache="from compile", cold_s=38.0, phases={"inductor": 1.0, "capture": 2.0}
)
STARTS = Starts(
    cold=Start(seconds=50.0, phases={"import": 3.0, "load": 2.0, "inductor": 40.0}, graphs=1),
    warm=Start(seconds=12.0, phases={"import": 3.0, "load": 2.0, "inductor": 6.0}, graphs=1, cache_hits=1),
    artifact_bytes=2**20,
)


def run_data(tmp_path, *records):
    return RunData(records, Environment(), tmp_path, 0)


def test_a_preparation_beside_others_or_from_a_filled_cache_is_marked():
    beside = Prepare(seconds=60.0, graphs=1, cache="cold", beside=3)
    shown = [prepare_seconds(record("compile", 1.0, prepare=each)) for each in (COLD, WARM, beside)]
    assert shown == [40.0, Marked("~", 38.0), Marked("~", 60.0)]


def test_a_preparation_says_what_it_started_from(tmp_path):
    data = run_data(tmp_path, record("compile", 1.0, prepare=COLD), record("graph", 1.0, prepare=WARM))
    (_, table) = starts_section(data).tables
    titles = [column.title for column in table.columns]
    assert titles[-3:] == ["dynamo", "inductor", "capture"]
    text = render_markdown(data)
    assert "from compile" in text
    assert "cold" in text
    assert "38.0" in render_console(data)  # in the place of the 9 s of a warm start
    assert not [line for line in notes_section(data).lines if "warm start" in line]


def test_starts_are_seconds_to_the_first_output(tmp_path):
    data = run_data(tmp_path, record("compile", 1.0, starts=STARTS), record("baseline", 1.0))
    text = render_console(data)
    assert [line.split()[2:4] for line in text.splitlines() if " warm " in line] == [["warm", "12.0"]]
    assert STARTS.cold.unaccounted == 5.0
    assert "unaccounted" in render_markdown(data)


def test_what_pays_off_is_counted_from_an_empty_cache():
    calls = Calls(points=(CallsPoint(calls=10, seconds=1.0, measured=True),), seconds_per_call=0.1)
    eager = Calls(points=(), seconds_per_call=0.2)
    warm = record("graph", metrics=Metrics(calls=calls), prepare=WARM)
    baseline = record(metrics=Metrics(calls=eager), prepare=Prepare(seconds=0.0))
    assert break_even_calls(warm, baseline) == 380
    total = total_seconds(warm, 10)
    assert total == Marked("~", 39.0)


def test_a_cold_preparation_is_not_compared_with_a_warm_one():
    cold, warm = record("compile", 1.0, prepare=COLD), record("compile", 1.0, prepare=WARM)
    changes = cell_changes(cold, warm)
    assert not [each for each in changes if "preparation" in each.name]
    slower = record("compile", 1.0, prepare=Prepare(seconds=60.0, graphs=1, cache="cold"))
    (change,) = (each for each in cell_changes(cold, slower) if "preparation" in each.name)
    assert (change.a, change.b) == ("40.0", "60.0")


def test_starts_are_compared():
    later = Starts(cold=Start(seconds=80.0, phases={}), warm=STARTS.warm)
    changes = cell_changes(record("compile", 1.0, starts=STARTS), record("compile", 1.0, starts=later))
    assert [each.name for each in changes if "start" in each.name] == ["cold start s"]
