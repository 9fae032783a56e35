"""Simulated runs through the judge: how often claims are false, intervals hold the truth, and differences are found."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RUNS = 60


@pytest.fixture(scope="module")
def simulated():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import claims_simulated
    return claims_simulated


def test_false_claims_are_rare_and_intervals_hold_the_truth(simulated):
    for scene in simulated.SCENES:
        counted = simulated.count(scene, RUNS if len(scene.ratios) < 12 else RUNS // 4)
        # Four standard deviations beyond 5% false claims, and 93% coverage, of independent comparisons.
        spread = 4 * (0.05 * 0.95 / counted.comparisons) ** 0.5
        assert counted.false_claims / counted.comparisons <= 0.05 + spread, scene.name
        assert counted.covered / counted.comparisons >= 0.93 - spread, scene.name
        assert counted.false_runs / counted.runs <= 0.05 + 4 * (0.05 * 0.95 / counted.runs) ** 0.5, scene.name


@pytest.mark.parametrize(
    ("name", "answer", "least"),
    [
        ("captured, equal", "same", 0.7),
        ("captured, 2% slower", "slower", 0.9),
        ("eager, twice as fast", "faster", 0.85),
        ("CPU, always busy, tenfold", "faster", 0.9),
    ],
)
def test_what_is_there_is_found(simulated, name, answer, least):
    counted = simulated.count(next(scene for scene in simulated.SCENES if scene.name == name), RUNS)
    assert counted.answers[answer] / counted.comparisons >= least
