"""Time a pipeline of stages, each frame against its deadline: `python -m profiling.realtime`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from profiling.cli.app import execute, main
from profiling.cli.config import read_config
from profiling.cli.groups import named_recipes
from profiling.components.spec import ComponentSpec, decode_options
from profiling.errors import InputError
from profiling.realtime.graph import Graph, parse_graph
from profiling.realtime.plan import LoopOptions
from profiling.results.record import MIXED
from profiling.run.job import RunConfig, as_recipe

TARGET = "realtime"
CELL = "profiling.realtime.cell.RealtimeCell"
_MIXED_TARGET = "profiling.realtime.mix.Mixed"


def run(cfg: DictConfig, folder: Path) -> int:
    """Play the pipeline under every chosen variant, or once with the variant that `mix` gives each stage."""
    from profiling.realtime.recovery import FrameFiles  # imports numpy, which would slow --help down

    config, graph = checked(cfg)
    specs = {spec.name: spec for spec in config.components}
    stages = {name: specs[stage.component] for name, stage in graph.stages.items()}
    procedure = {
        "_target_": CELL,
        "_recursive_": False,  # targets in these nodes are of stages and sources
        "plan": {"options": config.source["loop"], "pipeline": config.source["pipeline"]},
    }
    variants = mixed(config, graph) or config.variants

    def parts(options: Mapping[str, Any]) -> list[tuple[ComponentSpec, Mapping[str, Any]]]:
        of_stage = options["stages"] if options["_target_"] == _MIXED_TARGET else dict.fromkeys(stages, options)
        return [(spec, of_stage[name]) for name, spec in stages.items()]

    config = replace(config, variants=variants, procedure=procedure, files=FrameFiles())
    config = replace(config, parts=parts, loop=graph.name)
    return execute(TARGET, config, folder)


def checked(cfg: DictConfig) -> tuple[RunConfig, Graph]:
    """Return the run's config, with the components that a stage names, and the graph of the pipeline.

    Raises:
        InputError: an option of the loop, or something in `pipeline`, is wrong.

    """
    chosen = cfg.get("pipeline")
    node: Any = OmegaConf.to_container(chosen, resolve=True) if isinstance(chosen, DictConfig) else chosen
    graph = parse_graph(node, cfg.get("component") or {})
    used = {stage.component for stage in graph.stages.values()}
    others = [name for name in cfg.component if name not in used]
    cfg = cfg.copy()
    with open_dict(cfg):  # a pipeline may set options of a component that the command line has replaced
        cfg.pipeline = node
        for name in others:
            del cfg.component[name]
    config = read_config(cfg)
    decode_options(LoopOptions, config.source["loop"], "loop")  # checked before any process is started
    return config, graph


def mixed(config: RunConfig, graph: Graph) -> dict[str, Mapping[str, Any]] | None:
    """Return the one variant that `mix` describes, or None without `mix`.

    Raises:
        InputError: `mix` is no mapping, its stages are not exactly those of the loop, or a variant is no expression of
            steps, and not among those chosen.

    """
    mix: Any = config.source.get("mix")
    if not mix:
        return None
    if not isinstance(mix, Mapping) or set(mix) != set(graph.stages):
        example = ",".join(f"{stage}:baseline" for stage in graph.stages)
        raise InputError(
            f"mix={mix}: name a variant for each stage and nothing else, as in 'mix={{{example}}}' "
            "(in quotes, since a shell expands braces)."
        )
    recipes: dict[str, Mapping[str, Any]] = {}
    for stage, name in mix.items():
        if str(name) in config.variants:  # perhaps one of the user's own
            recipes[stage] = dict(config.variants[str(name)])
            continue
        try:
            (recipe,) = named_recipes([str(name)], config.steps).values()
        except InputError as error:
            raise InputError(f"mix.{stage}={name}: {error}") from None
        recipes[stage] = as_recipe(recipe)
    return {MIXED: {"_target_": _MIXED_TARGET, "stages": recipes}}


if __name__ == "__main__":
    main(TARGET, run)
