"""The truth check: recordings of 4.2.4 predict all other recordings of their scripts, with one seed.

``make accuracy`` simulates all pairs with several seeds: ``bench/results/what-if-accuracy.md``.
"""

from __future__ import annotations

from math import sqrt
from statistics import mean

import pytest

from tests.conformance.what_if_accuracy import (
    RECORDINGS,
    Pair,
    Score,
    always_clean,
    copied,
    failover_scripts,
    pairs_of,
    scripts,
    with_probabilities,
)

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return [
        pair
        for several in scripts().values()
        for pair in pairs_of(
            several, range(1), sources=lambda recording: recording.rules.startswith("4.2.4/")
        )
    ]


def test_presence_of_order_violations_is_right_in_nine_of_ten_pairs(pairs: list[Pair]) -> None:
    score = Score.of(pairs)
    assert (score.pairs, score.violating) == (540, 51)
    assert score.accuracy >= 0.9


def test_it_knows_more_than_who_always_says_clean_or_copies(pairs: list[Pair]) -> None:
    score = Score.of(pairs)
    assert score.accuracy > max(always_clean(pairs).accuracy, copied(pairs).accuracy) + 0.03
    assert score.recall >= 0.7
    assert score.precision >= 0.8


def test_everything_could_be_simulated(pairs: list[Pair]) -> None:
    assert [pair.problem for pair in pairs if pair.problem is not None] == []


def test_probabilities_come_true(pairs: list[Pair]) -> None:
    """Expect of the predictions of violations, and of those of none, what the other scripts let expect.

    Of 41 predictions of violations 0.05 cannot be measured: two standard errors are 0.1.
    """
    judged, _ = with_probabilities(pairs)
    for predicted in (True, False):
        said = [
            (probability if predicted else 1 - probability, pair.right)
            for pair in judged
            if (probability := pair.probability) is not None and pair.predicted is predicted
        ]
        assert len(said) >= 30
        expected, came_true = (mean(values) for values in zip(*said, strict=True))
        error = sqrt(expected * (1 - expected) / len(said))
        assert came_true == pytest.approx(expected, abs=max(0.05, 2 * error))


def test_failover_predicts_the_violations_of_the_other_rule() -> None:
    """Modulo and ring of four partition indexes: no violations, for the type documents what a change of the active consumer
    delivers again; whether it delivers anything again beside what is pending; and the control position by position.
    """
    failover = [pair for several in failover_scripts().values() for pair in pairs_of(several, range(1))]
    score = Score.of(failover)
    assert (score.pairs, score.right, score.violating) == (8, 8, 6)
    assert max(always_clean(failover).right, copied(failover).right) < 8
    assert not any(pair.target.measures.order_violations for pair in failover)
    assert all(pair.outcomes[0].same_first_consumer == 1.0 for pair in failover if pair.source is pair.target)
