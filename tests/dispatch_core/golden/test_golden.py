"""``dispatch-audit golden`` over a sample of real vectors: exact if unchanged, and a mismatch if changed."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.golden import read
from dispatch_core.cli.main import main
from dispatch_core.golden.runner import judge
from dispatch_core.golden.vectors import FORMATS, VectorFileError, parse

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "golden"
SAMPLE = sorted(GOLDEN.rglob("*.jsonl.gz"))

Line = dict[str, Any]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name.split('.')[0]}"


@pytest.mark.parametrize("path", SAMPLE, ids=name_of)
def test_the_core_answers_as_the_brokers_own_classes(path: Path) -> None:
    result = judge(read(path))
    assert result.problems == []
    assert result.first_mismatch is None
    assert result.steps == result.exact > 0
    assert result.steps % len(result.versions) == 0


def test_the_sample_holds_every_kind() -> None:
    assert {read(path).kind for path in SAMPLE} == set(FORMATS)


# --- a file that was changed -----------------------------------------------------------------------------------------


def load(name: str) -> tuple[Line, list[Line]]:
    with gzip.open(GOLDEN / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        header, *rest = map(json.loads, lines)
    return header, rest


def write(path: Path, header: Line, lines: list[Line | str]) -> Path:
    """Write a vector file with a header that fits its contents."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    body = "".join(f"{text}\n" for text in texts).encode()
    header = {"records": len(lines), "body_sha256": hashlib.sha256(body).hexdigest()} | header
    path.write_bytes(json.dumps(header).encode() + b"\n" + body)
    return path


