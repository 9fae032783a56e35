"""Profile components under variants: `python -m profiling.generic_forward` (the main job)."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from profiling.cli.app import execute, main
from profiling.cli.config import read_config

TARGET = "generic_forward"


def run(cfg: DictConfig, folder: Path) -> int:
    """Run every component under every variant."""
    return execute(TARGET, read_config(cfg), folder)


if __name__ == "__main__":
    main(TARGET, run)
