"""Folders of save_pretrained with tiny networks of diffusers and transformers, and the components that load them."""

from pathlib import Path
from typing import Any

import torch
from test_conf import composed
from torch import Tensor
from torch.utils._pytree import tree_leaves

from profiling.cli.config import read_config
from profiling.components.build import Blueprint, build
from profiling.components.spec import Settings


def built(name: str, *overrides: str) -> Blueprint:
    """Build a component at scale tiny on the CPU."""
    (spec,) = read_config(composed(f"component=[{name}]", *overrides)).components
    return build(spec.at("tiny"), Settings(device="cpu", dtype="float32", scale="tiny"))


def output(blueprint: Blueprint) -> list[Tensor]:
    """Return the floating-point outputs of the first call."""
    component = blueprint.component(0)
    with torch.inference_mode():
        component.reset()
        return [leaf for leaf in tree_leaves(component.call()) if leaf.is_floating_point()]


def save(name: str, folder: Path) -> tuple[Path, list[Tensor]]:
    """Save a component's network, with other weights than it is built with, in shards; return folder and output."""
    blueprint = built(name)
    with torch.no_grad():
        for parameter in blueprint.module.parameters():
            parameter.mul_(0.9)
    model: Any = blueprint.module.model
    model.save_pretrained(folder, max_shard_size="200KB")
    return folder, output(blueprint)
