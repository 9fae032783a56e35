"""Busy and idle time: hand-made gaps, and sums that must close on stored GPU traces."""

import numpy
import pytest
from hand_made_events import launch, piece
from stored_traces import NAMES, calls_of, stored

from profiling.trace.analysis import idle_of
from profiling.trace.events import launched_by

TICK_US = 0.01


def launches(*found):
    return {call.correlation: call for call in found}


@pytest.mark.parametrize("name", NAMES)
def test_what_adds_up_must(name):
    trace = stored(name)
    for call in calls_of(name):
        idle = idle_of(call.work, launched_by(trace))
        assert idle.busy + idle.host + idle.between == pytest.approx(idle.span, rel=0.01)
        kernels = sum(work.length for work in call.work)
        # One stream, so nothing overlaps but the ends that dependent launches let meet.
        assert kernels + idle.host + idle.between == pytest.approx(idle.span, rel=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_busy_time_is_that_of_a_timeline_in_ticks(name):
    trace = stored(name)
    for call in calls_of(name):
        idle = idle_of(call.work, launched_by(trace))
        start = call.work[0].begin
        ticks = numpy.zeros(round(idle.span / TICK_US) + 1, dtype=bool)
        for work in call.work:
            ticks[round((work.begin - start) / TICK_US) : round((work.end - start) / TICK_US)] = True
        assert ticks.sum() * TICK_US == pytest.approx(idle.busy, rel=0.01)


def test_a_replay_waits_for_nobody_between_its_nodes():
    for name in ("net.graph", "net.compile_graph"):
        idle = idle_of(calls_of(name)[0].work, launched_by(stored(name)))
        assert idle.host == 0
        assert idle.between > 0


def test_eager_small_kernels_wait_for_the_host():
    idle = idle_of(calls_of("net.eager")[0].work, launched_by(stored("net.eager")))
    assert idle.host > 0.9 * (idle.host + idle.between)


def test_a_gap_belongs_to_the_host_where_the_launch_came_late():
    #        launch 2 ends at 13, after the device ran dry at 10
    idle = idle_of([piece(0, 10, 1), piece(15, 20, 2)], launches(launch(-5, -1, 1), launch(8, 13, 2)))
    assert (idle.span, idle.busy, idle.host, idle.between) == (20, 15, 5, 0)


def test_a_gap_behind_a_launch_in_time_lies_between():
    idle = idle_of([piece(0, 10, 1), piece(15, 20, 2)], launches(launch(-5, -1, 1), launch(2, 9, 2)))
    assert (idle.host, idle.between) == (0, 5)


def test_gaps_inside_a_replay_lie_between_though_its_launch_is_still_returning():
    #                copy by 1, then a graph by 2: its first node waited for the launch, its others did not
    work = [piece(0, 2, 1), piece(10, 12, 2), piece(13, 15, 2), piece(18, 20, 2)]
    idle = idle_of(work, launches(launch(-3, -1, 1), launch(4, 40, 2)))
    assert (idle.span, idle.busy, idle.host, idle.between) == (20, 8, 8, 4)


def test_a_replay_queued_behind_another_waits_between():
    work = [piece(0, 5, 1), piece(6, 10, 1), piece(12, 15, 2)]
    idle = idle_of(work, launches(launch(-3, -1, 1), launch(0, 4, 2)))
    assert (idle.host, idle.between) == (0, 3)


def test_overlapping_streams_are_busy_once():
    work = [piece(0, 10, 1), piece(2, 4, 2), piece(8, 14, 3), piece(20, 21, 4)]
    idle = idle_of(work, launches(*(launch(-5, -4, number) for number in (1, 2, 3)), launch(16, 18, 4)))
    assert (idle.span, idle.busy, idle.host, idle.between) == (21, 15, 6, 0)


def test_a_lost_launch_accuses_nobody():
    idle = idle_of([piece(0, 10, 1), piece(15, 20, 2)], {})
    assert (idle.host, idle.between) == (0, 5)
