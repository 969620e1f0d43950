"""Small logs with a known truth (``../shared/cases``): one test per log.

A case that is not judged right yet is marked ``WRONG``; its test then fails as soon as it is judged right, so that the mark
goes. The logs are of format 1.0, which cannot show delays, filters and the like: what only these explain is uncertain.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from dispatch_core.cli.main import main

CASES: Final = Path(__file__).resolve().parents[3] / "shared" / "cases"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not CASES.is_dir(), reason="no cases beside the repository"),
]


@dataclass(frozen=True)
class Truth:
    """Allowed verdicts, and the kinds of which a certain finding must be there."""

    verdicts: tuple[str, ...]
    certain: tuple[str, ...] = ()
    wrong: bool = False


#: Nothing was promised and broken, and the log shows it.
FINE: Final = Truth(("PASS",))
#: Nothing was promised and broken, but the log cannot show that.
LEGAL: Final = Truth(("PASS", "UNKNOWN"))
#: Something was broken; the log may be unable to prove it.
BROKEN: Final = Truth(("FAIL", "UNKNOWN"))
UNKNOWN: Final = Truth(("UNKNOWN",))


def found(*kinds: str) -> Truth:
    """Something was broken, and the log proves it."""
    return Truth(("FAIL",), kinds)


def wrong(truth: Truth) -> Truth:
    """The same, not judged right yet."""
    return Truth(truth.verdicts, truth.certain, wrong=True)


TRUTHS: Final = {
    "00-control": FINE,
    "01-delayed-delivery": wrong(LEGAL),
    "01b-delayed-delivery-shared": LEGAL,
    "01c-delayed-still-pending-ks": wrong(LEGAL),
    "02-batch-index-cumulative": FINE,
    "02b-batch-index-individual": FINE,
    "02c-batch-index-cumulative-nack-exclusive": FINE,
    "03-batch-index-unload": FINE,
    "04-aborted-transaction": wrong(LEGAL),
    "04b-transaction-acks-left-out": wrong(LEGAL),
    "05-read-compacted": wrong(LEGAL),
    "06-replicated-subscription": wrong(LEGAL),
    "07-latest-producer-clock-ahead": LEGAL,
    "08-events-segment-not-closed": UNKNOWN,
    "09-empty-and-null-keys": FINE,
    "10-big-ledger-ids": FINE,
    "11-nack-then-owner-change": FINE,
    "12-cumulative-ack-of-mid-ledger-rollover": FINE,
    "13-double-ack-and-foreign-nack": FINE,
    "14-exclusive-nack-rewinds": FINE,
    "15-shared-out-of-order-holes": FINE,
    "20-dispatch-rate-limit": wrong(LEGAL),
    "20b-dispatch-rate-limit-drained": wrong(LEGAL),
    "21-namespace-max-unacked": wrong(LEGAL),
    "21-namespace-max-unacked-flow-blocked": wrong(LEGAL),
    "21b-namespace-max-unacked-at-end": wrong(LEGAL),
    "21b-namespace-max-unacked-at-end-flow-blocked": wrong(LEGAL),
    "22-broker-clock-skew-swaps-loads": LEGAL,
    "23-entry-filter": wrong(LEGAL),
    "24-producer-bad-b64-key": wrong(LEGAL),
    "26-TRUE-ooo-next-to-a-bad-base64-key": found("out_of_order"),
    "30-TRUE-out-of-order-failover": found("out_of_order"),
    "31-TRUE-ooo-hidden-by-standby-join": found("out_of_order"),
    "32-TRUE-ooo-hidden-by-foreign-nack": found("duplicate_after_ack"),
    "33-dup-after-reload-ack-in-checkpoint": found("duplicate_after_ack"),
    "34-TRUE-loss-over-reload": BROKEN,
    "35-TRUE-loss-before-first-sent-producer-clock-behind": BROKEN,
    "36-TRUE-nothing-ever-sent": found("never_delivered"),
    "40-35-with-recorder-checkpoint": BROKEN,
    "41-07-with-recorder-checkpoint": FINE,
    "42-delayed-with-checkpoint": wrong(LEGAL),
    **{
        f"50-TRUE-loss-at-{at}-{checkpoint}": found("never_delivered")
        for at in (0, 5, 29)
        for checkpoint in ("no-checkpoint", "recorder-checkpoint")
    },
    "51-skew-3s-bounced-load": LEGAL,
    "52-batch-part-acked-then-nacked": FINE,
    "53-shared-batch-part-acked-disconnect": FINE,
    "54-cumulative-part-batch-then-unload": FINE,
    "60-permits-of-partly-acked-batch": FINE,
    "61-unsubscribed-Exclusive": LEGAL,
    "61-unsubscribed-Key_Shared": LEGAL,
    "61-unsubscribed-Shared": LEGAL,
    "62-unsubscribed-and-made-again-Exclusive": LEGAL,
    "62-unsubscribed-and-made-again-Key_Shared": LEGAL,
    "62-unsubscribed-and-made-again-Shared": LEGAL,
    "70-TRUE-ooo-over-switch-to-key_h31": found("out_of_order"),
    "71-TRUE-loss-of-messages-the-recorder-lost": BROKEN,
    "72-batch-index-unload-no-checkpoint": FINE,
    "77-unload-with-ack-above-hole": FINE,
    "77-unload-with-ack-above-hole-checkpoint": FINE,
    "78-plain-unload-no-checkpoint": FINE,
    "80-broker-clocks-1500ms-apart": LEGAL,
    "81-failover-unload-no-checkpoint": FINE,
    "82-shared-unload-no-checkpoint": FINE,
    "ends-1h-after-midnight-more-lines-1h-later": found("stuck_consumer"),
    "ends-1h-after-midnight-nothing-more": found("stuck_consumer"),
    "topic-moved-backlog-line-size-differs": FINE,
    "within-the-day-more-lines-1h-later": found("stuck_consumer"),
    "within-the-day-nothing-more": found("stuck_consumer"),
}


def test_every_case_has_its_truth() -> None:
    assert {folder.name for folder in CASES.iterdir() if folder.is_dir()} == set(TRUTHS)


@pytest.mark.parametrize("name", TRUTHS)
def test_the_command_line_says_the_truth(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    truth = TRUTHS[name]
    main(["audit", "--json", str(CASES / name)])
    *findings, result = map(json.loads, capsys.readouterr().out.splitlines())
    certain = {finding["kind"] for finding in findings if not finding["uncertain"]}
    right = result["verdict"] in truth.verdicts and certain >= set(truth.certain)
    assert right != truth.wrong, (result["verdict"], [finding["explanation"] for finding in findings])
