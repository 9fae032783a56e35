"""Generates `docs/record.md` and `docs/record.schema.json` from the structs in `profiling/results/`.

Run it after a change of a field: `python docs/write_record.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from profiling.results.record import SCHEMA, Record

DOCS = Path(__file__).resolve().parent

_HEAD = f"""# The record

A run writes `results.jsonl`: one line of JSON for each cell (component × variant), of schema {SCHEMA}. While a run goes
on, or after it was killed, a cell may have several lines: the last one counts, and with `rounds=` the last one of each
round, which are merged when they are read. The first is written when the cell begins, and says that it has not ended.
This page is made from the structs in `profiling/results/` by
`python docs/write_record.py`, and so is [record.schema.json](record.schema.json), its JSON Schema. Absent means
not measured. Within a schema number fields are added and left out, and never renamed.

Read a run in Python:

```python
from pathlib import Path
from profiling.results.jsonl import read_records

for record in read_records(Path("runs/…")).records:
    print(record.cell, record.status, record.wall_p50)
```
"""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a line of results.jsonl."""
    schema = msgspec.json.schema(Record)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"record, schema {SCHEMA}", **schema}


def markdown() -> str:
    """Return the page: a table a struct, the record first and the others by name."""
    structs = json_schema()["$defs"]
    order = dict.fromkeys(("Record", *sorted(structs)))
    return "\n".join([_HEAD, *(_table(name, structs[name]) for name in order)])


def files() -> dict[Path, str]:
    """Return the generated files and their content."""
    schema = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    return {DOCS / "record.schema.json": schema, DOCS / "record.md": markdown()}


def main() -> None:
    """Write the files."""
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
        print(path)


def _table(name: str, struct: Mapping[str, Any]) -> str:
    required = struct.get("required", [])
    rows = []
    for field, content in struct["properties"].items():
        about = content.get("description", "number of the schema" if field == "schema" else "")
        shown = f"**`{field}`**" if field in required else f"`{field}`"
        rows.append(f"| {shown} | {_type(content)} | {content.get('unit', '')} | {about} |")
    lines = [f"## {name}", "", " ".join(struct.get("description", "").split()), ""]
    if required:
        lines += ["Fields in bold are always there.", ""]
    return "\n".join([*lines, "| field | type | unit | meaning |", "|---|---|---|---|", *rows, ""])


def _type(content: Mapping[str, Any]) -> str:
    if "$ref" in content:
        name = content["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in content:
        return " or ".join(_type(each) for each in content["anyOf"] if each.get("type") != "null")
    if "enum" in content:
        return ", ".join(f"`{value}`" for value in content["enum"])
    kind = content.get("type", "any JSON")
    if kind == "array" and "prefixItems" in content:
        return f"[{', '.join(_type(each) for each in content['prefixItems'])}]"
    if kind == "array":
        return f"list of {_type(content['items'])}"
    if kind == "object" and isinstance(content.get("additionalProperties"), dict):
        return f"object of {_type(content['additionalProperties'])}"
    return str(kind)


if __name__ == "__main__":
    main()
