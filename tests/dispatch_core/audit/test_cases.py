"""Small logs with a known truth (``tests/data/cases``): one test per log, policy and reading.

The truth is that of the strict reading (``--complete``): as of the last line, a fault that is half a second old is not
finished. By default no legal log is FAIL, and of the broken ones those are found whose fault is finished.

The logs from 90 on are of format 1.1, the others of format 1.0, which cannot show delays, filters and the like. The default
policy assumes that there are none: a legal log may then be FAIL, if the verdict names the assumption. Under
``assume_absent: none`` what only these explain is uncertain: no legal log is FAIL, and no broken one PASS.

A case that is not judged right yet is marked ``wrong``; its test fails as soon as it is judged right, so that the mark goes.
"""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.cli.main import main

ROOT: Final = Path(__file__).resolve().parents[3]
CASES: Final = ROOT / "tests" / "data" / "cases"
SHARED: Final = ROOT.parent / "shared" / "cases"


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
    "01-delayed-delivery": LEGAL,
    "01b-delayed-delivery-shared": LEGAL,
    "01c-delayed-still-pending-ks": LEGAL,
    "02-batch-index-cumulative": FINE,
    "02b-batch-index-individual": FINE,
    "02c-batch-index-cumulative-nack-exclusive": FINE,
    "03-batch-index-unload": FINE,
    "04-aborted-transaction": LEGAL,
    "04b-transaction-acks-left-out": LEGAL,
    "05-read-compacted": LEGAL,
    "06-replicated-subscription": LEGAL,
    "07-latest-producer-clock-ahead": LEGAL,
    "08-events-segment-not-closed": UNKNOWN,
    "09-empty-and-null-keys": FINE,
    "10-big-ledger-ids": FINE,
    "11-nack-then-owner-change": FINE,
    "12-cumulative-ack-of-mid-ledger-rollover": FINE,
    "13-double-ack-and-foreign-nack": FINE,
    "14-exclusive-nack-rewinds": FINE,
    "15-shared-out-of-order-holes": FINE,
    "20-dispatch-rate-limit": LEGAL,
    "20b-dispatch-rate-limit-drained": LEGAL,
    "21-namespace-max-unacked": LEGAL,
    "21-namespace-max-unacked-flow-blocked": LEGAL,
    "21b-namespace-max-unacked-at-end": LEGAL,
    "21b-namespace-max-unacked-at-end-flow-blocked": LEGAL,
    "22-broker-clock-skew-swaps-loads": LEGAL,
    "23-entry-filter": LEGAL,
    "24-producer-bad-b64-key": LEGAL,
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
    "42-delayed-with-checkpoint": LEGAL,
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
    "90-TRUE-loss-then-backlog-cleared-Failover": found("never_delivered"),
    "90-TRUE-loss-then-backlog-cleared-Shared": UNKNOWN,
    "91-TRUE-loss-long-before-entry-filter": found("never_delivered"),
    "92-skipped-between-loads-Failover": UNKNOWN,
    "93-TRUE-loss-then-deleted-Failover": found("never_delivered"),
    "94-delayed-not-recorded": UNKNOWN,
    "ends-1h-after-midnight-more-lines-1h-later": found("stuck_consumer"),
    "ends-1h-after-midnight-nothing-more": found("stuck_consumer"),
    "topic-moved-backlog-line-size-differs": FINE,
    "within-the-day-more-lines-1h-later": found("stuck_consumer"),
    "within-the-day-nothing-more": found("stuck_consumer"),
}


#: Entries that were lost less than the limit before the last line: not finished by default.
UNFINISHED: Final = frozenset(
    name for name, truth in TRUTHS.items() if "never_delivered" in truth.certain and name < "90"
) - {"36-TRUE-nothing-ever-sent"}


def test_every_case_has_its_truth() -> None:
    assert {folder.name for folder in CASES.iterdir() if folder.is_dir()} == set(TRUTHS)


@pytest.mark.conformance
@pytest.mark.skipif(not SHARED.is_dir(), reason="no cases beside the repository")
def test_the_cases_are_those_beside_the_repository() -> None:
    given, stored = (
        {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*")}
        for folder in (SHARED, CASES)
    )
    assert {name: stored.get(name) for name in given} == given


def audited(name: str, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[dict[str, Any], list[Any]]:
    """The verdict and the findings of the command line."""
    main(["audit", "--json", *options, str(CASES / name)])
    *findings, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    return verdict, findings


@pytest.mark.parametrize("name", TRUTHS)
def test_the_default_policy_finds_what_is_broken(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    truth = TRUTHS[name]
    verdict, findings = audited(name, capsys, "--complete")
    certain = {finding["kind"] for finding in findings if not finding["uncertain"]}
    failed = [promise for promise in verdict["promises"] if promise["verdict"] == "FAIL"]
    assumed = truth == LEGAL and all("assumes" in promise for promise in failed)
    right = (verdict["verdict"] in truth.verdicts or assumed) and certain >= set(truth.certain)
    assert right != truth.wrong, (verdict["verdict"], [finding["explanation"] for finding in findings])


@pytest.mark.parametrize("name", TRUTHS)
def test_without_assumptions_nothing_legal_fails_and_nothing_broken_passes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = TRUTHS[name]
    verdict, findings = audited(name, capsys, "--complete", "--limit", "assume_absent=none")
    right = verdict["verdict"] in truth.verdicts
    if "FAIL" in truth.verdicts:
        right = verdict["verdict"] != "PASS"
    assert right != truth.wrong, (verdict["verdict"], [finding["explanation"] for finding in findings])


@pytest.mark.parametrize("name", TRUTHS)
def test_what_goes_on_at_the_last_line_is_no_finding(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    truth = TRUTHS[name]
    verdict, findings = audited(name, capsys)
    certain = {finding["kind"] for finding in findings if not finding["uncertain"]}
    if name in UNFINISHED:
        assert "never_delivered" not in certain
        return
    failed = [promise for promise in verdict["promises"] if promise["verdict"] == "FAIL"]
    assumed = truth == LEGAL and all("assumes" in promise for promise in failed)
    # A loss that only the end shows is not there yet; nothing else may pass.
    allowed = {*truth.verdicts, *(("PASS",) if "UNKNOWN" in truth.verdicts else ())}
    right = (verdict["verdict"] in allowed or assumed) and certain >= set(truth.certain)
    assert right != truth.wrong, (verdict["verdict"], [finding["explanation"] for finding in findings])


def test_of_a_deleted_subscription_only_what_was_passed_over_is_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """5:8 and 5:9 were stored when nobody was connected any more."""
    _verdict, findings = audited("93-TRUE-loss-then-deleted-Failover", capsys)
    assert [found["positions"] for found in findings if found["kind"] == "never_delivered"] == [["5:1"]]


@pytest.mark.parametrize("name", sorted(UNFINISHED))
def test_a_loss_is_found_once_it_is_older_than_the_limit(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(CASES / name, tmp_path / name)
    events = next((tmp_path / name).glob("events*"))
    text = gzip.decompress(events.read_bytes()) if events.suffix == ".gz" else events.read_bytes()
    last = json.loads(text.splitlines()[-1])
    later = {
        "seq": last["seq"] + 1,
        "t_us": last["t_us"] + 10_500_000,
        "kind": "flow",
        "consumer": 1,
        "permits": 1,
    }
    events.unlink()
    (events.parent / "events.jsonl").write_bytes(text + json.dumps(later).encode() + b"\n")
    main(["audit", "--json", str(events.parent)])
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "never_delivered" in {row["kind"] for row in findings if row.get("uncertain") is False}
