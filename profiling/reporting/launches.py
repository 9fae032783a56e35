"""What a launch costs, as tables: from the mapping that the calibration returns, for the console or as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from profiling.reporting.facts import at, interval_at, items_at, number_at
from profiling.reporting.format import ABSENT, escaped, one_line, significant

SIZE_NAMES = ("elements", "width")


@dataclass(frozen=True)
class Line:
    """A line of the headline table: its words, and the key of the number; `{size}` is the size's name in the chain."""

    words: str
    key: str
    show: Callable[[float], str] = significant


def _large(value: float) -> str:
    """Return a count of elements, bytes or FLOPs, which are known to three digits, with its thousands apart."""
    return f"{float(f'{value:.2e}'):,.0f}" if value >= 100 else significant(value, 3)


CUDA_LINES = (
    Line("host µs a launch (eager)", "host_us_per_launch"),
    Line("GPU µs a launch (queue full)", "gpu_us_per_launch"),
    Line("GPU µs a graph node", "graph_us_per_node"),
    Line("GPU µs a graph launch", "graph_launch_device_us"),
    Line("host µs a graph launch", "graph_launch_host_us"),
    Line("host µs a graph launch, for each node more", "graph_host_us_per_node"),
    Line("GPU starves below: size", "starvation_{size}", _large),
    Line("GPU starves below: µs an operator", "starvation_us"),
    Line("GPU starves below: bytes an operator", "starvation_bytes", _large),
    Line("GPU starves below: FLOPs an operator", "starvation_flops", _large),
)
CPU_LINES = (
    Line("dispatch µs an operator (eager)", "dispatch_us_per_operator"),
    Line("work as long as dispatch at: size", "dispatch_bound_{size}", _large),
    Line("work as long as dispatch at: bytes an operator", "dispatch_bound_bytes", _large),
    Line("work as long as dispatch at: FLOPs an operator", "dispatch_bound_flops", _large),
)


def render_launches(content: Mapping[str, Any], *, markdown: bool = False) -> str:
    """Return the headline table, its notes and the table by operator size of what the calibration returned.

    `content` holds "launch_calibration" and "operators"; a number it lacks is shown as a dash.
    """
    parts = (
        _headline(content, markdown=markdown),
        "\n".join(("- " if markdown else "") + _prose(note, markdown=markdown) for note in _notes(content)),
        _by_size(content, markdown=markdown),
    )
    return "\n\n".join(part for part in parts if part)


def _headline(content: Mapping[str, Any], *, markdown: bool) -> str:
    calibration = at(content, "launch_calibration")
    chains = (calibration, at(calibration, "linear"))
    lines = CPU_LINES if _on_cpu(content) else CUDA_LINES
    rows = [[line.words, *(_number(chain, line) for chain in chains)] for line in lines]
    headers = ("", f"elementwise, {_size(calibration)}", f"linear, {_size(at(calibration, 'linear'))}")
    return _grid(headers, rows, markdown=markdown)


def _number(chain: object, line: Line) -> str:
    return with_interval(at(chain, line.key.format(size=_size_name(chain))), line.show)


def with_interval(number: object, show: Callable[[float], str] = significant) -> str:
    """Return `4.210 [4.180, 4.250]`: the median and its 95% interval, where there is one; a dash for no number."""
    middle, interval = number_at(number, "p50"), interval_at(number, "ci95")
    if middle is None:
        return ABSENT
    return f"{show(middle)} [{show(interval[0])}, {show(interval[1])}]" if interval else show(middle)


def _notes(content: Mapping[str, Any]) -> Sequence[str]:
    calibration = at(content, "launch_calibration")
    notes = []
    if number_at(calibration, "rounds") is not None:
        notes.append(
            f"{at(calibration, 'device')}, {at(calibration, 'dtype')}: slopes over the number of calls, medians of "
            f"{number_at(calibration, 'rounds'):.0f} rounds [95% interval]."
        )
    for name, chain in (("elementwise", calibration), ("linear", at(calibration, "linear"))):
        notes += [
            f"{name}, {words}: {note}."
            for key, words in (("starvation_note", "GPU starves below"), ("dispatch_bound_note", "work as dispatch"))
            if isinstance(note := at(chain, key), str)
        ]
    return notes


def _by_size(content: Mapping[str, Any], *, markdown: bool) -> str:
    rows, on_cpu = [], _on_cpu(content)
    for operator in items_at(content, "operators"):
        host, gpu, pace = (with_interval(at(operator, key)) for key in ("host_us", "gpu_us", "pace_us"))
        clocks = [host] if on_cpu else [host, gpu, pace, _idle(operator)]
        rows.append([one_line(at(operator, "chain")), _size(operator), *clocks])
    if not rows:
        return ""
    clocks = ("µs a call",) if on_cpu else ("host µs", "GPU µs (queue full)", "eager pace µs", "GPU idle in eager")
    return _grid(("chain", "size", *clocks), rows, markdown=markdown)


def _idle(operator: object) -> str:
    """Return the share of an eager loop in which the device waits for the next launch."""
    gpu, pace = number_at(operator, "gpu_us", "p50"), number_at(operator, "pace_us", "p50")
    # A device that is never waited for is idle for some tenths of a per cent, above zero or below: noise.
    return ABSENT if gpu is None or not pace else f"{max(0.0, 1 - gpu / pace):.0%}"


def _on_cpu(content: Mapping[str, Any]) -> bool:
    return at(content, "launch_calibration", "device") == "cpu"


def _size_name(chain: object) -> str:
    return next((name for name in SIZE_NAMES if number_at(chain, name) is not None), SIZE_NAMES[0])


def _size(chain: object) -> str:
    name = _size_name(chain)
    size, rows = number_at(chain, name), number_at(chain, "rows")
    shown = ABSENT if size is None else f"{name} {size:.0f}"
    return shown if rows is None else f"{shown}, rows {rows:.0f}"


def _prose(text: str, *, markdown: bool) -> str:
    return escaped(text) if markdown else one_line(text)


def _grid(headers: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    return tabulate(
        rows,
        headers=[_prose(header, markdown=markdown) for header in headers],
        tablefmt="github" if markdown else "simple",
        colalign=["left", *["right"] * (len(headers) - 1)],
        disable_numparse=True,
    )
