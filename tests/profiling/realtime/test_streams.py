"""Stages on streams of their own: each access to an output is ordered by events, which is checked without a device."""

from contextlib import contextmanager

import pytest
import torch
from planted_stages import delivered, pipeline_of, planted

from profiling.realtime.pipeline import Outputs, StageRun


class Races:
    """Streams and events without a device: records what is ordered before what, and finds unordered accesses.

    An operation is ordered after all earlier ones of its stream, after those before an event that its stream waits for,
    and after those that the host has synchronized with.
    """

    def __init__(self, *, streams_wait=True):
        self.streams_wait = streams_wait
        self.host, self.stream = set(), self.Stream()
        self.ops, self.accesses, self.found = 0, {}, []
        self.op, self.before = None, {}  # the operation that runs, and what is ordered before each

    class Stream:
        def __init__(self, _device=None, priority=0):
            self.before = set()

    @contextmanager
    def on(self, stream):
        outer, self.stream = self.stream, stream
        yield
        self.stream = outer

    def make_event(self, enable_timing=False):
        races = self

        class Event:
            before = frozenset()

            def record(self):
                self.before = frozenset(races.stream.before | races.host)

            def wait(self):
                races.stream.before |= self.before if races.streams_wait else frozenset()

            def synchronize(self):
                races.host |= self.before

            def query(self):
                return True

            def elapsed_time(self, end):
                assert end.before <= races.host, "the device may not have passed the event"
                return 1.0

        return Event()

    def access(self, where, kind):
        for other, other_kind in self.accesses.get(where, []):
            if "write" in (kind, other_kind) and other[0] not in self.before[self.op] and other != self.op:
                self.found.append(f"{self.op} {kind}s {where} beside the {other_kind} of {other}")
        self.accesses.setdefault(where, []).append((self.op, kind))

    def install(self, monkeypatch):
        """Replace streams and events of torch, and watch every access to the outputs of stages."""
        run, store, get = StageRun.run, Outputs.store, Outputs.get

        def watched_run(stage, tick):
            self.ops += 1
            self.op = (self.ops, stage.name, tick)
            self.before[self.op] = self.stream.before | self.host
            run(stage, tick)
            self.stream.before |= {self.ops} | self.host

        def watched_store(outputs, output):
            store(outputs, output)
            self.access((outputs._stage, (outputs.runs - 1) % outputs._keep), "write")

        def watched_get(outputs, path, *, before=False):
            runs = outputs._before if before else outputs.runs
            if runs and self.op is not None:
                self.access((outputs._stage, (runs - 1) % outputs._keep), "read")
            return get(outputs, path, before=before)

        monkeypatch.setattr(torch.cuda, "Event", self.make_event)
        monkeypatch.setattr(torch.cuda, "Stream", self.Stream)
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(StageRun, "run", watched_run)
        monkeypatch.setattr(Outputs, "store", watched_store)
        monkeypatch.setattr(Outputs, "get", watched_get)


def stages(**inputs):
    return {name: {"inputs": dict(zip(("x", "y"), edges.split(), strict=False))} for name, edges in inputs.items()}


GRAPHS = {
    "a chain": stages(a="normal", b="a", c="b"),
    "two decoders": stages(a="normal", b="a", c="a"),
    "feedback": stages(a="c@-1", b="a", c="b a@-1"),
    "a state that nobody delivers": stages(a="c@-1", c="a", b="a"),
    "now and then": stages(t="normal", a="t t@-1", b="a t"),
    "a late reader": stages(a="normal b@-1", b="a a@-1"),
}
GRAPHS["now and then"]["t"]["every"] = 2


def raced(monkeypatch, stages, deliver=("b",), *, streams_wait=True):
    races = Races(streams_wait=streams_wait)
    races.install(monkeypatch)
    pipeline = pipeline_of(*planted(stages, deliver=list(deliver), device="cuda"), schedule="overlap")
    assert pipeline.depth == 2
    delivered(pipeline, range(9))
    return races


@pytest.mark.parametrize("name", GRAPHS)
def test_streams_are_ordered_wherever_they_meet(monkeypatch, name):
    races = raced(monkeypatch, GRAPHS[name])
    assert races.found == []
    assert races.ops > 9 * (len(GRAPHS[name]) - 1)
    with monkeypatch.context() as context:  # the detector itself names a race in every graph
        assert raced(context, GRAPHS[name], streams_wait=False).found


END_IS_SKIPPED = stages(a="normal", b="a")
END_IS_SKIPPED["b"]["every"] = 3


@pytest.mark.parametrize("deliver", ["host", "device"])
@pytest.mark.parametrize("graph", [*GRAPHS.values(), END_IS_SKIPPED], ids=[*GRAPHS, "an end that is skipped"])
def test_a_tick_is_over_when_all_of_its_stages_are(monkeypatch, graph, deliver):
    """Also where the stage that others end in is skipped: times of a stage are read once the device has passed them."""
    Races().install(monkeypatch)
    for schedule in ("sequential", "overlap"):
        rows = []
        planted_stages = planted(graph, deliver=["b"], device="cuda")
        delivered(pipeline_of(*planted_stages, schedule=schedule, deliver=deliver), range(9), rows)
        assert all("device_a_ms" in row for row in rows)


def test_stages_overlap_and_do_not_just_run_in_turn(monkeypatch):
    """The first stage of a tick starts before the decoders of the previous tick have ended."""
    races = raced(monkeypatch, GRAPHS["two decoders"], deliver=("b", "c"))
    number = {op[1:]: op[0] for op in races.before}
    before = {op[1:]: earlier for op, earlier in races.before.items()}
    assert number["b", 1] not in before["a", 2]
    assert number["b", 0] in before["a", 2], "two ticks are in flight, not three"
    assert number["b", 2] not in before["c", 2]


@pytest.mark.gpu
@pytest.mark.parametrize("deliver", ["host", "device"])
@pytest.mark.parametrize("slow", ["a", "b", "c"])
@pytest.mark.parametrize("name", GRAPHS)
def test_overlapping_stages_read_what_stages_in_turn_read(name, slow, deliver):
    """One stage takes a millisecond on the device, so that a stage that does not wait for it reads old numbers."""
    stages = {
        stage: {**node, "affine": {"factor": 0.5, "sleep_ms": stage == slow}} for stage, node in GRAPHS[name].items()
    }
    ticks = {}
    for schedule in ("sequential", "overlap"):
        graph, components = planted(stages, deliver=["b"], device="cuda", memory="cuda")
        ticks[schedule] = delivered(pipeline_of(graph, components, schedule=schedule, deliver=deliver), range(30))
    assert ticks["overlap"] == ticks["sequential"]
    assert len({tick["b"] for tick in ticks["overlap"]}) > 10
