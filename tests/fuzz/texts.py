"""Files of settings: policies, limits, broker.conf, settings files, moments. Each may only fail with a known error."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.audit.limits import NO_LIMIT, Limits, LimitsError
from dispatch_core.audit.policy.reader import PolicyError, shipped_text
from dispatch_core.broker import settings
from dispatch_core.broker.profiles import resolve
from dispatch_core.cli.settings_file import SettingsFileError, settings_of
from dispatch_core.errors import ProfileError
from dispatch_core.golden.vectors import VectorFileError, parse
from dispatch_core.importers import broker_conf_file
from dispatch_expectations.policy import load_policy
from spark_jobs.intervals import IntervalError, interval

_DATA: Final = Path(__file__).parents[1] / "data"
_POLICY: Final = re.sub(r"\s*#[^\n]*", "", shipped_text().decode()).encode()
_BROKER_CONF: Final = (_DATA / "broker.conf").read_bytes().splitlines(keepends=True)
_NUMBERS: Final = (
    *(
        "0",
        "1",
        "-1",
        "any",
        "1e3",
        "1.5",
        "nan",
        ".inf",
        "-0",
        "0x10",
        "1_000",
        "'0'",
        "null",
        "true",
        "101",
        "0.5",
    ),
    *(
        "9" * 16,
        "9" * 400,
        "9" * 5000,
        "1" + "0" * 309,
        "1e999",
        "Infinity",
        "NaN",
        '"any"',
        '"1"',
        '"x"',
        "[]",
        "{}",
    ),
)

#: A document of a target, and its check, which raises only for a fault of the reader.
Made = tuple[bytes, Callable[[], int]]


def says(error: Exception, where: str = "") -> None:
    """Check that an error names the place and is short."""
    assert where in str(error), error
    assert len(str(error)) < 1000, str(error)[:1000]


def spoiled(rng: Random, value: Any, odd: Sequence[Any]) -> Any:
    """Return a JSON value with a part removed, added, or replaced by one of ``odd``."""
    if rng.random() < 0.15:
        return rng.choice(odd)
    if isinstance(value, dict) and value:
        made = dict(value)
        name = rng.choice(list(made))
        if rng.random() < 0.2:
            del made[name]
        elif rng.random() < 0.1:
            made["more"] = 1
        else:
            made[name] = spoiled(rng, made[name], odd)
        return made
    if isinstance(value, list) and value:
        at = rng.randrange(len(value))
        return [*value[:at], spoiled(rng, value[at], odd), *value[at + 1 :]]
    return rng.choice(odd)


def _mangled(rng: Random, data: bytes, words: tuple[bytes, ...]) -> bytes:
    """Return bytes with some parts replaced, doubled, moved or cut off."""
    made = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(made) + 1)
        pick = rng.random()
        if pick < 0.45:
            made[at : at + rng.randrange(6)] = rng.choice(words)
        elif pick < 0.6:
            made[at:at] = rng.randbytes(rng.randrange(4))
        elif pick < 0.75:
            made[at:at] = made[at : at + rng.randrange(200)]
        elif pick < 0.9:
            del made[at : at + rng.randrange(80)]
        else:
            del made[at:]
    if rng.random() < 0.05:
        made[0:0] = rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"---\n", b"%YAML 9.9\n"))
    if rng.random() < 0.05:
        made = bytearray(bytes(made).replace(b"\n", rng.choice((b"\r\n", b"\r"))))
    return bytes(made)


# ---- the audit policy ----

_YAML_WORDS: Final = tuple(
    word.encode()
    for word in (
        *_NUMBERS[:20],
        "\n",
        "\n  ",
        ":",
        "- ",
        "&a ",
        "*a",
        "[",
        "{",
        "}",
        "!!python/object:os.system ",
        "!x ",
        "|",
        ">",
        "'",
        '"',
        "\t",
        "#",
        "? ",
        "<<: *a",
        "é",
        "\u2028",
        "rules:",
        "defaults:",
        "version: 2",
        "*",
        "---\n",
    )
)


def policy(rng: Random) -> Made:
    """Make a policy file from parts of the shipped one and rules, with typing mistakes."""
    lines = _POLICY.splitlines(keepends=True)
    kept = [line for line in lines if rng.random() < rng.choice((0.3, 0.95))][: rng.randrange(1, 40)]
    if rng.random() < 0.7:
        kept = [line for line in kept if not line.startswith(b"version")]
        kept.insert(0, b"version: 1\n")
    for number in range(rng.choice((0, 1, 3))):
        head = b"rules:\n" if number == 0 else b""
        limit = rng.choice(_NUMBERS).encode()
        kept.append(
            head
            + b"- name: r%d\n  topics: '%s'\n  per_key_order:\n    split_key: %s\n"
            % (number, rng.choice((b"*", b"persistent://a/*", b"[z-a]", b"[!", b"a" * 300)), limit)
        )
    text = _mangled(rng, b"".join(kept), _YAML_WORDS)
    if rng.random() < 0.01:
        text = rng.choice(
            (b"[" * 3000, b"a: &a [" + b"*a," * 500 + b"]", b"{" * 300 + b"}" * 300, b"- " * 2000)
        )
    return text, lambda: _read_policy(text)


def _check_problems(problems: tuple[str, ...], path: Path) -> None:
    assert 0 < len(problems) < 200
    for problem in problems:
        where = problem.removeprefix(f"{path}:")
        assert where != problem, problem
        assert re.match(r"\d+: |.* bytes long| ", where), problem
        assert len(problem) < 2000, problem[:300]


def _read_policy(text: bytes) -> int:
    path = _file("policy.yaml", text)
    try:
        read = load_policy(path)
    except PolicyError as error:
        _check_problems(error.problems, path)
        return 1
    read.rule_for("persistent://public/default/t", "s")
    rules = read.limit_rules()
    assert LimitRules.of_json(rules.json()) == rules
    return 1


# ---- limits passed on as JSON ----


def limits(rng: Random) -> Made:
    """Make limits, or rules of limits, as passed from stage to stage."""
    names = ("stuck_key_ms", "share_ratio", "hot_key_share", "min_topics", "ack_hole_ms", "stuck_kye_ms", "")
    chosen = ",".join(
        f'"{rng.choice(names)}":{rng.choice(_NUMBERS)}' for _ in range(rng.choice((0, 1, 2, 4)))
    )
    text = f"{{{chosen}}}"
    rules = rng.random() < 0.5
    if rules:
        text = f'[{{"topics":"*","subscriptions":{rng.choice(("0", chr(34) * 2))},"limits":{text}}}]'
    if rng.random() < 0.5:
        text = _mangled(
            rng, text.encode(), (b"{", b"}", b"[", b",", b":", b'"', b"null", b"\\ud800", b"9" * 30)
        ).decode("utf-8", "replace")
    if rng.random() < 0.01:
        text = "[" * 100_000
    return text.encode("utf-8", "surrogatepass"), lambda: _read_limits(text, rules)


def _read_limits(text: str, rules: bool) -> int:
    try:
        if rules:
            read = LimitRules.of_json(text)
            assert LimitRules.of_json(read.json()) == read
            found = read.limits_for("t", "s")
        else:
            found = Limits.of_json(text)
            assert Limits.of_json(found.json()) == found
    except LimitsError as error:
        says(error)
        return 1
    assert 0 <= found.stuck_key_ms <= NO_LIMIT
    return 1


# ---- settings of the broker ----

_CONF_WORDS: Final = (
    *(
        b"=",
        b":",
        b" ",
        b"\\",
        b"\\\n",
        b"\\u0041",
        b"\\u00",
        b"\\uZZZZ",
        b"#",
        b"!",
        b"\r",
        b"\n",
        b"\xe9",
        b"\x00",
        b"\x0c",
    ),
    *(
        b"true",
        b"-1",
        b"99999999999999999999",
        b"1" * 5000,
        b"PULSAR_PREFIX_",
        b"a" * 300,
        b"\x85",
        b"\xef\xbb\xbf",
    ),
)


def conf(rng: Random) -> Made:
    """Make a broker.conf."""
    at = rng.randrange(len(_BROKER_CONF))
    lines = [*_BROKER_CONF[at : at + rng.randrange(30)]]
    for _ in range(rng.randrange(4)):
        name = rng.choice(
            [*settings.SETTINGS, "managedLedgerDefaultEnsembleSize", "dispatcherMaxReadBatchSze", ""]
        )
        lines.append(f"{name}={rng.choice(_NUMBERS)}\n".encode())
    text = _mangled(rng, b"".join(lines), _CONF_WORDS)
    return text, lambda: _read_conf(text)


def _read_conf(text: bytes) -> int:
    try:
        found = broker_conf_file.assignments(text)
    except broker_conf_file.BrokerConfError as error:
        says(error)
        return 1
    judged = broker_conf_file.judge(found, "4.2.4")
    for setting in judged:
        assert setting.status in broker_conf_file.STATUSES
        assert all(line >= 1 for line in setting.lines)
    # what it makes of the file is what --settings takes, and rules follow from it
    resolve(
        "4.2.4",
        {
            name: value
            for name, value in broker_conf_file.config_of(judged).items()
            if name in settings.SETTINGS
        },
    )
    return 1


def settings_file(rng: Random) -> Made:
    """Make a file for ``--settings``."""
    names = [*settings.SETTINGS, "clusterName"]
    lines = [
        f"{rng.choice(names)}={rng.choice((*_NUMBERS[:3], '100', 'true', 'false', ''))}\n"
        for _ in range(rng.randrange(5))
    ]
    text = "".join(lines).encode()
    if rng.random() < 0.4:
        text = _mangled(rng, text, _CONF_WORDS)
    return text, lambda: _read_settings(text)


def _read_settings(text: bytes) -> int:
    path = _file("settings.conf", text)
    try:
        given = settings_of([path])
    except SettingsFileError as error:
        says(error, str(path))
        return 1
    try:
        resolve("4.2.4", given)
    except ProfileError as error:
        says(error)
    return 1


# ---- golden vectors, moments ----


def vectors(rng: Random) -> Made:
    """Make a file of golden vectors."""
    header: dict[str, Any] = {
        "kind": "hash",
        "format": "sticky-key-hash/1",
        "versions": ["4.2.4"],
        "records": 1,
    }
    line = {"seed": 1, "key_hex": "00", "h31": 1, "auto_split": 1, "consistent": 1, "sticky": 1}
    text = (json.dumps(header) + "\n" + json.dumps(line) + "\n").encode()
    words = (
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"null",
        b"-1",
        b"9" * 5000,
        b"\\ud800",
        b"\xff",
        b"[" * 3000,
        b"draining",
        b"1.5",
    )
    text = _mangled(rng, text, words)
    return text, lambda: _read_vectors(text)


def _read_vectors(text: bytes) -> int:
    try:
        read = parse("v.jsonl", text)
    except VectorFileError as error:
        says(error, "v.jsonl:1: ")
        return 1
    for problem in read.problems:
        assert problem.startswith("v.jsonl"), problem
        assert len(problem) < 1000
    return 1


def moment(rng: Random) -> Made:
    """Make the bounds of an interval as text."""
    parts = (
        "2026-11-21",
        "T06:00:00",
        "+00:00",
        "Z",
        "9999-12-31",
        "0001-01-01",
        "+23:59",
        "-23:59",
        ".5",
        " ",
        "2026-W47",
        "24",
    )
    first, last = ("".join(rng.choice(parts) for _ in range(rng.randrange(4))) for _ in range(2))
    if rng.random() < 0.3:
        first = _mangled(rng, first.encode(), (b"-", b":", b"\xc3\xa9", b"0" * 9, b"+")).decode(
            "utf-8", "replace"
        )
    return f"{first}\n{last}".encode(), lambda: _read_moment(first, last)


def _read_moment(first: str, last: str) -> int:
    try:
        span = interval(first, last or None)
    except IntervalError as error:
        says(error)
        return 1
    assert span.start_us < span.end_us
    return 1


def _file(name: str, data: bytes) -> Path:
    """Write the document to a file of this process, which the next one overwrites."""
    path = Path(_place(os.getpid()).name) / name
    path.write_bytes(data)
    return path


@cache
def _place(_process: int) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzz-")


READERS: Final[dict[str, Callable[[Random], Made]]] = {
    "policy": policy,
    "limits": limits,
    "broker_conf": conf,
    "settings_file": settings_file,
    "golden": vectors,
    "moments": moment,
}
