"""Wrong rules and tampered traces over the recordings beside the repository: ``verify`` finds each of them, races or not."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest

from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.tampering import Tampering
from tests.sample import some
from tests.wrong_rules.catalogue import WRONG_RULES
from tests.wrong_rules.recordings import SHOWN_BY
from tests.wrong_rules.test_wrong_rules import Answers, answers

SHARED = Path(__file__).resolve().parents[3] / "shared"
RECORDINGS = SHARED / "recordings"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]


def folder_of(recording: str) -> str:
    """Return the folder of a recording: operations and policies have their own."""
    return str(next(filter(Path.is_dir, _places(recording))))


def _places(recording: str) -> list[Path]:
    return [SHARED / name / recording for name in ("operations", "recordings", "unsolved")]


#: Every third rule on one of its recordings (in a whole run each on all). ``tests/wrong_rules`` has each on those of
#: ``tests/data``. Recordings of folders that are not there are passed over.
PAIRS = [
    (rule, recording)
    for rule, recordings in some(SHOWN_BY.items(), 3)
    for recording in some((name for name in recordings if any(map(Path.is_dir, _places(name)))), 20)
]


@pytest.fixture(scope="module")
def said() -> Answers:
    right = [(None, folder_of(name)) for name in sorted({name for _, name in PAIRS})]
    return answers([*right, *((rule, folder_of(name)) for rule, name in PAIRS)])


@pytest.mark.parametrize(("rule", "recording"), PAIRS)
def test_a_wrong_rule_diverges(said: Answers, rule: str, recording: str) -> None:
    folder = folder_of(recording)
    assert said[None, folder]["judged"]
    assert said[None, folder]["divergent"] is None
    assert said[rule, folder]["divergent"] is not None, WRONG_RULES[rule].meaning


# --- no race explains a tampered line away ---------------------------------------------------------------------------

RACING = [
    "4.0.0/random-0007-ch-racing",
    "4.0.0/random-0013-range-racing",
    "4.0.0-preview.1/random-0011-ch-racing",
    "4.0.0-preview.1/random-0045-ch-racing",
    "4.2.4/random-0011-range-racing",
    "4.2.4/random-0041-classic-range-racing",
    "4.2.4/random-0043-ch-racing",
    "4.2.4/random-0051-sticky-racing",
]
TAMPERINGS: list[tuple[str, Tampering]] = [
    ("sent", t.to_another_consumer),
    ("sent", t.one_to_another_consumer),
    ("sent", t.two_of_one_key_swapped),
    ("sent", t.one_not_sent),
    ("sent", t.sent_line_dropped),
    ("sent", t.add_to("permits_before", 997)),  # no racing flow has so many
    ("read_done", t.other_hash),
    ("read_issued", t.add_to("max_entries", 997)),
    ("read_issued", t.read_dropped),
    ("replay_read_issued", t.one_not_asked_for),
    ("replay_read_issued", t.read_dropped),
    ("round_end", t.add_to("in_replay")),
    ("draining_release", t.release_dropped),
    ("draining_release", t.add_to("ref_count_before")),
    ("draining_add", t.add_to("hash")),
    ("draining_blocked", t.add_to("hash")),
]
AT_EACH = 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recording", some(RACING, 6))
@pytest.mark.parametrize(("kind", "tamper"), TAMPERINGS, ids=lambda value: getattr(value, "__name__", value))
def test_no_race_explains_it_away(recording: str, kind: str, tamper: Tampering, tmp_path: Path) -> None:
    folder = RECORDINGS / recording
    trace, keys = t.raw(folder), t.keys_of(folder)
    lines = t.places(trace, kind)
    random.Random(f"{recording} {kind}").shuffle(lines)
    done = 0
    for at in lines:
        changed = copy.deepcopy(trace)
        shows = tamper(changed, at, keys)
        if shows is None:
            continue
        first = t.first_wrong(t.verified(t.copy_with(folder, changed, tmp_path)))
        assert first is not None, trace[at]
        assert first.seq == shows, trace[at]
        done += 1
        if done == AT_EACH:
            return
    if not done:
        assert not lines or kind in ("sent", "draining_release", "replay_read_issued"), (
            "nothing to tamper with"
        )
