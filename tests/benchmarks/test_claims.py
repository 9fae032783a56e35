"""Simulated runs through the judge: how often claims are false, intervals hold the truth, and differences are found."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RUNS = 40


@pytest.fixture(scope="module")
def counts():
    """What is counted in each scene, by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import claims_simulated
    scenes = claims_simulated.SCENES
    return {each.name: claims_simulated.count(each, RUNS if len(each.ratios) < 12 else RUNS // 4) for each in scenes}


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
