"""The graph of a loop, from the config group `pipeline/`: sources, stages and the edges between them.

Free of torch: the process that starts cells parses and checks it. Shapes are checked where the stages are built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from profiling.components.spec import check_target
from profiling.errors import InputError, check_choice, check_number, check_whole, did_you_mean, printable
from profiling.realtime.options import MOST_FRAMES
from profiling.results.loop import BUDGET_NAMES

#: Names of rows and series that a loop adds to those of its stages.
DELIVER, PIPELINE = "deliver", "pipeline"

#: How an input is drawn in every tick: mean 0 and std 1, [low, high), 0 or 1, and integers in [low, high). `drawn`:
#: as the component's YAML draws it, several values in turn.
DRAWN = "drawn"
DISTRIBUTIONS = ("normal", "uniform", "bernoulli", "integers", DRAWN)
FIXED = "fixed"  # an input that keeps what the component's YAML draws
#: Names that no stage, source or key may have.
RESERVED = (DELIVER, PIPELINE, *BUDGET_NAMES, *DISTRIBUTIONS, FIXED)

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_EDGE = re.compile(rf"({_NAME.pattern})((?:\.[A-Za-z0-9_]+)*)(@-1)?")


@dataclass(frozen=True)
class Read:
    """An edge from a stage's output, or from a key of a source. `before`: the output of the tick before."""

    name: str
    path: str = ""  # of a tensor in the output; empty: the output is one tensor
    before: bool = False

    def __str__(self) -> str:
        """Return the edge as it is written in YAML."""
        return f"{self.name}{'.' * bool(self.path)}{self.path}{'@-1' * self.before}"


@dataclass(frozen=True)
class Draw:
    """An edge that draws fresh values on the device in every tick: integers and uniform ones are in [low, high)."""

    distribution: str
    low: float = 0.0
    high: float = 1.0

    def __str__(self) -> str:
        """Return the edge as it is written in YAML."""
        return self.distribution


@dataclass(frozen=True)
class Fixed:
    """An edge that never changes: its value, one for each repeated call, or (empty) what the component's YAML draws."""

    values: tuple[float, ...] = ()

    def __str__(self) -> str:
        """Return the edge as it is written in YAML."""
        return ", ".join(f"{value:g}" for value in self.values) or FIXED


Edge = Read | Draw | Fixed


@dataclass(frozen=True, kw_only=True)
class Source:
    """Values that come from the host, one every `period` ticks, repeated after the last.

    They are recorded (`file`, an .npz with arrays [n, ...] by key), made by a factory (`make`, with a `_target_` that
    returns such arrays), or drawn from the seed (`draw`, a distribution for each key). A file comes before a factory.
    """

    file: str | None = None
    make: Mapping[str, Any] | None = None
    draw: Mapping[str, Draw] | None = None
    period: int = 1


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A component in the loop, and the edge of each of its inputs.

    It runs in every `every`-th tick, `repeat` times; in the second call and later, `again` replaces edges of `inputs`,
    and may read the stage's own output of the call before. `priority` is that of its CUDA stream where stages overlap
    (0 or negative, lower runs first).
    """

    component: str
    inputs: Mapping[str, Edge]
    again: Mapping[str, Edge]
    every: int = 1
    repeat: int = 1
    priority: int = 0

    def edges(self) -> tuple[tuple[str, str, Edge], ...]:
        """Return (inputs or again, input, edge) of every edge."""
        parts = {"inputs": self.inputs, "again": self.again}
        return tuple((part, key, edge) for part, edges in parts.items() for key, edge in edges.items())

    def reads(self) -> tuple[Read, ...]:
        """Return the edges from stages and sources."""
        return tuple(edge for _, _, edge in self.edges() if isinstance(edge, Read))


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The graph of a tick. A tick delivers `frames_per_tick` frames, which are played at `frame_rate` frames/s.

    `warmup_frames` ticks come before the timed ones (None: as many as the loop's option says).
    `stages` are in an order in which each one comes after those that it reads in the same tick. `rates` are frame rates
    that every loop is compared with. `work` are settings that change what a tick computes: they are recorded, and runs
    that differ in them are not compared. `miss` says what a late tick is to the user, "a gap in the sound" for example.
    """

    name: str
    sources: Mapping[str, Source]
    stages: Mapping[str, Stage]
    deliver: tuple[Read, ...]
    frames_per_tick: int = 1
    frame_rate: float = 60.0
    rates: tuple[float, ...] = (24.0, 30.0, 60.0, 120.0)
    work: Mapping[str, str | int | float | bool | None]
    miss: str | None = None
    warmup_frames: int | None = None

    def sampled(self, tick: int) -> dict[str, int]:
        """Return, by source, the tick in which the newest value was sampled that shows in what `tick` delivers.

        Where several stages are delivered, it is that of the stage whose value is oldest. A source that no delivered
        stage depends on is left out.
        """
        oldest: dict[str, int] = {}
        for edge in self.deliver:
            for source, sample in self._newest(edge.name, tick, ()).items():
                oldest[source] = min(sample, oldest.get(source, sample))
        return oldest

    def _newest(self, name: str, tick: int, path: tuple[str, ...]) -> dict[str, int]:
        """Return the newest sample of each source in the output of a stage; `path` are the stages that read it."""
        newest: dict[str, int] = {}
        tick -= tick % self.stages[name].every
        path = (*path, name)
        for edge in self.stages[name].reads():
            samples: Mapping[str, int] = {}
            if edge.name in self.sources:
                samples = {edge.name: tick - tick % self.sources[edge.name].period}
            elif edge.name not in path:  # a way around a cycle leads to older values only
                samples = self._newest(edge.name, tick - edge.before, path)
            for source, sample in samples.items():
                newest[source] = max(sample, newest.get(source, sample))
        return newest


