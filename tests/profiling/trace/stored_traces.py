"""The thinned GPU traces under tests/data/traces, and what a test asks of them."""

from functools import cache
from pathlib import Path

from profiling.run.trace_passes import costs
from profiling.trace.attribution import Witness, Witnesses
from profiling.trace.events import Timeline, TracedCall, read_events, timeline, traced_calls

FOLDER = Path(__file__).resolve().parents[2] / "data" / "traces"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))


@cache
def stored(name: str) -> Timeline:
    return timeline(read_events(FOLDER / f"{name}.json.gz"))


def calls_of(name: str) -> tuple[TracedCall, ...]:
    return traced_calls(stored(name))


@cache
def witnesses(name: str) -> tuple[Witness, ...]:
    """What is known of the last traced call."""
    return Witnesses(stored(name), costs()).of(calls_of(name)[-1])
