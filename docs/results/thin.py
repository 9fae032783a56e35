"""Reduce runs to what is committed here: `python docs/results/thin.py RUN [RUN ...] docs/results/NAME`.

Copies the records, the environment, the configuration, a search's winner and the files of a sweep's jobs, and renders
`report.md` anew. Several runs, each of other components or variants, become one. Removed are logs, traces, compiled
files, lines of cells that a later line replaces, cells that a time limit interrupted, and from the environment the
variables and paths of the machine, from its command the run folder. Samples keep six digits, finer than any clock. A
trace is reduced by `tests/data/traces/thin.py`.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from profiling.results.jsonl import encode_record, read_records

KEPT = ("config.yaml", "job.json", "sweep.json", "variant/*.yaml")
INTERRUPTED = "the process was interrupted"
#: An interpreter, and files of the machine: with their folders.
PATHS = [(r"/\S*/bin/python[\d.]*", "python"), (r"(?:/[\w.-]+)+/(site-packages|dist-packages)/", r"\1/")]


def without_paths(text: str) -> str:
    """Return `text` without the folders of the machine that made it."""
    for pattern, replacement in PATHS:
        text = re.sub(pattern, replacement, text)
    return text


def with_short_samples(value: Any) -> Any:
    """Return a record, or a part of it, with six digits of each sample."""
    if isinstance(value, list):
        return [with_short_samples(part) for part in value]
    if not isinstance(value, dict):
        return value
    shortened = {key: with_short_samples(part) for key, part in value.items()}
    if samples := value.get("samples"):
        shortened["samples"] = [float(f"{sample:.6g}") for sample in samples]
    return shortened


def merged_command(commands: list[str]) -> str:
    """Return the command of all runs together: that of the first, with the components and variants of all."""
    merged = commands[0]
    for key in ("component", "variant"):
        found = [re.search(rf"{key}=\[([^\]]*)\]", command) for command in commands]
        if all(found):
            names = dict.fromkeys(name for match in found if match for name in match[1].split(","))
            merged = re.sub(rf"{key}=\[[^\]]*\]", f"{key}=[{','.join(names)}]", merged)
    return merged


def thin(runs: list[Path], target: Path) -> None:
    """Write the folder `target` from runs of one command each."""
    target.mkdir(parents=True, exist_ok=True)
    environments = [json.loads((run / "environment.json").read_text()) for run in runs]
    environment = {**environments[0], "variables": {}}
    command = merged_command([re.sub(r" hydra\.run\.dir=\S+", "", each["command"]) for each in environments])
    environment["command"] = without_paths(command)
    (target / "environment.json").write_text(json.dumps(environment, indent=2) + "\n")
    records = {record.cell: record for run in runs for record in read_records(run).records}
    kept = (json.loads(encode_record(each)) for each in records.values() if each.reason != INTERRUPTED)
    lines = [json.dumps(with_short_samples(each), separators=(",", ":")) for each in kept]
    (target / "results.jsonl").write_text(without_paths("\n".join([*lines, ""])))
    for pattern in KEPT:
        for file in sorted(runs[0].glob(pattern)):
            copy = target / file.relative_to(runs[0])
            copy.parent.mkdir(exist_ok=True)
            copy.write_text(without_paths(file.read_text()))


def main() -> None:
    """Reduce the runs, or each run of a sweep, and render the report."""
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    *runs, target = map(Path, sys.argv[1:])
    if target.exists():
        raise SystemExit(f"error: {target} exists; remove it first")
    if missing := [
        str(run) for run in runs if not (run / "environment.json").exists() and not (run / "sweep.json").exists()
    ]:
        raise SystemExit(f"error: no run and no sweep: {', '.join(missing)}")
    if (runs[0] / "sweep.json").exists():
        target.mkdir(parents=True)
        shutil.copy(runs[0] / "sweep.json", target)
        for run in sorted(runs[0].glob("*/environment.json")):
            thin([run.parent], target / run.parent.name)
    else:
        thin(runs, target)
    with tempfile.TemporaryDirectory() as folder:  # the report writes its files beside the records
        copy = Path(shutil.copytree(target, Path(folder, target.name)))
        subprocess.run([sys.executable, "-m", "profiling.report", str(copy)], check=True, stdout=subprocess.DEVNULL)
        shutil.copy(copy / "report.md", target / "report.md")


if __name__ == "__main__":
    main()
