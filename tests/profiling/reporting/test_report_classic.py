from collections.abc import Callable
from typing import Any

import pytest

from profiling.reporting.classic import COMPONENT_LABELS, VARIANT_LABELS, label, render_classic
from profiling.results.records import Record

Make = Callable[..., Record]


def test_block_of_known_numbers(make: Make) -> None:
    metrics: dict[str, Any] = {
        "wall_ms": {"mean": 2.5, "min": 2.46, "max": 2.7, "std": 0.019, "p50": 2.5},
        "fps": {"mean": 400.0, "min": 370.37, "max": 406.5},
    }
    record = make("compile", metrics=metrics, memory={"peak_allocated": 2402353152})
    assert render_classic([record]).splitlines()[:4] == [
        "* Torch Compile - WM",
        "  Mean: 2.50 ms, Min: 2.46 ms, Max: 2.70 ms, Std: 0.02 ms",
        "  Memory: 2291 MB peak allocated",
        "  Avg FPS: 400.0, Min FPS: 370.4, Max FPS: 406.5",
    ]


def test_fast_calls_keep_their_digits(make: Make) -> None:
    metrics = {"wall_ms": {"mean": 0.0153, "min": 0.0149, "max": 0.02}, "fps": {"mean": 1.234}}
    text = render_classic([make("baseline", metrics=metrics)])
    assert "Mean: 0.0153 ms, Min: 0.0149 ms, Max: 0.0200 ms, Std: \u2013" in text
    assert "Avg FPS: 1.23, Min FPS: \u2013" in text


def test_wrong_cells_are_struck_out_with_their_cause(parity_failed: Record, make: Make) -> None:
    text = render_classic([parity_failed, make("compile", status="skipped", reason="no\nGPU"), make("baseline")])
    assert "* CUDA Graph - WM\n  Failed: parity: relative L2 error 1.2 is above 0.0078\n  ~~Mean: 1.23 ms" in text
    assert "\n  Mean: 1.23" not in text
    assert "* Torch Compile - WM\n  Skipped: no GPU\n" in text
    assert "* Baseline - WM\n  not measured" in text


@pytest.mark.parametrize(
    ("name", "labels", "text"),
    [
        ("world_model", COMPONENT_LABELS, "WM"),
        ("image_decoder", COMPONENT_LABELS, "Image Decoder"),
        ("compile_cuda_graph", VARIANT_LABELS, "Torch Compile + CUDA Graph"),
        ("max_autotune", VARIANT_LABELS, "Max Autotune"),
        ("int8-weights", VARIANT_LABELS, "Int8-weights"),
    ],
)
def test_labels(name: str, labels: dict[str, str], text: str) -> None:
    assert label(name, labels) == text