def rewritten(folder: Path, name: str, change: Callable[[Line, list[Line]], None], **header: Any) -> Path:
    old, lines = load(name)
    change(old, lines)
    kept = {key: value for key, value in old.items() if key not in ("records", "body_sha256")}
    return write(folder / "vectors.jsonl", kept | header, list(lines))


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[Line], str]:
    code = main(["golden", "--json", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, [json.loads(text) for text in out.splitlines()], err


def first_step(lines: list[Line], wanted: Callable[[Line], bool]) -> tuple[Line, int, Line]:
    return next((line, n, s) for line in lines for n, s in enumerate(line["steps"]) if wanted(s))


def other(owner: int | None) -> int:
    return 1 if owner is None else owner + 1


TAMPERED: list[tuple[str, str, Callable[[Line], bool], Callable[[Line], None]]] = [
    ("4.2.4/autosplit", "own", lambda s: True, lambda s: s["own"].__setitem__(0, other(s["own"][0]))),
    ("3.0.7/consistent", "bown", lambda s: bool(s["bown"]), lambda s: s["bown"][0].__setitem__(1, 99)),
    ("3.0.0/consistent", "sha256", lambda s: True, lambda s: s.update(sha256="0" * 64)),
    ("4.2.4/consistent-classic", "n_ranges", lambda s: True, lambda s: s.update(n_ranges=s["n_ranges"] + 1)),
    (
        "4.2.4/consistent",
        "ranges_after",
        lambda s: bool(s.get("ranges_after")),
        lambda s: s["ranges_after"][0].__setitem__(2, 99),
    ),
    ("4.2.4/sticky", "result", lambda s: s["result"] != "ok", lambda s: s["result"].update(message="no")),
    ("5.0.1/sticky", "probed", lambda s: bool(s.get("probed")), lambda s: s.update(probed=[])),
    ("4.2.4/failover", "active", lambda s: True, lambda s: s.update(active=other(s["active"]))),
    ("3.0.7/failover", "notified", lambda s: bool(s["notified"]), lambda s: s.update(notified=[])),
    (
        "4.0.6/impacted",
        "impacted",
        lambda s: any("ranges" in item for item in s["impacted"]["removed"]),
        lambda s: s["impacted"]["removed"][0]["ranges"][0].__setitem__(0, 4),
    ),
    ("4.2.4/impacted", "impacted", lambda s: True, lambda s: s["impacted"].pop("added")),
    ("4.0.6/draining", "stats", lambda s: s["op"] == "should_block", lambda s: s["stats"].reverse()),
    ("4.2.4/draining", "unblocked", lambda s: bool(s["unblocked"]), lambda s: s.update(unblocked=[])),
    # true and 1 are equal in Python only
    ("4.2.4/draining", "result", lambda s: s["result"] is True, lambda s: s.update(result=1)),
]


@pytest.mark.parametrize(
    ("name", "field", "wanted", "tamper"), TAMPERED, ids=[f"{name}-{field}" for name, field, _, _ in TAMPERED]
)
def test_a_changed_answer_is_named_by_seed_and_step(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    field: str,
    wanted: Callable[[Line], bool],
    tamper: Callable[[Line], None],
) -> None:
    where: list[tuple[int, int]] = []

    def change(_header: Line, lines: list[Line]) -> None:
        line, number, step = first_step(lines, wanted)
        tamper(step)
        where.append((line["seed"], number))

    path = rewritten(tmp_path, name, change)
    code, (found,), _ = run(capsys, path)
    assert code == 1
    assert found["mismatched"] == len(found["versions"])  # this step, under every release, and no other
    assert found["exact"] == found["steps"] - found["mismatched"]
    first = found["first_mismatch"]
    assert ((first["seed"], first["step"]), first["field"]) == (where[0], field)
    assert first["expected"] != first["computed"] or field == "result"


@pytest.mark.parametrize("text", [b"[" * 100_000, b"9" * 5000])
def test_a_header_that_python_cannot_hold_is_named(text: bytes) -> None:
    with pytest.raises(VectorFileError, match="v:1: the header is no JSON"):
        parse("v", text)


def test_a_changed_hash_is_a_mismatch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for field in ("h31", "h31_string", "auto_split", "consistent", "sticky", "consistent_classic", "key_hex"):

        def change(_header: Line, lines: list[Line], field: str = field) -> None:
            value = lines[2][field]
            lines[2][field] = "00" if field == "key_hex" else value + 1

        code, (found,), _ = run(capsys, rewritten(tmp_path, "4.2.4/hash", change))
        assert (code, found["mismatched"]) == (1, 5), field


def test_the_wrong_release_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Vectors of one release do not hold for another one with other rules."""
    for name, version in (
        ("3.0.0/consistent", "3.0.4"),
        ("3.0.7/consistent", "3.0.6"),
        ("4.2.4/consistent", "3.3.6"),
        ("3.0.7/sticky", "4.2.4"),
        ("4.2.4/sticky", "5.0.1"),
        ("4.2.4/failover", "3.0.7"),
        ("4.0.6/impacted", "4.2.4"),
        ("4.0.6/draining", "4.2.4"),
        ("4.2.4/hash", "3.0.7"),
    ):
        path = rewritten(tmp_path, name, lambda header, _: header.update(versions=[version]))  # noqa: B023
        code, (found,), _ = run(capsys, path)
        assert (code, found["mismatched"] > 0) == (1, True), (name, version)


# --- what cannot be judged -------------------------------------------------------------------------------------------


def test_a_damaged_line_is_named_and_the_rest_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, lines = load("4.2.4/sticky")
    header = {key: value for key, value in header.items() if key not in ("records", "body_sha256")}
    whole = len(lines)
    del lines[1]["probes"]
    lines[2]["steps"][3]["op"] = "jump"
    path = write(tmp_path / "v.jsonl", header, [*lines, '{"seed": 1, "st'])
    code, (found,), err = run(capsys, path)
    assert code == 2
    assert [text.split(": ")[0] for text in found["problems"]] == [
        f"{path}:{number}" for number in (3, 4, whole + 2)
    ]
    assert "probes is missing" in err
    assert "step 3: op 'jump' is none of join, leave" in err
    assert (found["mismatched"], found["exact"] > 0) == (0, True)


def test_a_checksum_or_count_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, lines = load("4.2.4/hash")
    code, (found,), err = run(capsys, write(tmp_path / "v.jsonl", header, list(lines[:-1])))
    assert (code, found["mismatched"], len(found["problems"])) == (2, 0, 2)
    assert "body_sha256" in err
    assert f"{len(lines) - 1} lines after the header, records says {len(lines)}" in err
    lines[0]["h31"] = 7  # the file was changed *and* a vector is wrong: a finding
    code, (found,), _ = run(capsys, write(tmp_path / "v.jsonl", header, list(lines)))
    assert (code, found["mismatched"], len(found["problems"])) == (1, 5, 1)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"kind": "colour"}, "kind 'colour' is none of hash, autosplit"),
        ({"kind": ["hash"]}, "is none of hash"),
        ({"format": "sticky-key-hash/2"}, "is not 'sticky-key-hash/1'"),
        ({"versions": []}, "is no list of releases"),
    ],
)
def test_an_unknown_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], header: Line, message: str
) -> None:
    path = rewritten(tmp_path, "4.2.4/hash", lambda *_: None, **header)
    code, objects, err = run(capsys, path)
    assert (code, objects) == (2, [])
    assert f"{path}:1: " in err
    assert message in err


def test_a_release_that_makes_no_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = rewritten(tmp_path, "4.2.4/impacted", lambda *_: None, versions=["4.2.4", "3.0.7", "new"])
    code, (found,), err = run(capsys, path)
    assert (code, found["mismatched"], len(found["problems"])) == (2, 0, 2)
    assert "release 3.0.7 has no impacted" in err
    assert "version new" in err


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = (GOLDEN / "4.2.4" / "hash.jsonl.gz").read_bytes()
    for content in (data[: len(data) // 2], b"no gzip", b""):
        path = tmp_path / "v.jsonl.gz"
        path.write_bytes(content)
        code, objects, err = run(capsys, path, GOLDEN / "3.0.7" / "hash.jsonl.gz")
        assert (code, len(objects)) == (2, 1)  # the other file is still judged
        assert str(path) in err


def test_nothing_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "none", tmp_path / "*.jsonl.gz"):
        code, objects, err = run(capsys, path)
        assert (code, objects) == (2, [])
        assert f"{path}: no vector file there" in err


def test_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(_header: Line, lines: list[Line]) -> None:
        lines[4]["steps"][2]["own"][0] = 77

    path = rewritten(tmp_path, "4.2.4/autosplit", change)
    assert main(["golden", str(path), str(GOLDEN / "4.2.4" / "h*.gz")]) == 1
    out = capsys.readouterr().out
    seed = load("4.2.4/autosplit")[1][4]["seed"]
    assert f"first mismatch: seed {seed} step 2, own (line 6, release 4.0.0, style" in out
    assert "2 files, " in out
    assert "5 mismatched" in out
