"""How much the times of equal code differ between two processes on this device: what runs have learned, kept on disk.

A run prepares some of its cells a second time. The pairs are pooled by device and by the kind of cell, and later runs
begin with them, as a prior with the weight of a few pairs. Where nothing was learned the default of the kind stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from profiling.machine.ceilings import cache_folder
from profiling.results import judge
from profiling.results.measured import Spread
from profiling.results.run_folder import write_json

#: Pairs of a kind that are kept, the newest.
KEPT = 16


@dataclass
class Spreads:
    """The spreads of a device; without a file nothing is kept beyond the run."""

    file: Path | None = None
    pairs: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # by kind: see `judge.control_pairs`

    @staticmethod
    def of(device: str, folder: Path | None = None) -> Spreads:
        """Read the pairs that runs on this kind of device have measured; none where the file is missing or damaged."""
        name = re.sub(r"[^\w.-]+", "-", device)
        file = (folder or cache_folder().with_name("spreads")) / f"{name}.json"
        spreads = Spreads(file)
        with suppress(OSError, ValueError, TypeError, AttributeError):
            content = json.loads(file.read_text(encoding="utf-8"))
            spreads.pairs = {
                kind: [(float(difference), float(variance)) for difference, variance in pairs]
                for kind, pairs in content.items()
                if kind in judge.DEFAULT_SPREADS
            }
        return spreads

    def known(self, kind: str) -> Spread:
        """Return the spread of a kind of cell."""
        return judge.DEFAULT_SPREADS[kind].taught(self.pairs.get(kind, []))

    def keep(self, kind: str, pairs: Sequence[tuple[float, float]]) -> None:
        """Add pairs of placements, and write them down; a folder that cannot be written to keeps nothing."""
        if not pairs:
            return
        self.pairs[kind] = [*self.pairs.get(kind, []), *pairs][-KEPT:]
        if self.file is not None:
            with suppress(OSError):
                self.file.parent.mkdir(parents=True, exist_ok=True)
                write_json(self.file, self.pairs)
