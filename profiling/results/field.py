"""How a field of a typed section is described: its meaning in one line, and its unit."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

#: A time that has passed: never negative, so that a clock that goes back fails its cell.
Duration = Annotated[float, msgspec.Meta(ge=0)]


class Section(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a record. None, an empty tuple or an empty mapping means that it was not measured, or that none were.

    A required field is always written; an optional one that holds its default is not.
    """


def about(description: str, unit: str | None = None) -> Any:
    """Return the `Annotated` metadata of a field, which the JSON Schema and docs/record.md are generated from."""
    return msgspec.Meta(description=description, extra_json_schema=None if unit is None else {"unit": unit})