def parse_graph(node: Any, components: Iterable[str]) -> Graph:
    """Read the node `pipeline` of a config, as plain data; `components` are the names of those that were chosen.

    Raises:
        InputError: an unknown key, stage, source or component, a wrong value, or a cycle without a delay.

    """
    where = "pipeline"
    raw = _mapping(where, node, [item.name for item in fields(Graph)], example="stages and deliver")
    sources = {name: _source(name, each) for name, each in _named(f"{where}.sources", raw.get("sources")).items()}
    names = _named(f"{where}.stages", raw.get("stages"))
    if not names:
        raise InputError("pipeline.stages is empty. Name at least one: stages: {decode: {component: NAME, inputs: …}}")
    if both := sorted(set(names) & set(sources)):
        raise InputError(f"pipeline.sources.{both[0]}: a stage has the same name. Rename one of the two.")
    stages = {name: _stage(name, each, list(components)) for name, each in names.items()}
    for name, stage in stages.items():
        for part, key, edge in stage.edges():
            if isinstance(edge, Read):
                _check_read(f"{where}.stages.{name}.{part}.{key}={edge}", edge, sources, stages)
    numbers = "frames_per_tick", "frame_rate", "warmup_frames", "rates"
    defaults: Any = {key: raw[key] for key in numbers if raw.get(key) is not None}
    if "rates" in defaults:
        defaults["rates"] = tuple(_list(f"{where}.rates", raw["rates"]))
    graph = Graph(
        name=_text(f"{where}.name", raw.get("name", "realtime"), _NAME),
        sources=sources,
        stages={name: stages[name] for name in _ordered(stages)},
        deliver=_deliver(raw.get("deliver"), sources, stages),
        work=_work(raw.get("work") or {}),
        miss=None if raw.get("miss") is None else _text(f"{where}.miss", raw["miss"]),
        **defaults,
    )
    check_whole(f"{where}.frames_per_tick", graph.frames_per_tick)
    if graph.warmup_frames is not None:
        check_whole(f"{where}.warmup_frames", graph.warmup_frames, most=MOST_FRAMES)
    for key, rate in (("frame_rate", graph.frame_rate), *(("rates", rate) for rate in graph.rates)):
        check_number(f"{where}.{key}", rate, above=0)
    return graph


