"""Where the numbers come from: the environment, the config, and the command that makes the run again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from profiling.reporting.format import one_line
from profiling.reporting.heading import command_line
from profiling.reporting.html.material import Material
from profiling.reporting.html.section import Cell, Section, Table


def environment_section(material: Material) -> Section:
    """Return every fact of the environment under its dotted name."""
    rows = tuple((Cell(one_line(name)), Cell(one_line(value))) for name, value in _facts(material.environment))
    table = Table("Facts", ("fact", "value"), rows)
    return Section("environment", "Environment", tables=(table,) if rows else ())


def config_section(material: Material) -> Section:
    """Return the run's config as it was composed."""
    return Section("config", "Config", text=material.config())


def command_section(material: Material) -> Section:
    """Return the command line."""
    return Section("command", "The command to reproduce it", text=command_line(material.environment) or "")


def _facts(content: object, name: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _facts(value, f"{name}.{key}" if name else str(key))
    elif isinstance(content, list | tuple):
        yield name, ", ".join(map(str, content))
    else:
        yield name, content
