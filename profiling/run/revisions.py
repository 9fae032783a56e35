"""Which code a run measured: the git state of the user's checkouts, and of this tool's."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from profiling.results.environment import Git

#: The checkout that this tool runs from, if it runs from one.
TOOL = Path(__file__).resolve().parents[2]


def git_state(folder: Path) -> Git | None:
    """Return revision and state of the git checkout that holds `folder`; None outside a checkout or without git."""
    try:
        revision = _git(folder, "rev-parse", "HEAD")
        return Git(revision=revision, dirty=bool(_git(folder, "status", "--porcelain", "--untracked-files=no")))
    except (OSError, subprocess.CalledProcessError):
        return None


def tool_version() -> str | None:
    """Return the version of this tool; None where it is not installed as a package."""
    try:
        return metadata.version("rt-profiling")
    except metadata.PackageNotFoundError:
        return None


def module_states(targets: Iterable[str]) -> dict[str, Git]:
    """Return the git state of the checkout that defines each `_target_`, by `_target_`; without those of no checkout.

    Importing the parent packages of a target may import torch.
    """
    states: dict[Path, Git | None] = {}
    by_target = {}
    for target in targets:
        folder = _folder_of(target)
        if folder is None:
            continue
        if folder not in states:
            states[folder] = git_state(folder)
        if (state := states[folder]) is not None:
            by_target[target] = state
    return by_target


def _folder_of(target: str) -> Path | None:
    """Return the folder of the module in `package.module.Class.method`."""
    module = target
    while "." in module:
        module = module.rpartition(".")[0]
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):
            continue
        if spec is not None:
            return Path(spec.origin).parent if spec.origin and Path(spec.origin).exists() else None
    return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
