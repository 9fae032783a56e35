"""Which version of the code a run measured."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def git_facts() -> dict[str, Any]:
    """Return {"revision", "dirty"} of the harness's checkout; empty outside a checkout or without git."""
    try:
        revision = _git("rev-parse", "HEAD")
        return {"revision": revision, "dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.CalledProcessError):
        return {}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
