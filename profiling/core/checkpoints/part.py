"""The part of a file that has arrived, and which version of the remote file it is a part of.

The version (the server's ETag, else its Last-Modified) stands in a small file beside it: a download that goes on
tomorrow must notice that the remote file changed overnight, or it would splice two files into one.
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path


class Part:
    """A `.part` file that this process holds alone, and its `.part.etag`. Every method raises OSError."""

    def __init__(self, path: Path, file: FileIO):
        self.path = path
        self.total: int | None = None  # bytes of the whole file, once the server has said it
        self._file = file
        self._etag = path.with_name(path.name + ".etag")

    @property
    def size(self) -> int:
        """Bytes that have arrived."""
        return os.fstat(self._file.fileno()).st_size

    def version(self) -> str | None:
        """Say which version of the remote file this is a part of; None when it cannot be gone on with."""
        if not self.size or not self._etag.is_file():
            return None
        return self._etag.read_text(encoding="latin-1") or None

    def restart(self, version: str | None) -> None:
        """Drop what has arrived; what comes now belongs to `version` (None: it cannot be resumed)."""
        self._file.truncate(0)  # first: a crash between the two must not leave old bytes under a new version
        if version:
            self._etag.write_text(version, encoding="latin-1")
        else:
            self._etag.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Append `chunk`; what did fit before an error stays."""
        rest = memoryview(chunk)
        while rest:
            rest = rest[self._file.write(rest) :]

    def flush(self) -> None:
        """Return when the bytes are on the disk."""
        os.fsync(self._file.fileno())

    def forget_version(self) -> None:
        """Remove the version's file, when the part is whole."""
        self._etag.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove all of it."""
        self.path.unlink(missing_ok=True)
        self.forget_version()
