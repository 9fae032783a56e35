"""What the plots share: matplotlib where it is installed, and names that it does not take for formulas."""

from __future__ import annotations

from typing import Any

from profiling.errors import MissingExtraError


def blank_figure(lines: int, columns: int, *, width: float, height: float) -> tuple[Any, list[Any]]:
    """Return (figure, its panels by line) with `lines` x `columns` panels of `width` x `height` inches.

    Raises:
        MissingExtraError: matplotlib is not installed.

    """
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingExtraError("matplotlib is not installed: pip install -e '.[plot]'") from None
    rcParams["svg.hashsalt"] = "profiling"  # the same run is the same file, however often it is printed
    figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
    return figure, list(figure.subplots(lines, columns, squeeze=False).flat)


def plain(name: str) -> str:
    """Return `name` as text: matplotlib reads formulas between dollars."""
    return name.replace("$", r"\$")
