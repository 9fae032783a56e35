"""Put the results of docs/results into README.md and docs/*.md, so that no number in them is typed.

The report.md of each run is rendered again from its records. A page gets a block wherever it has the lines
`<!-- NAME: begin -->` and `<!-- NAME: end -->`, of the names in `BLOCKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from profiling.report.answer import answer_section
from profiling.report.cells import median_of, prepare_seconds
from profiling.report.format import escaped
from profiling.report.heading import heading_lines
from profiling.report.realtime import realtime_section
from profiling.report.render import Report, run_report
from profiling.report.run_data import RunData, load_run
from profiling.report.sweep import load_sweep, sweep_report
from profiling.report.table import Column, Table, columns, markdown
from profiling.report.time_split import call_parts
from profiling.results.explanations import Kernel
from profiling.results.record import Record
from profiling.results.sweep import is_sweep

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
#: Runs of the components of other libraries.
MODELS = ("h200_clip_text", "h200_diffusion", "h200_wan_vae_decoder", "h200_language")


def results_block() -> str:
    """Return the command of the main job on an H200, and what it printed."""
    run = load_run(RESULTS / "h200_main")
    text = Report("", heading_lines(run), [answer_section(run)]).console()
    return f"```\n$ {run.environment.command}\n\n{text.strip()}\n```"


def models_block() -> str:
    """Return tables of the components of other libraries: speed, memory, accuracy and preparation of each variant."""
    runs = [load_run(RESULTS / name) for name in MODELS]
    return "\n\n".join(
        "\n\n".join(
            [
                *(markdown(table, "console") for table in answer_section(run).tables),
                "\n".join(f"- {escaped(line)}" for line in answer_section(run).lines),
                measured_on(run),
            ]
        )
        for run in runs
    )


def loop_block() -> str:
    """Return frame times of runs of the default pipeline, the second with faster kernels, and verdicts on the first."""
    runs = [load_run(RESULTS / name) for name in ("h200_realtime", "h200_realtime_steps")]
    tables = [f"{markdown(answer_section(run).tables[1], 'console')}\n\n{measured_on(run)}" for run in runs]
    lines = "\n".join(f"- {escaped(line)}" for line in realtime_section(runs[0]).lines)
    return "\n\n".join([*tables, lines])


def decoder_block() -> str:
    """Return a table of the image decoder's variants, with time by class of kernel, and the kernels of the fastest."""
    run = load_run(RESULTS / "h200_decoder_steps")
    rows = [record for record in run.records if record.component == "image_decoder" and record.roofline is not None]
    labels = dict.fromkeys(part.label for record in rows for part in call_parts(record))
    shown = (
        Column[Record]("variant", lambda record: record.variant),
        Column[Record]("p50", median_of, "ms"),
        *(Column[Record](label, lambda record, label=label: _ms_of(record, label), "ms") for label in labels),
        *columns(Record, "roofline.over_roofline", "roofline.bound"),
        Column[Record]("rel. L2", lambda record: record.parity and record.parity.rel_l2, "error"),
        Column[Record]("prepare", prepare_seconds, "s"),
    )
    kernels = [kernel for record in rows[-1:] if record.roofline for kernel in record.roofline.kernels[:8]]
    longest = Table("Kernels", columns(Kernel, "name", "count", "ms", "mean_us"), kernels)
    return "\n\n".join((markdown(Table("Variants", shown, rows)), markdown(longest), measured_on(run)))


def _ms_of(record: Record, label: str) -> float | None:
    return next((part.ms for part in call_parts(record) if part.label == label), None)


def measured_on(run: RunData) -> str:
    """Return the card, versions, revision and date of a run."""
    return escaped(" · ".join(heading_lines(run)))


BLOCKS: Mapping[str, Callable[[], str]] = {
    "results": results_block,
    "models": models_block,
    "loop": loop_block,
    "decoder": decoder_block,
}


def pages() -> list[Path]:
    """Return the pages that may hold blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def filled(page: str) -> str:
    """Return the text of a page with its blocks as they must be."""
    for name, block in BLOCKS.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        if begin in page:
            before, after = page.split(begin, 1)[0], page.split(end, 1)[1]
            page = f"{before}{begin}{block()}\n{end}{after}"
    return page


def reports() -> dict[Path, str]:
    """Return the file and the text of the report of each committed run, as it must be."""
    folders = sorted(path.parent for path in RESULTS.glob("*/report.md"))
    found = {each: sweep_report(load_sweep(each)) if is_sweep(each) else run_report(load_run(each)) for each in folders}
    return {folder / "report.md": report.markdown() for folder, report in found.items()}


if __name__ == "__main__":
    for path in pages():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    for path, text in reports().items():
        path.write_text(text, encoding="utf-8")
