"""Advice is right: what it advises is clean where it was really recorded."""

from __future__ import annotations

import pytest

from tests.conformance.what_if_accuracy import RECORDINGS, scripts
from tests.conformance.what_if_advice import Advised, advised

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]


@pytest.fixture(scope="module")
def found() -> list[Advised]:
    return list(advised(scripts().values()))


def test_no_advice_is_wrong(found: list[Advised]) -> None:
    assert len(found) == 14
    wrong = [
        (some.source.script, some.source.rules, checked.tried.change.said)
        for some in found
        for checked in some.checked
        if checked.wrong
    ]
    assert wrong == []


def test_something_is_advised_for_nearly_all_and_much_of_it_was_recorded(found: list[Advised]) -> None:
    assert sum(bool(some.checked) for some in found) >= 13
    assert sum(checked.target is not None for some in found for checked in some.checked) >= 9
