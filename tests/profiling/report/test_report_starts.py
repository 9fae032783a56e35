"""Starts and preparations in the report, and what a comparison makes of cold and warm ones."""

from make_record import record

from profiling.compare.differences import cell_changes
from profiling.report.cells import prepare_seconds
from profiling.report.format import Marked
from profiling.report.targets import total_seconds
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


def test_a_preparation_beside_others_or_from_a_filled_cache_is_marked():
    beside = Prepare(seconds=60.0, graphs=1, cache="cold", beside=3)
    shown = [prepare_seconds(record("compile", 1.0, prepare=each)) for each in (COLD, WARM, beside)]
    assert shown == [40.0, Marked("~", 38.0), Marked("~", 60.0)]


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
