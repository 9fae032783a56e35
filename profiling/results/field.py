"""Descriptions of the record's fields: what each means in one line, its unit, and the title of its column."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

#: A time that has passed: never negative, so that a clock that goes back fails its cell.
Duration = Annotated[float, msgspec.Meta(ge=0)]


class Section(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a record. None, an empty tuple or an empty mapping means that it was not measured, or that none were.

    A required field is always written; an optional one that holds its default is not.
    """


def about(description: str, unit: str | None = None, title: str | None = None) -> Any:
    """Return the `Annotated` metadata of a field: the JSON Schema, docs/record.md and columns are made from it.

    `unit` decides how a number is shown: "ms", "s", "us", "bytes", "0 to 1" (a percentage), "frames/s", "ratio"
    (6.01×), "relative" (an error, 1.7e-02), "count" (also an average one); others as they are. `title` heads the column
    of the field, where its name with blanks will not do; the header has the unit already.
    """
    return msgspec.Meta(
        title=title, description=description, extra_json_schema=None if unit is None else {"unit": unit}
    )


class Described(NamedTuple):
    """What `about` said of a field, the field's type without None, and the names and keys that lead to it."""

    title: str
    unit: str | None
    meaning: str
    type: Any
    names: tuple[str, ...]


@cache
def described(struct: type[msgspec.Struct], path: str) -> Described:
    """Return the description of the field at a dotted path: "idle.host_ms", or "phases.dynamo" in a mapping.

    A field without a unit has that of the field it is in. The title of one in a quantity begins with the quantity's:
    `p50` of `frame_ms` is "frame p50". What follows a mapping of numbers is one key, dots included.

    Raises:
        TypeError: a struct on the path has no such field.

    """
    name, _, rest = path.partition(".")
    hint = get_type_hints(struct, include_extras=True).get(name)
    if hint is None:
        raise TypeError(f"{struct.__name__} has no field {name}")
    meta = next((each for each in getattr(hint, "__metadata__", ()) if getattr(each, "description", None)), about(""))
    unit = (meta.extra_json_schema or {}).get("unit")
    title = _title(name, unit) if meta.title is None else meta.title
    kind = _plain(hint)
    if not rest:
        return Described(title, unit, meta.description, kind, (name,))
    names = (name,)
    if get_origin(kind) is Mapping:
        title, kind = "", get_args(kind)[1]
        if not hasattr(kind, "__struct_fields__"):
            return Described(rest, unit, meta.description, kind, (name, rest))
        key, _, rest = rest.partition(".")
        names = (name, key)
    inner = described(kind, rest)  # of what is no struct, a TypeError too
    title = f"{title if unit is not None else ''} {inner.title}".strip()
    return Described(title, inner.unit or unit, inner.meaning, inner.type, names + inner.names)


def _plain(hint: Any) -> Any:
    """Return a type without its metadata and without None."""
    while hasattr(hint, "__metadata__"):
        hint = hint.__origin__
    known = [each for each in get_args(hint) if each is not NoneType]
    return _plain(known[0]) if len(known) == 1 and NoneType in get_args(hint) else hint


def _title(name: str, unit: str | None) -> str:
    """Return a field's name with blanks, without the unit that it ends in."""
    for suffix in {"0 to 1": ("share",), "s": ("s", "seconds")}.get(unit or "", (unit or "",)):
        name = name.removesuffix(f"_{suffix.lower()}")
    return name.replace("_", " ")
