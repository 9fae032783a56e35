"""The YAML files of config groups: where they are, which there are, and what is in one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from profiling.errors import InputError

CONF = Path(__file__).resolve().parents[2] / "conf"
#: Most bytes of a YAML file: a larger one takes minutes to read.
MOST_BYTES = 2_000_000


def find_file(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the YAML file of a config, `component/my_net` for example, in the first of `folders` that has it."""
    return next((path for folder in folders if (path := folder / f"{name}.yaml").is_file()), None)


def names_in(group: str, folders: Sequence[Path]) -> list[str]:
    """Return the names of the YAML files of a config group, folder by folder."""
    files = (path for folder in folders for path in sorted((folder / group).glob("*.yaml")))
    return list(dict.fromkeys(path.stem for path in files))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the content of a YAML file, interpolations as they are written; empty if it is no mapping.

    Raises:
        InputError: it is too large, or not valid UTF-8 or YAML.

    """
    check_size(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise InputError(f"{path} is not valid: it is nested too deeply.") from None
    except (ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path} is not valid: {error}. Correct the file.") from None
    return {str(key): node for key, node in content.items()} if isinstance(content, dict) else {}


def check_size(path: Path) -> None:
    """Raise an InputError if a YAML file has more than `MOST_BYTES`."""
    if (size := path.stat().st_size) > MOST_BYTES:
        most = f"a config has at most {MOST_BYTES / 1e6:.0f}"
        raise InputError(f"{path} has {size / 1e6:.0f} MB; {most}. Name another file.")
