"""Time the loop of a real-time application, each frame against its deadline: `python -m profiling.realtime`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from profiling.cli.app import execute, main
from profiling.cli.config import read_config
from profiling.components.spec import ComponentSpec, decode_options
from profiling.errors import InputError, did_you_mean
from profiling.realtime.options import ROLES, WHOLE, WORLD, WORLD_OPTIONS, LoopOptions
from profiling.run.job import RunConfig

TARGET = "realtime"
CELL = "profiling.realtime.cell.RealtimeCell"
MIXED = "profiling.realtime.prepare.Mixed"


def run(cfg: DictConfig, folder: Path) -> int:
    """Play the loop under every chosen variant, or once with the variant that `mix` gives each stage."""
    from profiling.realtime.recovery import FrameFiles  # imports numpy, which would slow --help down

    config = read_config(cfg)
    options = config.source["loop"]
    decode_options(LoopOptions, options, "loop")  # checks them before any process is started
    stages = chosen_stages(config)
    stages[WORLD] = with_denoising(stages[WORLD], config.source)
    procedure = {
        "_target_": CELL,
        "options": options,
        "stages": json.dumps({role: asdict(spec) for role, spec in stages.items()}),
    }
    pipeline = replace(stages[WORLD], name=TARGET, checkpoint=None)
    variants = mixed(config) or config.variants
    config = replace(config, components=(pipeline,), variants=variants, procedure=procedure, files=FrameFiles())
    return execute(TARGET, config, folder)


def chosen_stages(config: RunConfig) -> dict[str, ComponentSpec]:
    """Return the component of each role.

    Raises:
        InputError: `stages` is not a mapping, or a role names no component or one that was not chosen.

    """
    components = {spec.name: spec for spec in config.components}
    names: Any = config.source.get("stages") or {}
    if not isinstance(names, Mapping):
        raise InputError(f"stages={names}: name a component for each role, stages.picture=picture_stage for example.")
    stages = {}
    for role in ROLES:
        name = names.get(role)
        if not isinstance(name, str) or name not in components:
            raise InputError(
                f"stages.{role}={name} is none of the components {', '.join(components)}."
                f"{did_you_mean(str(name), components)} Name it in component=[...] too."
            )
        stages[role] = components[name]
    return stages


def with_denoising(world: ComponentSpec, source: Mapping[str, Any]) -> ComponentSpec:
    """Return the world model's spec with the `steps`, `commit` and `guidance` of the command line.

    Raises:
        InputError: the module has no such argument.

    """
    given = {name: source[name] for name in WORLD_OPTIONS if source.get(name) is not None}
    for name in given:
        if name not in world.module:
            raise InputError(
                f"{name}={given[name]}: component.{world.name}.module has no {name}. Leave it out, or use a component "
                "that has one, world_model_frame for example."
            )
    return replace(world, module={**world.module, **given})


def mixed(config: RunConfig) -> dict[str, Mapping[str, Any]] | None:
    """Return the one variant that `mix` describes, or None without `mix`.

    Raises:
        InputError: `mix` is no mapping, its stages are not exactly those of the loop, or a variant is not among those
            chosen.

    """
    mix: Any = config.source.get("mix")
    if not mix:
        return None
    stages = (WHOLE,) if config.source["loop"].get("schedule") == "one_graph" else ROLES
    if not isinstance(mix, Mapping) or set(mix) != set(stages):
        example = ",".join(f"{stage}:baseline" for stage in stages)
        raise InputError(
            f"mix={mix}: name a variant for each stage and nothing else, as in 'mix={{{example}}}' "
            "(in quotes, since a shell expands braces)."
        )
    for stage, name in mix.items():
        if not isinstance(name, str) or name not in config.variants:
            raise InputError(
                f"mix.{stage}={name} is none of variant=[{','.join(config.variants)}]."
                f"{did_you_mean(str(name), config.variants)} Add it there."
            )
    return {"mixed": {"_target_": MIXED, "stages": {stage: dict(config.variants[name]) for stage, name in mix.items()}}}


if __name__ == "__main__":
    main(TARGET, run)