def _source(name: str, node: Any) -> Source:
    where = f"pipeline.sources.{name}"
    raw = _mapping(where, node, [item.name for item in fields(Source)], example="file, make or draw")
    period = raw.get("period", 1)
    check_whole(f"{where}.period", period)
    file, make, draw = (raw.get(key) for key in ("file", "make", "draw"))
    if file is None and make is None and draw is None:
        raise InputError(f"{where} has no values. Give file: FILE.npz, make: {{_target_: …}} or draw: {{KEY: normal}}.")
    if file is not None and not isinstance(file, str):
        raise InputError(f"{where}.file={file!r} must be the path of an .npz.")
    if make is not None:
        check_target(make, f"{where}.make")
    drawn: dict[str, Draw] = {}
    for key, each in _named(f"{where}.draw", draw).items():
        edge = _edge(f"{where}.draw.{key}", each)
        if not isinstance(edge, Draw):
            raise InputError(f"{where}.draw.{key}={each} is none of {', '.join(DISTRIBUTIONS)}.")
        drawn[key] = edge
    return Source(file=file, make=make, draw=None if draw is None else drawn, period=period)


def _stage(name: str, node: Any, components: Sequence[str]) -> Stage:
    where = f"pipeline.stages.{name}"
    raw = _mapping(where, node, [item.name for item in fields(Stage)], example="component and inputs")
    component = raw.get("component")
    if not isinstance(component, str) or component not in components:
        raise InputError(
            f"{where}.component={component} is none of the components {', '.join(components)}."
            f"{did_you_mean(str(component), components)} Name it in component=[...] too."
        )
    numbers = {key: raw.get(key, default) for key, default in (("every", 1), ("repeat", 1), ("priority", 0))}
    check_whole(f"{where}.every", numbers["every"])
    check_whole(f"{where}.repeat", numbers["repeat"])
    check_whole(f"{where}.priority", numbers["priority"], -5, 0)
    edges: dict[str, dict[str, Edge]] = {}
    repeat = numbers["repeat"]
    for part in ("inputs", "again"):
        given = raw.get(part) or {}
        if not isinstance(given, Mapping):
            raise InputError(f"{where}.{part}={given}: name an edge for each input, {part}: {{x: normal}} for example.")
        edges[part] = {str(key): _edge(f"{where}.{part}.{key}", each) for key, each in given.items()}
        for key, edge in edges[part].items():
            if part == "again" and key not in edges["inputs"]:
                raise InputError(f"{where}.again.{key}: inputs has no {key}.{did_you_mean(key, edges['inputs'])}")
            number = len(edge.values) if isinstance(edge, Fixed) else 0
            if number > 1 and ((number, part) != (repeat, "inputs") or key in (raw.get("again") or {})):
                raise InputError(f"{where}.{part}.{key}={edge}: a list needs repeat={number}, and no again.")
    if edges["again"] and repeat == 1:
        raise InputError(f"{where}.again is for the second call and later: add repeat, or leave it out.")
    return Stage(component=component, **edges, **numbers)


def _edge(where: str, value: Any) -> Edge:
    if isinstance(value, Mapping):
        raw = _mapping(where, value, ("distribution", "low", "high"), example="distribution, low and high")
        check_choice(f"{where}.distribution", raw.get("distribution"), DISTRIBUTIONS)
        low, high = (raw.get(key, default) for key, default in (("low", 0), ("high", 1)))
        numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high))
        if not numbers or high <= low:
            raise InputError(f"{where}: high={high} must be a number above low={low}.")
        return Draw(raw["distribution"], low, high)
    if isinstance(value, bool | int | float):
        return Fixed((float(value),))
    if isinstance(value, list | tuple):
        if not value or not all(isinstance(each, bool | int | float) for each in value):
            raise InputError(f"{where}={value}: a list holds a number for each call, with repeat.")
        return Fixed(tuple(map(float, value)))
    if value == FIXED:
        return Fixed()
    if value == "integers":
        raise InputError(f"{where}=integers: give the range, {{distribution: integers, low: 0, high: 1000}}.")
    if value in DISTRIBUTIONS:
        return Draw(value)
    match = _EDGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InputError(
            f"{where}={value} is no edge. Write STAGE, STAGE.0, STAGE.key, STAGE@-1 (the tick before), SOURCE.key, "
            f"a number, {FIXED}, or one of {', '.join(DISTRIBUTIONS)}."
        )
    return Read(match[1], match[2].removeprefix("."), match[3] is not None)


