"""When does a variant pay off? Components × shapes × variants × calls: `python -m profiling.shape_sweep`."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from profiling.cli.app import execute, main
from profiling.cli.config import read_component, read_config
from profiling.components.spec import ComponentSpec, Sweep, decode
from profiling.errors import InputError, check_whole, did_you_mean

TARGET = "shape_sweep"
#: Compilers whose option `dynamic` cannot be null.
_NO_NULL = ("profiling.variants.aot_inductor.AOTInductor", "profiling.variants.tensorrt.AOTTensorRT")


def run(cfg: DictConfig, folder: Path) -> int:
    """Run every component at every point of its sweep under every variant."""
    config = read_config(cfg)
    points = [point for spec in config.components for point in points_of(cfg, spec)]
    variants = with_dynamic(config.variants, cfg.dynamic)
    return execute(TARGET, replace(config, components=tuple(points), variants=variants), folder)


def with_dynamic(variants: Mapping[str, Mapping[str, Any]], values: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the variants, each compiled one once for each of `values` as its compiler's option `dynamic`.

    A package is made with true or false: its compiler has no null.

    Raises:
        InputError: a value is none of false, true and null.

    """
    chosen = list(values) if OmegaConf.is_list(values) or isinstance(values, list | tuple) else [values]
    if any(value is not None and not isinstance(value, bool) for value in chosen):
        raise InputError(f"dynamic={chosen}: must be values of torch.compile's option, dynamic=[false,true,null].")
    expanded: dict[str, Mapping[str, Any]] = {}
    for name, node in variants.items():
        compiler = node.get("compiler")
        if not chosen or not isinstance(compiler, Mapping) or "dynamic" not in compiler:
            expanded[name] = node
            continue
        has_null = compiler.get("_target_") not in _NO_NULL
        for value in [each for each in chosen if each is not None or has_null] or [compiler["dynamic"]]:
            expanded[f"{name}@dynamic={json.dumps(value)}"] = {**node, "compiler": {**compiler, "dynamic": value}}
    return expanded


def points_of(cfg: DictConfig, spec: ComponentSpec) -> list[ComponentSpec]:
    """Return the component at each value of its axis, and with `together` one that is prepared for all of them.

    Raises:
        InputError: an axis that the component's inputs do not have, or values that are not whole numbers from 1 up.

    """
    sweep = decode(Sweep, spec.sweep or {}, f"component.{spec.key}.sweep")
    axis = sweep.axis if cfg.axis is None else str(cfg.axis)
    given: Any = sweep.values if cfg["values"] is None else cfg["values"]
    values = list(given) if OmegaConf.is_list(given) or isinstance(given, tuple) else [given]
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
    are_shapes = "_target_" not in node.inputs
    before = _set_axis(node.inputs, axis, value, f"component.{name}.inputs", are_shapes=are_shapes)
    if not computed:
        node.frames_per_call = _scaled(node.get("frames_per_call", 1), value, before)
    tiny = node.get("tiny")
    if tiny and tiny.get("inputs") and _has_axis(tiny.inputs, axis):
        before = _set_axis(tiny.inputs, axis, value, f"component.{name}.tiny.inputs", are_shapes=are_shapes)
    if tiny and tiny.get("frames_per_call"):
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


def _set_axis(inputs: DictConfig, axis: str, value: int, where: str, *, are_shapes: bool) -> int:
    """Set `axis` (an argument of the input maker, `batch`, or `INPUT.N`) and return its previous value.

    A nested input has a dotted path: `cache.0.key.2` is the third dimension of `inputs["cache"][0]["key"]`.

    Where inputs are given as shapes, the batch is the first dimension of the first input, and of all others with the
    same first dimension.
    """
    if not are_shapes:
        options = [str(key) for key in inputs if key != "_target_"]
        if axis not in options:
            raise InputError(f"axis={axis}: {where} has no {axis!r}.{did_you_mean(axis, options)} {_choice(options)}")
        before = inputs[axis]
        check_whole(f"{where}.{axis}", before)
        inputs[axis] = value
        return before
    shapes = _shapes(inputs)
    path, _, dim = axis.rpartition(".")
    batch = next((shape[0] for shape in shapes.values()), None)
    swept = [shape for key, shape in shapes.items() if key == path or (axis == "batch" and shape[0] == batch)]
    place = int(dim) if dim.isdecimal() else 0
    dims = [f"{key}.{i}" for key, shape in shapes.items() for i in range(len(shape))]
    if not shapes:
        raise InputError(f"axis={axis}: no input of {where} has a shape. Give one that is a tensor a shape.")
    if not swept or (axis != "batch" and axis not in dims):
        raise InputError(f"axis={axis}: {where} has no such dimension. {_choice(['batch', *dims])}")
    before = swept[0][place]
    for shape in swept:
        if not OmegaConf.is_interpolation(shape, place):
            shape[place] = value
    return before


def _has_axis(inputs: DictConfig, axis: str) -> bool:
    shapes = _shapes(inputs)
    return axis in inputs or axis.rpartition(".")[0] in shapes or (axis == "batch" and bool(shapes))


def _shapes(node: DictConfig | ListConfig, path: str = "") -> dict[str, ListConfig]:
    """Return the shapes of at least one dimension in `inputs`, by the dotted path of their tensor."""
    shapes: dict[str, ListConfig] = {}
    for key, each in enumerate(node) if isinstance(node, ListConfig) else node.items():
        if isinstance(each, DictConfig) and OmegaConf.is_list(each.get("shape")):
            shapes |= {f"{path}{key}": each.shape} if each.shape else {}
        elif isinstance(each, DictConfig | ListConfig):
            shapes |= _shapes(each, f"{path}{key}.")
    return shapes


def _choice(options: Sequence[str]) -> str:
    return f"Choose one of: {', '.join(options)}"


def _scaled(frames: int, value: int, before: int) -> int:
    """Return the frames of a call: they scale with the axis where they are a multiple of it (a batch, a window)."""
    return frames * value // before if frames % before == 0 else frames


if __name__ == "__main__":
    main(TARGET, run)
