"""Does a file fit a network? Asked of names and shapes alone, so that one message can say all that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]
#: A network's state-dict names with their shapes, or what computes them when somebody asks.
Shapes = Mapping[str, Shape] | Callable[[], Mapping[str, Shape]]
_SHOWN = 3


def is_constant(name: str) -> bool:
    """Tell whether `name` is a rotary embedding's frequencies, which follow from the config and are not trained."""
    return name.rpartition(".")[2] == "freqs"


@dataclass(frozen=True)
class Misfit:
    """What differs between the names and shapes a network wants and those a file holds."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshaped: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.misshaped)

    def __str__(self) -> str:
        """Return e.g. `2 missing (a, b), 1 mis-shaped (c: file 3x4, network 4x4)`."""
        groups = {"missing": self.missing, "unexpected": self.unexpected, "mis-shaped": self.misshaped}
        return ", ".join(f"{len(names)} {what} ({_first(names)})" for what, names in groups.items() if names)


def compare(wanted: Mapping[str, Shape], found: Mapping[str, Shape], optional: Iterable[str] = ()) -> Misfit:
    """Compare what a network wants with what a file holds; names in `optional` may be absent from the file."""
    may_lack = set(optional)
    return Misfit(
        missing=tuple(name for name in wanted if name not in found and name not in may_lack),
        unexpected=tuple(name for name in found if name not in wanted),
        misshaped=tuple(
            f"{name}: file {_times(found[name])}, network {_times(wanted[name])}"
            for name in wanted
            if name in found and tuple(found[name]) != tuple(wanted[name])
        ),
    )


def components_in(found: Mapping[str, Shape], others: Mapping[str, Shapes]) -> list[str]:
    """Name the components among `others` that a file fits, whole or with its decoder or encoder alone."""
    halves = [
        {name.removeprefix(prefix): shape for name, shape in found.items() if name.startswith(prefix)}
        for prefix in ("", "decoder.", "encoder.")
    ]
    fitting = []
    for component, shapes in others.items():
        wanted = shapes() if callable(shapes) else shapes
        constants = [name for name in wanted if is_constant(name)]
        if wanted and any(half and not compare(wanted, half, constants) for half in halves):
            fitting.append(component)
    return fitting


def _first(names: tuple[str, ...]) -> str:
    return "; ".join(names[:_SHOWN]) + ("; …" if len(names) > _SHOWN else "")


def _times(shape: Shape) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
