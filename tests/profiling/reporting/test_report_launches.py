"""Hand-written calibrations: known numbers in, known text out."""

import pytest

from profiling.reporting.format import ABSENT
from profiling.reporting.launches import CPU_LINES, CUDA_LINES, render_launches, with_interval


def number(middle, half=None):
    found = {"p50": middle, "n": 15}
    return found if half is None else found | {"ci95": [middle - half, middle + half]}


GPU = {
    "launch_calibration": {
        "device": "cuda:0",
        "dtype": "bfloat16",
        "rounds": 15,
        "elements": 1,
        "host_us_per_launch": number(3.25, 0.05),
        "gpu_us_per_launch": number(1.75, 0.01),
        "graph_us_per_node": number(1.25),
        "starvation_elements": number(4_123_456.0, 1000),
        "starvation_us": number(3.25, 0.05),
        "starvation_bytes": number(16_493_824.0, 4000),
        "linear": {
            "rows": 1,
            "width": 64,
            "host_us_per_launch": number(5.5, 0.1),
            "starvation_note": "up to width 128 every operator works for less time than its call costs the host",
        },
    },
    "operators": [
        {
            "chain": "elementwise",
            "elements": 1,
            "host_us": number(3.25, 0.05),
            "gpu_us": number(1.3),
            "pace_us": number(3.25),
        },
        {"chain": "linear", "width": 64, "host_us": number(5.5)},
        {
            "chain": "linear",
            "width": 4096,
            "host_us": number(5.5),
            "gpu_us": number(9.02),
            "pace_us": number(9.0),
        },
    ],
    "points": [],
}
CPU = {
    "launch_calibration": {
        "device": "cpu",
        "dtype": "float32",
        "rounds": 15,
        "elements": 1,
        "dispatch_us_per_operator": number(0.41, 0.01),
        "linear": {"rows": 1, "width": 1, "dispatch_us_per_operator": number(0.59), "dispatch_bound_width": number(91)},
    },
    "operators": [{"chain": "elementwise", "elements": 1, "host_us": number(0.41, 0.01)}],
}


def line_with(text, words):
    (line,) = [line for line in text.splitlines() if words in line]
    return line


def test_headline_numbers_stand_with_their_intervals_by_chain():
    text = render_launches(GPU)
    line = line_with(text, "host µs a launch (eager)")
    assert "3.250 [3.200, 3.300]" in line
    assert "5.500 [5.400, 5.600]" in line
    assert "4,120,000 [4,120,000, 4,120,000]" in line_with(text, "starves below: size")
    assert line_with(text, "elementwise, elements 1").endswith("linear, width 64, rows 1")
    assert "cuda:0, bfloat16" in text
    assert "medians of 15 rounds" in text


def test_what_was_not_measured_is_a_dash_and_never_zero():
    text = render_launches(GPU)
    assert line_with(text, "GPU µs a launch (queue full)").split()[-1] == ABSENT
    assert line_with(text, "GPU µs a graph launch").split()[-2:] == [ABSENT, ABSENT]
    assert line_with(text, "µs an operator").split()[-1] == ABSENT
    assert line_with(text, "width 64  ").split()[-3:] == [ABSENT] * 3
    assert "0.000" not in text
    assert with_interval({"p50": float("nan")}) == ABSENT
    assert with_interval(None) == ABSENT


def test_a_crossing_that_is_not_there_is_explained():
    assert "linear, GPU starves below: up to width 128 every operator works for less time" in render_launches(GPU)


def test_the_share_in_which_the_device_waits():
    text = render_launches(GPU)
    assert text.splitlines()[-3].endswith("60%")
    assert line_with(text, "width 4096").endswith("0%"), "a device that is never waited for, and no negative share"


def test_a_cpu_has_its_own_lines_and_no_word_of_a_gpu():
    text = render_launches(CPU)
    assert "GPU" not in text
    assert "launch" not in text
    assert "0.4100 [0.4000, 0.4200]" in line_with(text, "dispatch µs an operator")
    assert line_with(text, "work as long as dispatch at: size").split()[-2:] == [ABSENT, "91.0"]
    assert text.splitlines()[-1].split() == ["elementwise", "elements", "1", "0.4100", "[0.4000,", "0.4200]"]


@pytest.mark.parametrize("content", [GPU, CPU])
def test_markdown_has_the_same_cells(content):
    text = render_launches(content, markdown=True)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    plain = render_launches(content)
    cells = {cell.strip() for line in tables for cell in line.strip("|").split("|")}
    assert all(cell in plain for cell in cells if not set(cell) <= set("-:"))
    assert len({line.count("|") for line in tables[: 2 + len(CPU_LINES)]}) == 1


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ({}, CUDA_LINES),
        ({"launch_calibration": None, "operators": 3}, CUDA_LINES),
        (CPU | {"operators": []}, CPU_LINES),
    ],
)
def test_a_file_with_holes_still_renders(content, lines):
    text = render_launches(content)
    assert all(line.words in text for line in lines)
