"""The zoo: every exhibit gets its verdict on every release, and the dispatcher of the core confirms it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from dispatch_core.broker import state as st_
from dispatch_core.cli.main import main
from dispatch_core.cli.zoo import exhibits_in, texts_in
from dispatch_core.cli.zoo import main as write_page
from dispatch_core.errors import DispatchAuditError
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt import zoo
from dispatch_core.hunt.choices import PROMISES
from dispatch_core.hunt.hunts import Aim, Hunt, hunter_for
from dispatch_core.hunt.replayed import Replay
from dispatch_core.hunt.zoo import Exhibit
from dispatch_core.minimize.same_finding import findings_of
from dispatch_core.recording.files import find_recordings
from dispatch_core.recording.reader import read_recording
from dispatch_core.replay.whole_log import audit_whole

FOLDER: Final = Path(__file__).resolve().parents[3] / "docs" / "zoo"
EXHIBITS: Final = exhibits_in(FOLDER)
#: Exhibits that show the difference to a release which keeps all promises: shorter ones break it in both.
CONTRASTS: Final = {"pip-282-last-sent-position": "3.3.9"}
#: Exhibits made by hand, longer than what hunt finds.
BY_HAND: Final = frozenset({"23870-free-within-round"})
#: What a hunt of a minute does not find.
RARE: Final = frozenset({"24898-rewind-undone"})
#: A hunt takes so many sets of keys until it has found an exhibit, at most; nearly all are found with the first.
SETS_OF_KEYS: Final = 100
pytestmark = pytest.mark.slow  # compiles the search, which takes minutes on a slow machine
by_name = pytest.mark.parametrize("exhibit", EXHIBITS, ids=[exhibit.name for exhibit in EXHIBITS])


def own(exhibit: Exhibit) -> str:
    """The verdict that the exhibit stands for."""
    return next(iter(exhibit.verdicts))


def affected(exhibit: Exhibit) -> str:
    """The newest release that gets it."""
    return [release for release, verdict in exhibit.expected.items() if verdict == own(exhibit)][-1]


def test_there_are_enough() -> None:
    """The issues that are named most, and at least 15 in all."""
    names = " ".join(link for exhibit in EXHIBITS for link in exhibit.links)
    assert len(EXHIBITS) >= 15
    for known in ("pip-282", "pip-379", "20776", "23384", "23845", "23870", "24736", "26236", "26174"):
        assert known in names, known


@by_name
def test_each_release_gets_its_verdict(exhibit: Exhibit) -> None:
    found = {release: zoo.verdict(exhibit, release) for release in zoo.RELEASES}
    assert found == exhibit.expected
    assert own(exhibit) in found.values()


@by_name
def test_a_fault_is_mended_and_a_hole_is_not(exhibit: Exhibit) -> None:
    """A hole may be one of the classic dispatcher, which 4.2 still has."""
    newest = exhibit.expected[zoo.RELEASES[-1]]
    if exhibit.kind == "fault":
        assert newest == zoo.KEPT
        assert zoo.mended_in(exhibit)[0] in "345"
    elif newest == zoo.KEPT:
        classic = {**exhibit.settings, "subscriptionKeySharedUseClassicPersistentImplementation": True}
        assert zoo.verdict(replace(exhibit, settings=classic), "4.2.4") == own(exhibit)


@pytest.mark.slow
@pytest.mark.parametrize(
    "exhibit",
    [exhibit for exhibit in EXHIBITS if exhibit.name not in RARE],
    ids=lambda exhibit: exhibit.name,
)
def test_hunt_alone_finds_it(exhibit: Exhibit) -> None:
    """It is told the release, its settings, the promise and the kinds of steps, and takes a second or two."""
    release, promise = affected(exhibit), own(exhibit).partition(".")[0]
    kinds = {s_.kind_of(step) for step in exhibit.steps}
    also = tuple(group for group, of_group in s_.GROUPS.items() if kinds & {*of_group})
    aim = Aim(tuple(name for name, promises in PROMISES.items() if promise in promises), also)
    hunt = Hunt()
    for seed in range(SETS_OF_KEYS):
        hunter = hunter_for(exhibit.profile(release), aim, seed, None)
        for _ in range(10):
            find = hunter.random()
            if find is not None:
                hunt.note(hunter, find, aim)
        if own(exhibit) in {group.verdict for group in hunt.groups.values()}:
            return
    pytest.fail(f"{SETS_OF_KEYS} sets of keys show {[group.verdict for group in hunt.groups.values()]} only")


@by_name
def test_no_step_can_be_left_out(exhibit: Exhibit) -> None:
    assert len(exhibit.steps) <= 10 or exhibit.name in BY_HAND
    hunter = exhibit.hunter(affected(exhibit))
    for at in range(len(exhibit.steps)):
        shorter = exhibit.steps[:at] + exhibit.steps[at + 1 :]
        find = hunter.play(shorter)
        if exhibit.name in CONTRASTS:
            other = exhibit.hunter(CONTRASTS[exhibit.name])
            assert other.play(exhibit.steps) is None
            assert find is None or other.play(shorter) is not None, at
            continue
        assert find is None or f"{find.name}.{hunter.cause_of(find)}" != own(exhibit), at


@pytest.mark.parametrize(
    "exhibit",
    [
        pytest.param(exhibit, id=exhibit.name)
        for exhibit in EXHIBITS
        if exhibit.subscription_type == "Key_Shared"
    ],
)
def test_the_dispatcher_of_the_core_confirms_it(exhibit: Exhibit, tmp_path: Path) -> None:
    """Exhibits of Failover and Shared are played on it in the first place."""
    promise, _, cause = own(exhibit).partition(".")
    replay = Replay(exhibit.profile(affected(exhibit)), exhibit.keys, exhibit.steps)
    replay.settle()
    if promise in ("stuck", "starved"):
        assert replay.entries_left()
    elif promise == "leak":
        assert not replay.entries_left()
        assert replay.core.state.s[st_.TOTAL_UNACKED] != 0
    elif promise == "double_outstanding":
        sent = [entry for _, entries in replay.sent for entry in entries]
        requested = sum(line.kind == "redeliver" for line in replay.lines)
        assert max(sent.count(entry) for entry in sent) > 1 + requested
    elif cause != "after_a_request":  # then a log shows a reason, too
        for name, rows in (("events", replay.events()), ("messages", replay.messages())):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (source,) = find_recordings([str(tmp_path)])
        (log,) = read_recording(source).logs
        kinds = {finding.kind for finding in findings_of(audit_whole(log, closed=True))}
        assert kinds & {"split_key", "out_of_order"}


def test_the_package_has_a_copy_of_all_files() -> None:
    """``python -m dispatch_core.cli.zoo docs/zoo`` writes it: the wheel has no documents."""
    assert [*zoo.exhibits()] == EXHIBITS
    assert {exhibit.name for exhibit in EXHIBITS} == {*texts_in(FOLDER)}


def test_the_page_is_that_of_the_files(tmp_path: Path) -> None:
    """``python -m dispatch_core.cli.zoo docs/zoo`` writes it."""
    for exhibit in EXHIBITS:
        text = zoo.text_of_exhibit(exhibit)
        assert zoo.parse(exhibit.name, text) == exhibit
        (tmp_path / f"{exhibit.name}.toml").write_text(text, encoding="utf-8")
    assert write_page([str(tmp_path)]) == 0
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == (FOLDER / "README.md").read_text(
        encoding="utf-8"
    )


def test_verdicts_are_written_into_the_files(tmp_path: Path) -> None:
    text = (FOLDER / "24736-hash-never-free.toml").read_text(encoding="utf-8")
    wrong = text.replace('["4.0.0 to 4.0.6", "4.1.0"]', '["4.0.0"]')
    assert wrong != text
    (tmp_path / "24736-hash-never-free.toml").write_text(wrong, encoding="utf-8")
    write_page([str(tmp_path), "--verdicts"])
    assert (tmp_path / "24736-hash-never-free.toml").read_text(encoding="utf-8") == text


def test_an_exhibit_that_no_release_shows_any_more_stays_to_be_looked_at(tmp_path: Path) -> None:
    """The model of the broker has changed: a first step less, and nothing happens."""
    text = (FOLDER / "24736-hash-never-free.toml").read_text(encoding="utf-8")
    shorter = text.replace('    "an entry of key k2 is stored",\n', "", 1)
    (tmp_path / "24736-hash-never-free.toml").write_text(shorter, encoding="utf-8")
    write_page([str(tmp_path), "--verdicts"])
    assert '"stuck.draining_hash" = []' in (tmp_path / "24736-hash-never-free.toml").read_text(
        encoding="utf-8"
    )
    assert "| none | none known here |" in (tmp_path / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("release", "code"), [("4.0.6", 1), ("4.0.7", 0)])
def test_hunt_plays_files(release: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(FOLDER / "24736-hash-never-free.toml")
    assert main(["hunt", "--broker-version", release, "--play", file]) == code
    assert main(["hunt", "--broker-version", release, "--json", "--play", file]) == code
    text, row = capsys.readouterr().out.splitlines()
    verdict = "stuck.draining_hash" if code else "kept"
    assert text == f"24736-hash-never-free: {verdict}"
    assert json.loads(row)["verdict"] == json.loads(row)["expected"] == verdict


@pytest.mark.parametrize(
    ("changed", "by", "said"),
    [
        ('kind = "fault"', 'kind = "rumour"', "kind 'rumour' is none of"),
        ("c2 leaves", "c2 sleeps", "'c2 sleeps' is no step"),
        (
            "c2 leaves",
            "c2 acknowledges cumulatively up to the last entry that it holds",
            "is no step of a Key_Shared",
        ),
        ("stuck.draining_hash", "stuck.rain", "'stuck.rain' is no promise and cause"),
        ("4.0.0 to 4.0.6", "4.0.0 to 4.0.99", "'4.0.0 to 4.0.99' is no range"),
        ("title", "titel", "titel|title"),
        ("[verdicts]", "[verdicts", "24736"),
    ],
)
def test_a_file_with_a_fault_is_refused(changed: str, by: str, said: str) -> None:
    text = (FOLDER / "24736-hash-never-free.toml").read_text(encoding="utf-8")
    with pytest.raises(DispatchAuditError, match=said):
        zoo.parse("24736", text.replace(changed, by, 1))
