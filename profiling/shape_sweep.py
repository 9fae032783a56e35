"""When does a variant pay off? Components × shapes × variants × calls: `python -m profiling.shape_sweep`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from profiling.cli.app import execute, main
from profiling.cli.config import read_component, read_config
from profiling.components.spec import ComponentSpec
from profiling.errors import InputError, did_you_mean

TARGET = "shape_sweep"
#: The sweep of a component whose YAML has none.
DEFAULT_SWEEP = {"axis": "batch", "values": [1, 2, 4, 8]}


def run(cfg: DictConfig, folder: Path) -> int:
    """Run every component at every point of its sweep under every variant."""
    config = read_config(cfg)
    points = [point for spec in config.components for point in points_of(cfg, spec)]
    return execute(TARGET, replace(config, components=tuple(points)), folder)


def points_of(cfg: DictConfig, spec: ComponentSpec) -> list[ComponentSpec]:
    """Return the component at each value of its axis, and with `together` one that is prepared for all of them.

    Raises:
        InputError: an axis that the component's inputs do not have, or values that are not whole numbers from 1 up.

    """
    sweep = {**DEFAULT_SWEEP, **(spec.sweep or {})}
    axis = sweep["axis"] if cfg.axis is None else str(cfg.axis)
    given = sweep["values"] if cfg["values"] is None else cfg["values"]
    values = list(given) if OmegaConf.is_list(given) or isinstance(given, list) else [given]
    if not values or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in values):
        raise InputError(f"values={values}: must be whole numbers from 1 up, values=[1,2,4,8] for example.")
    points = [_point(cfg.component[spec.name], spec.name, axis, value) for value in sorted(set(values))]
    if cfg.together and len(points) > 1:
        points.append(_all_points(points, spec.name, axis))
    return points


def _point(node: DictConfig, name: str, axis: str, value: int) -> ComponentSpec:
    """Return the component with `value` on `axis`; whatever the YAML computes from it is computed again."""
    node = copy.deepcopy(node)
    OmegaConf.set_struct(node, False)
    computed = "frames_per_call" in node and OmegaConf.is_interpolation(node, "frames_per_call")
    before = _set_axis(node.inputs, axis, value, f"component.{name}.inputs")
    if not computed:
        node.frames_per_call = _scaled(node.get("frames_per_call", 1), value, before)
    tiny = node.get("tiny")
    if tiny and tiny.get("inputs") and _has_axis(tiny.inputs, axis):
        before = _set_axis(tiny.inputs, axis, value, f"component.{name}.tiny.inputs")
    if tiny and "frames_per_call" in tiny:
        tiny.frames_per_call = _scaled(tiny.frames_per_call, value, before)
    resolved: Any = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    spec = read_component(f"{name}@{axis}={value}", resolved)
    return replace(spec, point={"component": name, "axis": axis, "value": value})


def _all_points(points: Sequence[ComponentSpec], name: str, axis: str) -> ComponentSpec:
    """Return the last point with the inputs of all others as extra inputs."""
    *others, last = points
    values = f"{points[0].point['value']}-{last.point['value']}" if points[0].point and last.point else ""
    return replace(
        last,
        name=f"{name}@{axis}={values}",
        point={"component": name, "axis": axis, "value": "all"},
        extra_inputs=tuple({"inputs": other.inputs, "tiny": other.tiny} for other in others),
    )


def _set_axis(inputs: DictConfig, axis: str, value: int, where: str) -> int:
    """Set `axis` (an argument of the input maker, `batch`, or `INPUT.N`) and return its previous value.

    Where inputs are given as shapes, the batch is the first dimension of the first input, and of all others with the
    same first dimension.
    """
    if "_target_" in inputs:
        options = [str(key) for key in inputs if key != "_target_"]
        if axis not in options:
            raise InputError(f"axis={axis}: {where} has no {axis!r}.{did_you_mean(axis, options)} {_choice(options)}")
        before, inputs[axis] = inputs[axis], value
        return before
    first, _, dim = axis.partition(".")
    batch = next((_length(node) for node in inputs.values()), None)
    swept = [key for key, node in inputs.items() if key == first or (axis == "batch" and _length(node) == batch)]
    place = int(dim) if dim.isdigit() else 0
    dims = [f"{key}.{i}" for key in inputs for i in range(len(inputs[key].get("shape", ())))]
    if not swept or (axis != "batch" and axis not in dims):
        raise InputError(f"axis={axis}: {where} has no such dimension. {_choice(['batch', *dims])}")
    before = [inputs[key].shape[place] for key in swept]
    for key in swept:
        if not OmegaConf.is_interpolation(inputs[key].shape, place):
            inputs[key].shape[place] = value
    return before[0]


def _has_axis(inputs: DictConfig, axis: str) -> bool:
    first, _, dim = axis.partition(".")
    shapes = [key for key in inputs if OmegaConf.is_dict(inputs[key]) and "shape" in inputs[key]]
    return axis in inputs or (dim != "" and first in shapes) or (axis == "batch" and bool(shapes))


def _length(node: DictConfig) -> int | None:
    shape = node.get("shape")
    return shape[0] if shape else None


def _choice(options: Sequence[str]) -> str:
    return f"Choose one of: {', '.join(options)}"


def _scaled(frames: int, value: int, before: int) -> int:
    """Return the frames of a call: they scale with the axis where they are a multiple of it (a batch, a window)."""
    return frames * value // before if frames % before == 0 else frames


if __name__ == "__main__":
    main(TARGET, run)
