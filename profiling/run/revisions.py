"""The git revisions of a run: of the user's checkouts (working directory, components' modules) and of this tool."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from profiling.results.environment import Git

#: The checkout of this tool, if it runs from one.
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
    """Return {`_target_`: git state of the checkout that defines it}, without targets outside any checkout.

    Installed packages are left out, because a virtual environment may lie in a checkout of another project. The call
    imports the parent packages of each target, which may import torch.
    """
    folders = {target: _folder_of(target) for target in targets}
    states = {folder: git_state(folder) for folder in set(folders.values()) if folder is not None}
    return {
        target: state
        for target, folder in folders.items()
        if folder is not None and (state := states[folder]) is not None
    }


def _folder_of(target: str) -> Path | None:
    """Return the folder of the module in `package.module.Class.method`; None for an installed or unknown one."""
    module = target
    while "." in module:
        module = module.rpartition(".")[0]
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):
            continue
        if spec is not None:
            file = Path(spec.origin or "")
            installed = {"site-packages", "dist-packages"} & set(file.parts)
            return file.parent if file.is_file() and not installed else None
    return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
