"""The inputs of a loop that come from the host: recorded in an .npz, made by a factory, or drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from profiling.components.build import draw_input
from profiling.components.component import Component
from profiling.components.instantiate import instantiate
from profiling.components.spec import InputSpec
from profiling.components.trees import named_tensors
from profiling.errors import InputError, did_you_mean
from profiling.realtime.graph import DRAWN, Draw, Source
from profiling.results.frames import UNREADABLE

#: Different values of a drawn source; a loop repeats them.
VALUES = 16

Shape = tuple[int, ...]
#: Values [n, ...] by key.
Arrays = Mapping[str, Any]


def source_arrays(
    name: str,
    source: Source,
    shapes: Mapping[str, Shape],
    ticks: int,
    seed: int,
    examples: Callable[[str], Tensor] | None = None,
) -> Arrays:
    """Return the values of a source; `shapes` are those of the inputs that read it, by key.

    `examples` returns values of a key [n, ...] as the component that reads it draws them.

    Raises:
        InputError: the file or the factory fails, or lacks a key that a stage reads.

    """
    where = f"pipeline.sources.{name}"
    if source.file is not None:
        where += f".file={source.file}"
        arrays = _recorded(where, source.file, shapes)
    elif source.make is not None:
        where += ".make"
        arrays = instantiate(source.make, where, shapes=dict(shapes), ticks=ticks, seed=seed)
        if not isinstance(arrays, Mapping):
            raise InputError(f"{where}: it returned a {type(arrays).__name__}, not arrays by key.")
    else:
        generator = torch.Generator().manual_seed(seed)
        draws = source.draw or {}
        arrays = {
            key: examples(key) if examples and draw.distribution == DRAWN else _drawn(draw, shapes[key], generator)
            for key, draw in draws.items()
            if key in shapes
        }
    for key in shapes:
        if key not in arrays:
            raise InputError(f"{where}: it has no {key}.{did_you_mean(key, arrays)} {_example(shapes)}")
    return arrays


def _recorded(where: str, path: str, shapes: Mapping[str, Shape]) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as content:
            return {key: np.asarray(content[key]) for key in shapes if key in content.files}
    except (*UNREADABLE, KeyError, AttributeError) as error:
        raise InputError(f"{where}: {' '.join(str(error).split())}. {_example(shapes)}") from None


def _example(shapes: Mapping[str, Shape]) -> str:
    keys = ", ".join(f"{key}=[{', '.join(map(str, ('n', *_without_batch(shape))))}]" for key, shape in shapes.items())
    return f"Save it with numpy.savez(path, {keys})."


def _without_batch(shape: Shape) -> Shape:
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape


def _drawn(draw: Draw, shape: Shape, generator: torch.Generator) -> Tensor:
    dtype = "float32" if draw.distribution in ("normal", "uniform") else "int64"
    spec = InputSpec((VALUES, *shape), dtype, draw.distribution, draw.low, draw.high)
    return draw_input(spec, generator, torch.float32)


class Feed:
    """Writes a source's value of a tick into an input; from the host this only enqueues the copy. A `Write`.

    The values [n, ...] are cast to `narrow`, the run's dtype, and then to that of the input. `depth` ticks may be in
    flight: the staging memory of a tick is written again `depth` ticks later. `once`: a value is written once, since
    nothing else writes the input.

    Raises:
        InputError: the values have another shape than the input, cannot be cast to its dtype, or are not finite.

    """

    def __init__(
        self, where: str, values: Any, period: int, target: Tensor, narrow: torch.dtype, depth: int, *, once: bool
    ) -> None:
        try:
            rows = values.cpu() if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(values))
        except TypeError as error:
            raise InputError(f"{where}: {' '.join(str(error).split())}") from None
        want = list(target.shape)
        if not torch.can_cast(rows.dtype, target.dtype) or (rows.dtype.is_floating_point and not rows.isfinite().all()):
            given, kind = (str(dtype).removeprefix("torch.") for dtype in (rows.dtype, target.dtype))
            raise InputError(f"{where}: its values are {given}. They must be finite {kind}.")
        if rows.ndim == 0 or not len(rows) or list(rows.shape[1:]) not in (want, list(_without_batch(target.shape))):
            raise InputError(f"{where}: its values are {list(rows.shape)}. Give [n, {str(want)[1:]}, n at least 1.")
        rows = rows.to(narrow) if target.is_floating_point() else rows
        self._rows = rows.to(target.dtype).reshape(-1, *target.shape)
        self._target, self._period, self._once = target, period, once
        self._last: int | None = None
        shape, dtype, slots = target.shape, target.dtype, depth if target.is_cuda else 0
        self._staging = [torch.empty(shape, dtype=dtype, pin_memory=True) for _ in range(slots)]

    def reset(self) -> None:
        """Forget which value the input holds."""
        self._last = None

    def __call__(self, tick: int, _output: Any = None) -> None:
        """Write the value of a tick, if the input does not hold it already."""
        number = tick // self._period
        if number == self._last and self._once:
            return
        self._last = number
        row = self._rows[number % len(self._rows)]
        if self._staging:
            staging = self._staging[tick % len(self._staging)]
            staging.copy_(row)
            self._target.copy_(staging, non_blocking=True)
        else:
            self._target.copy_(row)


class DrawFeed:
    """Draws new values of an input for each tick in the run's dtype `narrow`, and casts them to its own. A `Write`.

    Raises:
        InputError: the distribution does not fit the input's dtype.

    """

    def __init__(self, where: str, draw: Draw, target: Tensor, narrow: torch.dtype, seed: int) -> None:
        floating = target.is_floating_point()
        if floating != (draw.distribution in ("normal", "uniform")) and draw.distribution != "bernoulli":
            fitting = "normal, uniform or bernoulli" if floating else "integers or bernoulli"
            kind = str(target.dtype).removeprefix("torch.")
            raise InputError(f"{where}: {draw} does not fit the input's dtype {kind}. Use {fitting}.")
        self._target, self._seed = target, seed
        self._values = torch.empty_like(target, dtype=narrow) if floating and target.dtype != narrow else target
        self._generator = torch.Generator(target.device)
        fill: dict[str, Callable[..., Any]] = {
            "normal": self._values.normal_,
            "uniform": lambda generator: self._values.uniform_(draw.low, draw.high, generator=generator),
            "bernoulli": lambda generator: self._values.bernoulli_(0.5, generator=generator),
            "integers": lambda generator: self._values.random_(int(draw.low), int(draw.high), generator=generator),
        }
        self._fill = fill[draw.distribution]
        self.reset()

    def reset(self) -> None:
        """Begin the sequence of values again."""
        self._generator.manual_seed(self._seed)

    def __call__(self, _tick: int, _output: Any) -> None:
        """Draw."""
        self._fill(generator=self._generator)
        if self._values is not self._target:
            self._target.copy_(self._values)


def examples_of(component: Component, path: str, seed: int) -> Tensor:
    """Return values of an input [n, ...] as the component's YAML draws them, on the component's device."""
    generators = [torch.Generator(component.device).manual_seed(seed + number) for number in range(VALUES)]
    return torch.stack([dict(named_tensors(component.make_inputs(each)))[path] for each in generators])
