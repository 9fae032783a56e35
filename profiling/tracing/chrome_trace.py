"""A Chrome trace of torch.profiler as a stream of events: one at a time, since a trace may hold 100 MB of them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Chrome-trace categories of work on the device; spans drawn on its rows are not among them.
WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
#: Categories of calls into the CUDA runtime and driver.
RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
#: What crosses the bus, as CUPTI names it: "Memcpy DtoH (Device -> Pageable)".
CROSSES = re.compile(r"Memcpy (HtoD|DtoH)")
#: Calls in which the host waits for the device.
WAITS = re.compile(r"(cuda|cu)(Stream|Event|Device|Ctx)Synchronize|cudaFree(Host)?$|(cuda|cu)Memcpy$")
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace file, gzipped or not, in the order of the file; times are microseconds.

    Raises:
        ValueError: the file is no Chrome trace, or was cut off.

    """
    text = _text(path)
    found = _EVENTS.search(text)
    if found is None:
        raise ValueError(f"{path} is no Chrome trace: it has no traceEvents. Trace the cell again (trace=true).")
    decoder, at = json.JSONDecoder(), found.end()
    while True:
        between = _BETWEEN.match(text, at)
        at = at if between is None else between.end()
        if text.startswith("]", at):
            return
        try:
            event, at = decoder.raw_decode(text, at)
        except ValueError:
            raise ValueError(f"{path} ends within an event. Trace the cell again (trace=true).") from None
        yield event


def _text(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8", errors="replace")
