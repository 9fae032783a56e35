"""The code that a run measures: revisions of the user's checkouts (working directory, modules) and of this tool."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

from profiling.results.environment import Environment, Git
from profiling.results.jsonl import RESULTS_FILE

#: Files that git does not know yet belong to the code if they end like this: the rest may be gigabytes of data.
_CODE = ("py", "pyx", "c", "cc", "cpp", "cu", "cuh", "h", "hpp")
#: Where modules of Python itself are.
_STDLIB = sysconfig.get_path("stdlib")
#: The checkout of this tool, if it runs from one.
TOOL = Path(__file__).resolve().parents[2]


def git_state(folder: Path) -> Git | None:
    """Return revision and state of the git checkout that holds `folder`; None outside a checkout or without git.

    Source files that git does not know yet belong to it, without those that are ignored or that runs have written.
    """
    try:
        revision = git(folder, "rev-parse", "HEAD").decode().strip()
        changes = git(folder, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-relative")
        diff = _checksum(changes, _new_code(folder))
        return Git(revision=revision, dirty=diff is not None, diff=diff)
    except (OSError, subprocess.CalledProcessError):
        return None


def _new_code(folder: Path) -> list[Path]:
    """Return the source files of a checkout that are not in git, not ignored, and in no folder of a run."""
    top = Path(os.fsdecode(git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n")))
    patterns = [f"*.{ending}" for ending in _CODE]
    names = git(top, "ls-files", "--others", "--exclude-standard", "-z", "--", *patterns).split(b"\0")
    files = [top / os.fsdecode(name) for name in names if name]
    above = {parent for file in files for parent in file.parents}
    runs = {folder for folder in above if (folder / RESULTS_FILE).exists()}
    return [file for file in files if runs.isdisjoint(file.parents)]


def _files_state(folder: Path) -> Git:
    """Return a state outside git: a checksum of the source files in `folder`, and of packages beside or around it."""
    while (folder / "__init__.py").exists():
        folder = folder.parent
    places = [folder.glob, *(each.parent.rglob for each in folder.glob("*/__init__.py"))]
    return Git(diff=_checksum(b"", sorted(file for find in places for each in _CODE for file in find(f"*.{each}"))))


def _checksum(changes: bytes, files: Iterable[Path]) -> str | None:
    """Return a checksum of changes, and of names and contents of files; None if there are none."""
    checksum = hashlib.sha256(changes)
    for file in files:
        with suppress(OSError):  # it cannot be read
            if file.is_file():
                changes = f"{file}\n".encode(errors="surrogateescape") + file.read_bytes()
                checksum.update(changes)
    return checksum.hexdigest()[:16] if changes else None


def version_of(package: str) -> str | None:
    """Return the version of a package; None where it is not installed as one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def code_and_command(command: str, folder: Path, checkout: str | None = None) -> Environment:
    """Return the time, the command line, and the git revisions of this tool and of the code in `folder`."""
    return Environment(
        captured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        tool_version=version_of("rt-profiling"),
        checkout=checkout,
        user_git=git_state(folder),
        tool_git=git_state(TOOL),
    )


def code_changes(before: Environment, now: Environment) -> str:
    """Return what differs in the code of two runs, `your code 1a2b3c4 → 5d6e7f8` for example; empty if nothing does."""
    states = {"your code": (before.user_git, now.user_git), "this tool": (before.tool_git, now.tool_git)}
    states |= {name: (before.module_git.get(name), now.module_git.get(name)) for name in now.module_git}
    names: dict[tuple[Git | None, Git | None], str] = {}  # one for each checkout, which may hold all of them
    for name, pair in states.items():
        names.setdefault(pair, name)
    changes = [f"{name} {_words(one)} → {_words(two)}" for (one, two), name in names.items() if one != two]
    if before.tool_version != now.tool_version:
        changes.append(f"version of this tool {before.tool_version} → {now.tool_version}")
    return ", ".join(changes)


def _words(git: Git | None) -> str:
    if git is None or git.revision is None:
        return f"outside git{f' ({git.diff[:7]})' if git and git.diff else ''}"
    changed = f" with uncommitted changes ({(git.diff or 'unknown')[:7]})" if git.dirty else ""
    return f"{git.revision[:7]}{changed}"


def module_states(targets: Iterable[str]) -> dict[str, Git]:
    """Return {`_target_`: state of the checkout that defines it, or of its files outside any checkout}.

    Installed packages are left out, because a virtual environment may lie in a checkout of another project. The call
    imports the parent packages of each target, which may import torch.
    """
    state_of = cache(lambda folder: git_state(folder) or _files_state(folder))
    return {target: state_of(folder) for target in targets if (folder := _folder_of(target)) is not None}


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
            installed = {"site-packages", "dist-packages"} & {*file.parts} or file.is_relative_to(_STDLIB)
            return file.parent if file.is_file() and not installed else None
    return None


def git(folder: Path, *arguments: str) -> bytes:
    """Run git in `folder`, also inside a hook of another repository, and return its standard output.

    Raises:
        OSError: git is not installed.
        subprocess.CalledProcessError: git failed; its `stderr` says why.

    """
    of_a_hook = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
    environment = {name: value for name, value in os.environ.items() if name not in of_a_hook}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, check=True, env=environment, stdin=subprocess.DEVNULL).stdout
