"""The known issues are data that fits the releases, and their page is made from it."""

from __future__ import annotations

import re

import pytest

from dispatch_core.audit.catalogue import LIMIT_REASONS, STALL_REASONS
from dispatch_core.broker.profiles import known_releases
from dispatch_core.diagnose.answers import UNACKNOWLEDGED
from dispatch_core.diagnose.known_issues import KnownIssue, known_issues, page
from tests.checkout import ROOT

#: Details that the rules give to answers.
DETAILS = {
    "no_read": {"lost_read", "read_at_tail", "no_attempt", "not_notified"},
    "draining_hash": {"counted_twice"},
    "unacked_limit_consumer": {"few"},
    "unacked_limit_subscription": {"few"},
    "no_permits": {"negative"},
}


def test_there_are_enough_issues_each_with_its_own_number() -> None:
    numbers = [issue.id for issue in known_issues()]
    assert len(numbers) >= 20
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("issue", known_issues(), ids=lambda issue: str(issue.id))
def test_an_issue_is_complete(issue: KnownIssue) -> None:
    assert all(
        re.fullmatch(r"https://github\.com/[\w-]+/[\w-]+/(issues|pull)/\d+", link) for link in issue.links
    )
    assert any(link.endswith(f"/{issue.id}") for link in issue.links)
    assert issue.kind in ("fault", "limit")
    assert issue.dispatcher in ("any", "default", "classic")
    assert issue.types
    for symptom in issue.symptoms:
        rule, _, detail = symptom.partition(".")
        assert rule in {*STALL_REASONS, *LIMIT_REASONS, "no_read", UNACKNOWLEDGED}
        assert not detail or detail in DETAILS[rule]
    if issue.kind == "fault":
        assert any(issue.affects(version) for version in known_releases()), "no known release has it"
    for version in issue.mended_in:
        assert not issue.affects(version)


def test_the_page_is_in_step() -> None:
    """``python -m dispatch_core.diagnose.known_issues > docs/known-issues.md`` writes it."""
    assert (ROOT / "docs" / "known-issues.md").read_text(encoding="utf-8") == page()
