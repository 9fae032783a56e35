"""Simulated runs through the judge: how often claims are false, intervals hold the truth, and differences are found."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RUNS = 40


@pytest.fixture(scope="module")
def simulated():
    """The module that simulates runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import claims_simulated
    return claims_simulated


@pytest.fixture(scope="module")
def counts(simulated):
    """What is counted in each scene, by its name."""
    scenes = simulated.SCENES
    return {each.name: simulated.count(each, RUNS if len(each.ratios) < 12 else RUNS // 4) for each in scenes}


def test_asking_again_makes_false_answers_on_rates_hardly_more_frequent(simulated):
    # A run in which fewer than three bursts are expected may have none, and then seems to hold the rate.
    shown = [rate for rate in simulated.RATES if rate.share <= 0.01 or rate.share * rate.calls / rate.length > 3]
    for rate in shown:
        counted = simulated.count_rates(rate, 300)
        assert counted.false / counted.runs <= 0.05 + 3 * (0.05 * 0.95 / counted.runs) ** 0.5, rate.name
    assert simulated.count_rates(simulated.Rate("none", 0.0), 10).answers["yes"] == 10
    assert simulated.count_rates(simulated.Rate("many", 0.03), 10).answers["no"] >= 9


def test_false_claims_are_rare_and_intervals_hold_the_truth(counts):
    for scene, counted in counts.items():
        # Four standard deviations beyond 5% false claims, and 93% coverage, of independent comparisons.
        spread = 4 * (0.05 * 0.95 / counted.comparisons) ** 0.5
        assert counted.false_claims / counted.comparisons <= 0.05 + spread, scene
        assert counted.covered / counted.comparisons >= 0.93 - spread, scene
        assert counted.false_runs / counted.runs <= 0.05 + 4 * (0.05 * 0.95 / counted.runs) ** 0.5, scene


@pytest.mark.parametrize(
    ("name", "answer", "least"),
    [
        ("captured, equal", "same", 0.7),
        ("captured, 2% slower", "slower", 0.9),
        ("eager, twice as fast", "faster", 0.85),
        ("CPU, always busy, tenfold", "faster", 0.9),
    ],
)
def test_what_is_there_is_found(counts, name, answer, least):
    counted = counts[name]
    assert counted.answers[answer] / counted.comparisons >= least
