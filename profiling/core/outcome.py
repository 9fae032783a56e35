"""What a cell's process has told so far, and the record that it makes, however the process ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from profiling.core.progress import Progress
from profiling.core.records import Record


@dataclass
class Outcome:
    """Sections and ending of a cell; `killed` says what ended the process, None if it ended by itself."""

    base: Record
    killed: str | None = None
    sections: dict[str, Any] = field(default_factory=dict)
    ending: Mapping[str, Any] | None = None

    @property
    def ended(self) -> bool:
        """Whether the cell has told its result."""
        return self.ending is not None

    def listener(self, progress: Progress) -> Callable[[Mapping[str, Any]], None]:
        """Return what takes the cell's events."""

        def on_event(event: Mapping[str, Any]) -> None:
            if event["event"] == "phase":
                progress.phase(event["phase"])
            elif event["event"] == "sections":
                for key, value in event["sections"].items():
                    self.sections[key] = tuple(value) if key == "notes" else value
            elif event["event"] == "end":
                self.ending = event

        return on_event

    def record(self) -> Record:
        """Return the record: what was measured before a crash is in it."""
        record = replace(self.base, **self.sections)
        if self.ending is None:
            return record.with_status("failed", f"the process {self.killed}")
        record = replace(record, **{key: self.ending[key] for key in ("status", "reason", "bad_input")})
        if self.killed is None:
            return record
        return replace(record, notes=(*record.notes, f"after its result the process {self.killed}"))
