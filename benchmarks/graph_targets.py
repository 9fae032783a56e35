"""Targets for CUDA graphs, checked on the runs in FOLDER: python benchmarks/graph_targets.py FOLDER

The runs, on one GPU:
  h200_clip_text_batch_1      generic_forward component=[clip_text] with cuda_graph, fx_cuda_graph, compile_max_autotune
  h200_sweep_clip_text        shape_sweep component=[clip_text]
  h200_training_step          training_step component=[resnet50_training]
  h200_training_step_batch_2       the same at batch 2, fp32
  h200_training_step_batch_2_bf16  the same with training.autocast=bfloat16
The engine's own overhead and the pool of five shapes are measured by benchmarks/graph_cost.py.
"""

import sys
from pathlib import Path

from tabulate import tabulate

from profiling.results.jsonl import read_records
from profiling.results.record import Record


def records(folder: Path, name: str) -> dict[tuple[str, str], Record]:
    return {record.cell: record for record in read_records(folder / f"h200_{name}").records}


def p50(record: Record) -> float:
    assert record.wall_p50 is not None, record.cell
    return record.wall_p50


def targets(folder: Path) -> list[tuple[str, str, float, bool]]:
    """Return (quantity, target, measured, reached)."""
    text = {variant: record for (_, variant), record in records(folder, "clip_text_batch_1").items()}
    sweep = records(folder, "sweep_clip_text")
    step = {variant: record for (_, variant), record in records(folder, "training_step").items()}
    eager, plain, fx, autotune = (
        p50(text[name]) for name in ("baseline", "cuda_graph", "fx_cuda_graph", "compile_max_autotune")
    )
    sixteen = {
        name: sweep["clip_text@batch=16", name].metrics.calls.seconds_per_call for name in ("baseline", "cuda_graph")
    }
    peak_held = {name: step[name].memory.peak_held for name in ("baseline", "cuda_graph")}
    rows = [
        ("CLIP text, batch 1: cuda_graph against eager", ">= 4", eager / plain, eager / plain >= 4),
        ("CLIP text, batch 1: fx_cuda_graph against eager", ">= 4", eager / fx, eager / fx >= 4),
        ("CLIP text, batch 1: cuda_graph / max-autotune, time", "<= 1.1", plain / autotune, plain / autotune <= 1.1),
        ("CLIP text, batch 1: fx_cuda_graph / max-autotune, time", "<= 1.1", fx / autotune, fx / autotune <= 1.1),
        ("CLIP text, batch 1: the fx passes over plain capture", ">= 1.1", plain / fx, plain / fx >= 1.1),
    ]
    seconds = text["cuda_graph"].prepare.seconds
    rows.append(("CLIP text, batch 1: seconds to warm up and capture", "<= 0.5", seconds, seconds <= 0.5))
    ratio = sixteen["cuda_graph"] / sixteen["baseline"]
    rows.append(("CLIP text, batch 16: cuda_graph / eager, time", "<= 1.02", ratio, ratio <= 1.02))
    ratio = p50(step["cuda_graph"]) / p50(step["baseline"])
    rows.append(("ResNet-50 step, batch 32: captured / eager, time", "<= 1", ratio, ratio <= 1))
    ratio = peak_held["cuda_graph"] / peak_held["baseline"]
    rows.append(("ResNet-50 step, batch 32: captured / eager, peak held", "<= 1.1", ratio, ratio <= 1.1))
    for dtype, name in (("fp32", "training_step_batch_2"), ("bf16 autocast", "training_step_batch_2_bf16")):
        small = {variant: record for (_, variant), record in records(folder, name).items()}
        ratio = p50(small["baseline"]) / p50(small["cuda_graph"])
        rows.append((f"ResNet-50 step, batch 2, {dtype}: captured against eager", ">= 1.5", ratio, ratio >= 1.5))
    return rows


def main() -> None:
    folder = Path(sys.argv[1])
    rows = [
        (quantity, target, f"{value:.3g}", "yes" if ok else "no") for quantity, target, value, ok in targets(folder)
    ]
    print(tabulate(rows, ("quantity", "target", "measured", "reached"), "github", disable_numparse=True))


if __name__ == "__main__":
    main()
