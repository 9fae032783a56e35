"""The table of hardware counters."""

from hand_traced import trace
from report_records import build, run_data, titled

from profiling.report.trace import trace_section

COUNTERS = "Hardware counters of the longest kernels"
SECTION = {
    "file": "counters/world_model.baseline.csv",
    "kernels": [
        {
            **{"name": "nvjet_tst", "ms": 0.6, "share": 0.6, "launches": 3, "counted_us": 31.0, "mean_us": 30.0},
            **{"dram": 0.85, "dram_bytes": 2**20, "l2": 0.4, "tensor": 0.1, "sm": 0.2, "occupancy": 0.125},
            "l2_bytes": 2**21,
            **{"bound_by_counters": "memory bandwidth", "bound_by_trace": "memory bandwidth"},
        },
        {
            **{"name": "norm", "ms": 0.2, "share": 0.2, "launches": 1, "counted_us": 9.0, "mean_us": 10.0},
            **{"dram": 0.1, "l2": 0.1, "sm": 0.7, "occupancy": 0.5},
            **{"bound_by_counters": "compute", "bound_by_trace": "neither"},
        },
        {"name": "not_met", "ms": 0.2, "share": 0.2, "launches": 0, "bound_by_trace": "neither"},
    ],
}
COUNTED = build("baseline", 2.0, trace_analysis=trace(), hardware_counters=SECTION)


def test_kernels_with_both_bounds():
    first, second, third = titled(trace_section(run_data(COUNTED, build("compile", 1.0))))[COUNTERS]
    assert list(first.values())[2:] == [
        *("nvjet_tst", "0.6000", "60%", "30.0", "31.0", "85%", "40%", "10%", "20%", "12%"),
        *("memory bandwidth", "memory bandwidth"),
    ]
    assert list(second.values())[-2:] == ["compute", "neither"]
    assert list(third.values())[-2:] == ["–", "neither"]


def test_without_counters_there_is_no_table():
    assert COUNTERS not in titled(trace_section(run_data(build("baseline", 2.0, trace_analysis=trace()))))
