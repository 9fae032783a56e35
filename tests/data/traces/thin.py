"""Reduces a profiler trace to what tests read: `python thin.py TRACE OUT [--calls N] [--line "METHOD=FILE:LINE"]`.

Keeps the events of the first N traced calls that `profiling.trace` reads: GPU work, calls into CUDA, spans, and the
operators around those calls, with the arguments that it uses. `--line` replaces the stack frames of a built-in method,
which have no line, by the span that the pass by line of code opens around the line that calls it.
"""

import argparse
import gzip
import json
import re
from bisect import bisect_left
from pathlib import Path

from profiling.trace.events import CUDA_CALLS, GPU_WORK

KEPT = (
    "correlation",
    "External id",
    "graph node id",
    "bytes",
    "Input Dims",
    "Input Strides",
    "Input type",
    "Concrete Inputs",
    "Sequence number",
    "Fwd thread id",
)


def reduced(events: list[dict], calls: int, lines: dict[str, str]) -> list[dict]:
    events = [event for event in events if event.get("dur") is not None]
    spans = [e for e in events if e.get("cat") == "user_annotation" and re.search(r"/trace/\d+$", e["name"])]
    spans = sorted(spans, key=lambda event: event["ts"])[:calls]
    begin, end = spans[0]["ts"], spans[-1]["ts"] + spans[-1]["dur"]
    calls_at = sorted(e["ts"] for e in events if e.get("cat") in CUDA_CALLS and begin <= e["ts"] <= end)
    launched = {e["args"].get("correlation") for e in events if e.get("cat") in CUDA_CALLS and begin <= e["ts"] <= end}
    kept = []
    for event in events:
        kind = event.get("cat")
        inside = begin <= event["ts"] <= end
        if kind == "python_function" and inside:
            method = next((line for name, line in lines.items() if f"method {name} of" in event["name"]), None)
            if method is not None:
                kept.append({**event, "cat": "user_annotation", "name": f"line: {method}", "args": {}})
        elif kind in GPU_WORK:
            if event["args"].get("correlation") in launched:
                kept.append(event)
        elif inside and (
            kind in CUDA_CALLS or kind == "user_annotation" or (kind == "cpu_op" and _contains(event, calls_at))
        ):
            kept.append(event)
    return [_small(event, begin) for event in kept]


def _contains(event: dict, moments: list[float]) -> bool:
    index = bisect_left(moments, event["ts"])
    return index < len(moments) and moments[index] <= event["ts"] + event["dur"]


def _small(event: dict, begin: float) -> dict:
    arguments = event.get("args", {})
    kept = {key: arguments[key] for key in KEPT if key in arguments}
    if arguments.get("kernel_backend") == "triton":
        kept["kernel_backend"] = "triton"
    small = {key: event[key] for key in ("ph", "cat", "name", "pid", "tid", "dur")}
    return {**small, "ts": round(event["ts"] - begin, 3), "args": kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--calls", type=int, default=2)
    parser.add_argument("--line", action="append", default=[])
    given = parser.parse_args()
    events = json.loads(gzip.decompress(given.trace.read_bytes()))["traceEvents"]
    kept = reduced(events, given.calls, dict(line.split("=", 1) for line in given.line))
    text = json.dumps({"traceEvents": kept}, separators=(",", ":"))
    given.out.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{given.out}: {len(kept)} of {len(events)} events, {given.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
