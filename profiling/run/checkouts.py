"""Checkouts that are measured beside each other: from each come the user's modules.

The tool is the same for all of them: the one that the user started. A process that measures a checkout imports the tool
first and then enters the checkout, so that neither the tool nor the installed packages are those of the checkout.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from profiling.errors import InputError

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