def _check_read(where: str, edge: Read, sources: Mapping[str, Source], stages: Mapping[str, Stage]) -> None:
    if edge.name in sources:
        draw = sources[edge.name].draw
        if not edge.path or edge.before:
            raise InputError(f"{where}: read a key of the source as {edge.name}.KEY, without a delay.")
        if draw is not None and edge.path not in draw:
            raise InputError(f"{where}: the source has no {edge.path}.{did_you_mean(edge.path, draw)}")
    elif edge.name not in stages:
        names = [*sources, *stages, *DISTRIBUTIONS, FIXED]
        raise InputError(f"{where}: there is no stage or source {edge.name}.{did_you_mean(edge.name, names)}")


def _deliver(node: Any, sources: Mapping[str, Source], stages: Mapping[str, Stage]) -> tuple[Read, ...]:
    where = "pipeline.deliver"
    reads = []
    for each in _list(where, node):
        edge = _edge(where, each)
        if not isinstance(edge, Read) or edge.before or edge.name in sources:
            raise InputError(f"{where}={each}: name stages, as STAGE, or an output of one, as STAGE.0.")
        if edge.name not in stages:
            raise InputError(f"{where}: there is no stage {edge.name}.{did_you_mean(edge.name, stages)}")
        reads.append(edge)
    if not reads:
        raise InputError(f"{where} is empty. Name the stages whose outputs are a frame, deliver: [STAGE] for example.")
    return tuple(dict.fromkeys(reads))


def _ordered(stages: Mapping[str, Stage]) -> list[str]:
    """Return the stages in the order of the YAML, but each after those that it reads in the same tick."""
    order: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in order:
            return
        if name in path:
            cycle = (*path[path.index(name) :], name)
            raise InputError(
                f"pipeline.stages: {' reads '.join(cycle)} in the same tick, which is a cycle. Let one of them read "
                f"the output of the tick before, {cycle[1]}@-1 for example."
            )
        stage = stages[name]
        own = [edge for edge in stage.again.values() if isinstance(edge, Read) and edge.name == name]
        for edge in stage.reads():
            if edge.name in stages and not edge.before and edge not in own:
                visit(edge.name, (*path, name))
        order.append(name)

    for name in stages:
        visit(name, ())
    return order


def _work(node: Any) -> dict[str, str | int | float | bool | None]:
    where = "pipeline.work"
    if not isinstance(node, Mapping):
        raise InputError(f"{where}={node}: give a name and a value for each setting, work: {{steps: 4}} for example.")
    try:
        return msgspec.convert(dict(node), dict[str, str | int | float | bool | None])
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}. A setting is a number, a text, true, false or null.") from None


def _mapping(where: str, node: Any, keys: Sequence[str], *, example: str) -> Mapping[str, Any]:
    if not isinstance(node, Mapping):
        raise InputError(f"{where}={printable(node, 100)}: must be a mapping with {example}.")
    for key in node:
        if key not in keys:
            raise InputError(f"{where}.{key} is unknown.{did_you_mean(str(key), keys)} It has {', '.join(keys)}.")
    return node


def _named(where: str, node: Any) -> Mapping[str, Any]:
    if node is None:
        return {}
    if not isinstance(node, Mapping):
        raise InputError(f"{where}={printable(node, 100)}: must be a mapping by name.")
    for name in node:
        _text(f"{where}: the name", name, _NAME)
        if name in RESERVED:
            raise InputError(f"{where}.{name}: this name is taken. Choose another one.")
    return node


def _list(where: str, node: Any) -> Sequence[Any]:
    if node is None or isinstance(node, str | float | int):
        node = [] if node is None else [node]
    if not isinstance(node, list | tuple):
        raise InputError(f"{where}={printable(node, 100)}: must be a list.")
    return node


def _text(where: str, value: Any, pattern: re.Pattern[str] | None = None) -> str:
    if not isinstance(value, str) or not value or (pattern and not pattern.fullmatch(value)):
        kind = "letters, digits and underscores, and begin with a letter" if pattern else "text"
        raise InputError(f"{where} {value!r} must be {kind}.")
    return value
