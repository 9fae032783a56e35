"""The thinned GPU traces under tests/data/traces, and what a test asks of them."""

from functools import cache
from pathlib import Path

from profiling.inside.look import costs
from profiling.inside.timeline import Timeline, TracedCall, timeline, traced_calls
from profiling.inside.witness import Witness, Witnesses
from profiling.tracing.chrome_trace import read_events

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
