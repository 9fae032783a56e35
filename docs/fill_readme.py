"""Put the results of docs/results into README.md and docs/*.md, so that no number in them is typed.

The report.md of each run is rendered again from its records. A page gets a block wherever it has the lines
`<!-- NAME: begin -->` and `<!-- NAME: end -->`, of the names in `BLOCKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from profiling.report.answer import answer_section
from profiling.report.cells import median_of, prepare_seconds, ratio_value
from profiling.report.format import escaped
from profiling.report.heading import heading_lines
from profiling.report.realtime import realtime_section
from profiling.report.render import Report, run_report
from profiling.report.run_data import RunData, load_run
from profiling.report.sweep import load_sweep, sweep_report
from profiling.report.table import Column, Table, columns, markdown
from profiling.report.time_split import call_parts
from profiling.results.explanations import Kernel
from profiling.results.judge import Pair, compare_runs
from profiling.results.record import Record
from profiling.results.sweep import is_sweep
from profiling.results.verdicts import by_component, cell_of, compare_records

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
#: Runs with and without the steps that replace kernels, without 8-bit weights.
STEPS = frozenset({"fused_norm", "grouped_conv", "pointwise_conv", "interpolation", "fold_upsampling", "merged_linear"})
PLAIN = frozenset({"channels_last", "compile", "cuda_graph"})
STEPPED = (
    *("h200_decoder_steps", "h200_sd_vae_decoder", "h200_wan_vae_decoder", "h200_drawn_decoders"),
    *("h200_world_model_step", "h200_merged_linear", "h200_realtime_steps"),
)
#: Runs of the components of other libraries.
MODELS = ("h200_clip_text", "h200_diffusion", "h200_wan_vae_decoder", "h200_merged_linear")


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
    """Return frame times of runs of the default pipeline, two with faster kernels, and verdicts on the first."""
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


class Gain(NamedTuple):
    """The fastest record of a network that is compiled and captured only, and its fastest with `STEPS`."""

    plain: Record
    stepped: Record
    revision: str


def gains() -> Iterator[Gain]:
    """Yield each network of the runs in `STEPPED` that has a correct recipe with one of `STEPS`."""
    for run in map(load_run, (RESULTS / name for name in STEPPED)):
        for group in by_component(record for record in run.records if record.is_correct).values():
            recipes = [(frozenset(record.variant.split("+")), record) for record in group]
            plain = [record for parts, record in recipes if {"compile", "cuda_graph"} <= parts <= PLAIN]
            stepped = [
                record
                for parts, record in recipes
                if record.variant == "mixed" or (parts & STEPS and parts <= STEPS | PLAIN)
            ]
            if plain and stepped:
                best, fastest = (min(each, key=lambda record: record.median_ms or 0.0) for each in (plain, stepped))
                yield Gain(best, fastest, run.environment.revision or "?")


def steps_block() -> str:
    """Return two tables: each network's speedup by steps that replace kernels, and the longest kernels that remain."""
    found = list(gains())
    left = [
        (gain.stepped.component, kernel)
        for gain in found
        if gain.stepped.component in ("audio_decoder", "world_model_step") and gain.stepped.roofline
        for kernel in gain.stepped.roofline.kernels[:5]
    ]
    kernels = (
        Column[tuple[str, Kernel]]("network", lambda row: row[0]),
        Column[tuple[str, Kernel]]("kernel", lambda row: row[1].name),
        Column[tuple[str, Kernel]]("count", lambda row: row[1].count, "count"),
        Column[tuple[str, Kernel]]("total", lambda row: row[1].ms, "ms"),
        Column[tuple[str, Kernel]]("mean", lambda row: row[1].mean_us, "us"),
    )
    shown = (
        Column[Gain]("network", lambda gain: gain.plain.component),
        Column[Gain]("without steps", lambda gain: median_of(gain.plain), "ms"),
        Column[Gain]("with steps", lambda gain: median_of(gain.stepped), "ms"),
        Column[Gain]("ratio", lambda gain: ratio_value(_ratio(gain)), "ratio"),
        Column[Gain]("over roofline", lambda gain: (line := gain.stepped.roofline) and line.over_roofline, "ratio"),
        Column[Gain]("rel. L2", lambda gain: gain.plain.parity and gain.plain.parity.rel_l2, "error"),
        Column[Gain]("rel. L2 with steps", lambda gain: gain.stepped.parity and gain.stepped.parity.rel_l2, "error"),
        Column[Gain]("recipe", lambda gain: gain.stepped.variant),
        Column[Gain]("code", lambda gain: gain.revision),
    )
    return f"{markdown(Table('Steps', shown, found))}\n\n{markdown(Table('Kernels', kernels, left))}"


def _ratio(gain: Gain) -> Pair | None:
    """Return how many times faster the loop is with steps; loops take no turns, so that two runs are compared."""
    cells = cell_of(gain.plain), cell_of(gain.stepped)
    if gain.plain.is_realtime and cells[0] is not None and cells[1] is not None:
        return compare_runs(cells[0], cells[1])
    return compare_records(gain.plain, gain.stepped)


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
    "steps": steps_block,
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
