"""How often a run claims what is not there, on noise of an H200 that the committed runs hold.

The noise goes through the turns themselves, on a fake clock: how many windows there are is what the rule of the turns
decides, with the limits that a user has who names none. Both cells live on one machine, whose noise goes on in time.
"""

import numpy as np
import pytest
from make_record import record, summary
from msgspec.structs import replace
from stored_noise import stored_series

from profiling.metrics.sampling import Ready, WindowSamples
from profiling.report.answer import answer_of
from profiling.results.measured import LatencyConditions, Metrics, Parity
from profiling.run.rounds import with_speedup
from profiling.run.turns import Resident, Start, take_turns

COMPARISONS = 40
#: Neighbouring calls that stay together, so that the stored trends and clusters do.
BLOCK = 50
#: Standard deviation of the speed of processes with the same code, whose memory lies elsewhere.
PROCESS = 0.0005
PARITY = Parity(reference="fp32 eager", passed=True, rel_l2=0.001)
CONDITIONS = LatencyConditions(cold=False, warmup_iterations=1, warmup_seconds=0.1, settled=True)
LIMITS = {"interval": 0.01, "min_iterations": 100, "max_iterations": 2000, "max_seconds": 10.0}


def noise_of(series, rng):
    """Times without an end, with the noise and the trends of the stored ones."""
    while True:
        yield from series[(rng.integers(series.size) + np.arange(BLOCK)) % series.size].tolist()


def cells_of(series, factors, rng, busy):
    """Cells whose calls take so many times as long as the stored ones, on one machine with a fake clock.

    In a share `busy` of the windows another process takes up to half of the CPU, which makes each call longer.
    """
    noise, now = noise_of(series, rng), [0.0]

    def cell(variant, factor):
        factor *= 1 + PROCESS * rng.standard_normal()

        def window(turn):
            start, samples = now[0], []
            lost = rng.uniform(0.0, 0.5) if rng.random() < busy else 0.0
            while not samples or (len(samples) < turn.calls and now[0] - start < turn.seconds):
                samples.append(factor * next(noise) / (1 - lost))
                now[0] += samples[-1] / 1e3
            return WindowSamples(start_s=start, wall_ms=tuple(samples), cpu_lost_share=lost)

        call_s = float(np.median(series)) / 1e3
        return Resident(variant, Ready(call_s=call_s, used={}, free={}, **LIMITS), window)

    return [cell(variant, factor) for variant, factor in factors.items()], lambda: now[0]


def cell_of(resident, start, before):
    """Return the record of a cell that has taken its turns; the first of those `before` is its baseline."""
    samples = tuple(ms for _, window in resident.windows for ms in window.wall_ms)
    wall = summary(float(np.median(samples)), samples=samples, mean=float(np.mean(samples)))
    wall = replace(wall, min=min(samples), max=max(samples), p99=float(np.percentile(samples, 99)))
    lost = float(np.mean([window.cpu_lost_share for _, window in resident.windows]))
    metrics = Metrics(wall_ms=wall, latency=replace(CONDITIONS, cpu_lost_share=lost))
    timed = record(resident.variant, metrics=metrics, parity=PARITY, turns=resident.section(start))
    return with_speedup(timed, before[0] if before else None, seed=0)


def spoken(answer):
    """Return the variant that the answer calls fastest."""
    return answer.fastest.variant if answer.is_ranked and not answer.is_tied else "cannot tell"


def said(series, factor, seed, busy):
    """Return the variant that a run of two cells calls fastest, `again` taking `factor` times as long as baseline."""
    residents, now = cells_of(series, {"baseline": 1.0, "again": factor}, np.random.default_rng(seed), busy)
    take_turns(residents, None, seed, now)
    start, group = Start(utc="now", seconds=0.0), []
    for resident in residents:
        group.append(cell_of(resident, start, group))
    return spoken(answer_of("net", group))


def claims(variants, factor, busy=0.0):
    """Return what is said in `COMPARISONS` comparisons, each on the noise of another stored cell."""
    stored = [series for each, series in stored_series() if variants in each.variant]
    chosen = np.resize(np.random.default_rng(7).permutation(len(stored)), COMPARISONS)
    return [said(stored[place], factor, 100 * seed, busy) for seed, place in enumerate(chosen)]


@pytest.mark.parametrize("busy", [0.0, 0.3, 0.9])
def test_equal_cells_are_called_different_at_most_once_in_forty(busy):
    assert sum(each != "cannot tell" for each in claims("", 1.0, busy)) <= 1


def test_a_slowdown_of_five_percent_is_found_36_times_in_forty():
    found = claims("", 1.05)
    assert found.count("baseline") >= 36
    assert "again" not in found


@pytest.mark.parametrize(("factor", "least"), [(1.03, 38), (1.01, 30)])
def test_small_slowdowns_of_captured_calls_are_found(factor, least):
    found = claims("cuda_graph", factor)
    assert found.count("baseline") >= least
    assert "again" not in found


@pytest.mark.parametrize("busy", [0.3, 0.9])
def test_a_slowdown_beside_busy_processes_is_never_called_a_speedup(busy):
    assert "again" not in claims("", 1.05, busy)


@pytest.mark.parametrize("lost", [0.6, 0.0])
def test_windows_too_few_for_an_interval_claim_nothing(lost):
    """The first was measured on a machine with 18 processes on two cores: both cells are the same code."""
    windows = {"baseline": [(3083.0,), (6597.0,)], "again": [(1.3, 40.0, 90.0, 200.0), (342.0, 2.0, 30.0, 55.0, 57.0)]}
    ready, start = Ready(call_s=0.002, used={}, free={}, **LIMITS), Start(utc="now", seconds=0.0)
    group = []
    for variant, samples in windows.items():
        taken = [(n, WindowSamples(start_s=n, wall_ms=part, cpu_lost_share=lost)) for n, part in enumerate(samples)]
        group.append(cell_of(Resident(variant, ready, lambda _: None, taken), start, group))
    assert spoken(answer_of("net", group)) == "cannot tell"
