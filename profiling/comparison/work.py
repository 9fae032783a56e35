"""What work a cell did: the times of two say something about each other only where it was the same.

How the work was run is no part of it: a schedule, a variant or a dtype is what a comparison is made for.
"""

from __future__ import annotations

from profiling.reporting.facts import at, is_realtime
from profiling.results.records import Record


def loop_work(record: Record) -> dict[str, object]:
    """Return what a frame of a loop is made of, by name; what is not said is absent, and so is all of a call."""
    if not is_realtime(record):
        return {}
    loop, sound = record.realtime, at(record.realtime, "sound")
    guidance = at(loop, "guidance")
    if guidance is None and at(loop, "steps") is not None:
        guidance = "off"  # a world model that says its passes says its guidance too, where it has one
    facts = {
        **{name: at(loop, name) for name in ("pace", "steps", "commit")},
        "guidance": guidance,
        "deliver": at(loop, "deliver"),
        "sound": at(sound, "window"),
        "sound latents": at(sound, "decoded"),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def other_work(a: Record, b: Record) -> str:
    """Return in what two records differ so that their times say nothing about each other; empty if in nothing.

    What only one of them says is passed over: an older record says less.
    """
    one, two = _work(a), _work(b)
    return ", ".join(f"{name} {one[name]} → {two[name]}" for name in one if name in two and one[name] != two[name])


def _work(record: Record) -> dict[str, object]:
    named = {name: getattr(record, name) for name in ("target", "scale", "frames_per_call", "parameters")}
    facts = {**named, "cold": at(record.metrics, "latency", "cold"), **loop_work(record)}
    return {name: fact for name, fact in facts.items() if fact is not None}
