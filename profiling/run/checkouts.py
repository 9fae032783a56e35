"""Checkouts that are measured beside each other: a git revision in a temporary worktree, or a folder.

The tool is the same for all of them: the one that the user started. From a checkout come the user's modules and YAML
files. A process that measures it imports the tool first and then enters the checkout, so that neither the tool nor the
installed packages are those of the checkout.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling.errors import InputError, did_you_mean, printable, working_directory
from profiling.run.revisions import git

#: Names of the checkouts, in their order.
LETTERS = ("A", "B")
_TOOL = Path(__file__).resolve().parents[1]
_LIBRARIES = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@dataclass(frozen=True)
class Checkout:
    """A checkout of the user's code; all paths are absolute and without symbolic links.

    `others` are the checkouts whose code must not be imported in its place: that of the working directory, and those
    it is compared with.
    """

    name: str  # as messages call it: "A (HEAD~1)"
    folder: str  # the working directory of its processes
    root: str  # its topmost folder
    others: tuple[str, ...]

    def enter(self) -> None:
        """Make this process import the user's code from the checkout, and work in its folder.

        What was imported from another checkout so far is forgotten, and imported again from this one. A package that
        lies elsewhere, installed with `pip install --target` for example, is the same for all.
        """
        entries = [self.counterpart(entry) for entry in sys.path]
        variable = os.environ.get("PYTHONPATH", "")
        places = [self.counterpart(entry) for entry in variable.split(os.pathsep) if entry]
        os.chdir(self.folder)
        sys.path[:] = list(dict.fromkeys([self.folder, *entries]))
        if places:  # for processes that the user's code starts
            os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(places))
        for name, _ in self._foreign_modules():
            del sys.modules[name]
        importlib.invalidate_caches()

    def counterpart(self, path: str | Path) -> str:
        """Return the path in this checkout that corresponds to one in another; unchanged where it is in none."""
        real = Path(path).resolve()
        if real.is_relative_to(self.root) or _is_library(real):
            return str(path) or str(real)
        for other in self.others:
            if real.is_relative_to(other):
                return str(self.root / real.relative_to(other))
        return str(path)

    def check_imports(self) -> None:
        """Check that no module was imported from another checkout: by a finder of an installed package, for example.

        Raises:
            InputError: one was, so that its code would be measured in the place of this checkout's.

        """
        for name, file in self._foreign_modules():
            raise InputError(
                f"{name} is imported from {file}, which is not in this checkout. Add the folder that it is imported "
                "from to PYTHONPATH, or start the command there."
            )

    def _foreign_modules(self) -> list[tuple[str, Path]]:
        """Return the imported modules of the other checkouts, with their files."""
        found = [(name, file) for name, file in _users_modules() if not file.is_relative_to(self.root)]
        return [(name, file) for name, file in found if any(file.is_relative_to(other) for other in self.others)]


def _users_modules() -> list[tuple[str, Path]]:
    """Return the imported modules with their files, without this tool's, the standard library's and installed ones."""
    modules = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
        if name == "__main__" or not isinstance(file, str):
            continue
        real = Path(file).resolve()
        if not _is_library(real) and not real.is_relative_to(_TOOL):
            modules.append((name, real))
    return modules


def _is_library(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _LIBRARIES) or bool(
        {"site-packages", "dist-packages"} & set(path.parts)
    )


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
    """Return the topmost folder of the code that `folder` stands for; a copy inside this checkout is one by itself."""
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
