"""Opens what `compare` measures beside each other: a folder, or a git revision in a temporary worktree."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from profiling.errors import InputError, did_you_mean, printable, working_directory
from profiling.run.checkouts import Checkout
from profiling.run.revisions import git

#: Names of the checkouts, in their order.
LETTERS = ("A", "B")


@contextlib.contextmanager
def opened(names: Sequence[str]) -> Iterator[tuple[Checkout, ...]]:
    """Yield a checkout for each name, a folder or a git revision; the worktrees of revisions are removed at the end.

    A revision's folder is the one that corresponds to the working directory.

    Raises:
        InputError: a name is neither a folder nor a revision, no worktree can be made, or the working directory was
            deleted.

    """
    here = working_directory().resolve()
    top = _top(here)
    with contextlib.ExitStack() as stack:
        found: dict[str, tuple[Path, Path]] = {}  # folder and root, by the name that messages use
        for letter, name in zip(LETTERS, names, strict=False):
            if Path(name).is_dir():
                folder = Path(name).resolve()
                root = _root(folder, here, top)
            else:
                commit = _commit(name, here, top)
                assert top is not None
                root = stack.enter_context(_worktree(top, commit, f"{letter}-{commit[:7]}"))
                folder = root / here.relative_to(top)
                if not folder.is_dir():
                    raise InputError(f"{name} lacks this folder, {here.relative_to(top)}. Start the command in {top}.")
            found[f"{letter} ({name})"] = folder, root
        roots = {str(top or here), *(str(root) for _, root in found.values())}
        yield tuple(
            Checkout(name, str(folder), str(root), tuple(roots - {str(root)})) for name, (folder, root) in found.items()
        )


def _root(folder: Path, here: Path, top: Path | None) -> Path:
    """Return the topmost folder of the checkout of `folder`. A copy of the code inside this checkout is one itself."""
    of_folder = _top(folder) or folder
    return folder if of_folder == top and folder != here else of_folder


def _top(folder: Path) -> Path | None:
    """Return the topmost folder of the git checkout that holds `folder`; None outside a checkout."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return Path(os.fsdecode(git(folder, "rev-parse", "--show-toplevel").rstrip(b"\n"))).resolve()
    return None


def _commit(name: str, here: Path, top: Path | None) -> str:
    """Return the commit that a revision names, 40 hexadecimal digits.

    Raises:
        InputError: there is no such revision.

    """
    if top is None:
        if shutil.which("git") is None:
            raise InputError(f"{name} is no folder, and git is not installed. Install git, or name two folders.")
        raise InputError(
            f"{name} is no folder, and {here} is not in a git repository. Start the command in your repository, or "
            "name two folders."
        )
    try:
        return git(top, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
    except subprocess.CalledProcessError:
        names = git(top, "for-each-ref", "--format=%(refname:short)").decode(errors="replace").split()
        raise InputError(
            f"{name} is neither a folder nor a revision of {top}.{did_you_mean(name, names)} `git log --oneline` lists "
            "revisions."
        ) from None


@contextlib.contextmanager
def _worktree(top: Path, commit: str, name: str) -> Iterator[Path]:
    """Yield a temporary worktree of the repository at `top` with the files of `commit`; it is removed at the end.

    Raises:
        InputError: git cannot make it.

    """
    parent = Path(tempfile.mkdtemp(prefix="profiling-checkout-")).resolve()
    folder = parent / name
    try:
        try:  # without hooks: the user's post-checkout would run for each comparison
            git(top, "-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--detach", str(folder), commit)
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode(errors="replace").strip().splitlines() or ["git failed"]
            raise InputError(f"git cannot check out {commit[:7]} in {folder}: {printable(lines[-1])}") from None
        yield folder
    finally:
        with _uninterrupted():
            for command in (("worktree", "remove", "--force", "--force", str(folder)), ("worktree", "prune")):
                with contextlib.suppress(OSError, subprocess.CalledProcessError):
                    git(top, *command)
                shutil.rmtree(parent, ignore_errors=True)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM inside the block, which takes a moment."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
