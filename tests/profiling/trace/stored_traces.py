"""The thinned GPU traces under tests/data/traces."""

from functools import cache
from pathlib import Path

from profiling.trace.attribution import Attributor, KernelAttribution
from profiling.trace.events import Timeline, TracedCall, read_events, timeline, traced_calls
from profiling.trace.operator_costs import OperatorCosts

FOLDER = Path(__file__).resolve().parents[2] / "data" / "traces"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))


@cache
def stored(name: str) -> Timeline:
    return timeline(read_events(FOLDER / f"{name}.json.gz"))


def calls_of(name: str) -> tuple[TracedCall, ...]:
    return traced_calls(stored(name))


@cache
def attributions(name: str) -> tuple[KernelAttribution, ...]:
    """The attribution of the last traced call."""
    return Attributor(stored(name), OperatorCosts()).of(calls_of(name)[-1])
