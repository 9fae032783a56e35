"""The committed record of what was downloaded first (`lock.yaml`): the publisher gives no sha256, so ours must last."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from profiling.core.checkpoints.claim import claim, replace
from profiling.errors import InputError

_HEADER = """\
# sha256 and size in bytes of each file in manifest.yaml: recorded at its first download, checked ever after.
# Commit this file. Remove an entry only to accept a file that was published anew.
"""
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Locked:
    """What a file was when it was first seen: its digest (64 hexadecimal digits) and its size in bytes."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        """Raise InputError when this is not a digest and a size."""
        if not isinstance(self.sha256, str) or not SHA256.fullmatch(self.sha256):
            raise InputError(f"sha256 must be 64 hexadecimal digits, not {self.sha256!r}")
        if type(self.size) is not int or self.size < 1:
            raise InputError(f"size must be a number of bytes, not {self.size!r}")


def read_lock(lock: Path) -> dict[str, Locked]:
    """Read name → digest and size; no file yet means none recorded. Raises InputError when the file is broken."""
    try:
        content = yaml.safe_load(lock.read_text(encoding="utf-8")) or {}
        files = content.get("files") or {}
        return {str(name): Locked(**entry) for name, entry in files.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError, AttributeError, TypeError, InputError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"lock file '{lock}' is broken ({reason}): restore it with git checkout") from None


def record(lock: Path, name: str, seen: Locked) -> bool:
    """Add `name` to the lock file, atomically and alone; return False when an equal record stands there already.

    Raises InputError when another digest stands there already, OSError when the file cannot be written.
    """
    making = lock.with_name(lock.name + ".part")
    with claim(making) as file:
        files = read_lock(lock)
        if name in files:
            making.unlink()
            if files[name] != seen:
                raise InputError(f"{name}: sha256 is {seen.sha256}, but '{lock}' says {files[name].sha256}")
            return False
        files[name] = seen
        text = _HEADER + yaml.safe_dump({"files": {key: asdict(files[key]) for key in sorted(files)}}, sort_keys=False)
        file.truncate(0)
        file.write(text.encode())
        os.fsync(file.fileno())
        replace(making, lock)
        return True
