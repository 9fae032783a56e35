"""Put the results of docs/results into the README, so that no number in it is typed."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "h200"
RESULTS_CPU = ROOT / "docs" / "results" / "cpu"
SWEEP, TRAINING, LAUNCHES, REALTIME = (
    ROOT / "docs" / "results" / f"h200_{name}"
    for name in ("sweep_clip_text", "training_step", "launch_overhead", "realtime")
)


def results_block() -> str:
    """Return the device's lines, the table, its legend and the verdicts of the committed run's report."""
    report = (RESULTS / "report.md").read_text(encoding="utf-8")
    head = report.partition("\n### ")[0].partition("\n")[2]
    return f"{head.strip()}\n\n{section(RESULTS, 'Verdict')}"


def cost_block() -> str:
    """Return what the benchmark of the harness printed, on each device."""
    texts = [(folder / "harness_cost.txt").read_text(encoding="utf-8").strip() for folder in (RESULTS, RESULTS_CPU)]
    return "\n\n".join(f"```\n{text}\n```" for text in texts)


def section(run: Path, title: str) -> str:
    """Return the part of a committed report under the heading that starts with `title`."""
    report = (run / "report.md").read_text(encoding="utf-8")
    return report.partition(f"### {title}")[2].partition("\n")[2].partition("\n###")[0].strip()


def training_block() -> str:
    """Return the table of the committed training run, and its memory by phase."""
    report = (TRAINING / "report.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in report.partition("\n### ")[0].splitlines() if line.startswith("|"))
    return f"{table}\n\nMemory by phase, MiB:\n\n{section(TRAINING, 'Memory by phase')}"


def realtime_block() -> str:
    """Return the table of the committed loop and its stage budget."""
    return "\n\n".join(section(REALTIME, title) for title in ("Frames", "Stage budget"))


def launches_block() -> str:
    """Return the headline table of the committed calibration."""
    return "\n".join(line for line in section(LAUNCHES, "What a launch costs").split("\n\n")[0].splitlines())


def filled(readme: str) -> str:
    """Return the README with its blocks as they must be."""
    blocks = {
        "results": results_block(),
        "verdict": section(REALTIME, "Verdict"),
        "realtime": realtime_block(),
        "sweep": section(SWEEP, "Total time with preparation"),
        "training": training_block(),
        "launches": launches_block(),
        "cost": cost_block(),
    }
    for name, block in blocks.items():
        pattern = rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)"
        readme = re.sub(pattern, lambda m, block=block: f"{m[1]}{block}\n{m[2]}", readme, flags=re.DOTALL)
    return readme


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
