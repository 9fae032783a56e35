"""Measure a whole training step under variants: `python -m profiling.training_step`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from profiling.cli.app import execute, main
from profiling.cli.config import read_config
from profiling.components.spec import check_target, decode_options
from profiling.errors import InputError
from profiling.training_step.options import TrainingOptions

TARGET = "training_step"
CELL = "profiling.training_step.cell.TrainingCell"


def run(cfg: DictConfig, folder: Path) -> int:
    """Train every component under every variant."""
    config = read_config(cfg)
    for name, node in config.variants.items():
        if node.get("transforms"):
            raise InputError(
                f"variant.{name}.transforms are for forward passes: a training step is prepared twice, and its weights "
                "belong to an optimizer. Leave the variant out, or write transforms: [] in its YAML."
            )
    options, optimizer = config.source["training"], config.source["optimizer"]
    decode_options(TrainingOptions, options, "training")  # before any process is started
    check_target(optimizer, "optimizer")
    if not optimizer.get("_partial_") or "lr" not in optimizer:
        raise InputError("optimizer: its YAML needs _target_, _partial_: true and lr. See conf/optimizer/sgd.yaml.")
    procedure = {"_target_": CELL, "options": options, "optimizer": optimizer}
    return execute(TARGET, replace(config, procedure=procedure), folder)


if __name__ == "__main__":
    main(TARGET, run)
