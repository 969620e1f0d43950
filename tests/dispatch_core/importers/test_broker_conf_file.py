"""A broker.conf as the broker reads it, and the meaning of each of its settings for a release."""

from __future__ import annotations

import time

import pytest

from dispatch_core.broker.profiles import resolve
from dispatch_core.broker.settings import known_names
from dispatch_core.errors import ProfileError
from dispatch_core.importers.broker_conf_file import (
    MOST_BYTES,
    Assignment,
    BrokerConfError,
    Judged,
    assignments,
    config_of,
    judge,
)

READ = "dispatcherMaxReadBatchSize"
CLASSIC = "subscriptionKeySharedUseClassicPersistentImplementation"
PRECISE = "preciseDispatcherFlowControl"


def pairs(data: bytes) -> list[tuple[str, str, int]]:
    return [(assignment.name, assignment.value, assignment.line) for assignment in assignments(data)]


def judged(text: str, version: str = "4.2.4") -> dict[str, Judged]:
    return {setting.name: setting for setting in judge(assignments(text.encode()), version)}


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (
            b"a=1\nb: 2\nc 3\nd = 4\ne\n",
            [("a", "1", 1), ("b", "2", 2), ("c", "3", 3), ("d", "4", 4), ("e", "", 5)],
        ),
        (b"# a=1\n! b=2\n\n  # c\n  d=4", [("d", "4", 5)]),
        (b"a=1\r\n\r\nb=2\r\nc=3\r", [("a", "1", 1), ("b", "2", 3), ("c", "3", 4)]),
        (b"a=1,\\\n   2,\\\n\t3\nb=2\n", [("a", "1,2,3", 1), ("b", "2", 4)]),
        (b"a=1\\\\\nb=2\n", [("a", "1\\", 1), ("b", "2", 2)]),
        (b"# no continuation \\\na=1\n", [("a", "1", 2)]),
        (b"\\u0061b\\=c=\\u0041\\t1\n", [("ab=c", "A\t1", 1)]),
        (b"a = 1 \t \n", [("a", "1", 1)]),
        (b"a=x=y:z # no comment\n", [("a", "x=y:z # no comment", 1)]),
        (b"\xef\xbb\xbf# a comment\na=1\n", [("a", "1", 2)]),
        (b"\xef\xbb\xbfa=1\n", [("\ufeffa", "1", 1)]),
        ("a=é\n".encode("latin-1"), [("a", "é", 1)]),
        ("# Größe\na=1\n".encode(), [("a", "1", 2)]),
        (b"a=1\na=2\n", [("a", "1", 1), ("a", "2", 2)]),
        (b"", []),
    ],
)
def test_the_form_is_that_of_java_s_properties(data: bytes, found: list[tuple[str, str, int]]) -> None:
    assert pairs(data) == found


def test_names_of_the_container_s_environment_lose_their_prefix() -> None:
    assert assignments(b"PULSAR_PREFIX_a=1\nPULSAR_PREFIX_=2\n") == [
        Assignment("a", "1", 1, prefixed=True),
        Assignment("PULSAR_PREFIX_", "2", 2),
    ]


@pytest.mark.parametrize(
    ("data", "line", "says"),
    [
        (b"a=1\nb=\x002\n", 2, "byte 0x00 at column 3"),
        (b"\x7fELF\x02", 1, "byte 0x02 at column 5"),
        ("a=1\n".encode("utf-16"), 0, "UTF-16"),
        (b"a=1\n\nb=\\u12\n", 3, "'\\\\u12' is no escape"),
        (b"a=1\n" + b"#" * MOST_BYTES, 0, "more than 4 MiB"),
        (b"a=1\n" + b"x\\\n" * 1100, 1002, "over more than 1000 lines"),
        (b"a=1\n" + b"x" * 300 + b"=1", 2, "a name of 300 characters"),
        (b"a=1\n" * 10_001, 10_001, "more than 10,000 settings"),
    ],
)
def test_what_is_no_broker_conf_is_refused_with_its_line(data: bytes, line: int, says: str) -> None:
    with pytest.raises(BrokerConfError) as refused:
        assignments(data)
    assert says in str(refused.value)
    assert refused.value.line == line


def test_hostile_files_are_done_with_soon() -> None:
    began = time.monotonic()
    many = "".join(f"{READ}{number}=1\n" for number in range(9_000))
    assert sum(setting.nearest is not None for setting in judge(assignments(many.encode()), "4.2.4")) == 100
    with pytest.raises(BrokerConfError):
        assignments((b"a" + b"\\" * 101 + b"\n") * 40_000)
    assignments(b"a" + b" " * (MOST_BYTES - 2) + b"b")
    assert time.monotonic() - began < 20


def test_settings_are_classified_by_their_meaning_in_the_release() -> None:
    found = judged(
        f"{READ}=16\nmaxUnackedMessagesPerConsumer=50000\n{CLASSIC}=true\nkeySharedUnblockingIntervalMs=20\n"
        "clusterName=eu\ndispatcherMaxReadBatchSiz=7\nkafkaListeners=PLAINTEXT://x\n"
    )
    assert found[READ] == Judged(READ, "changed", 16, 100, (1,))
    assert found["maxUnackedMessagesPerConsumer"] == Judged(
        "maxUnackedMessagesPerConsumer", "default", 50000, 50000, (2,)
    )
    assert found[CLASSIC].status == "changed"
    assert found["keySharedUnblockingIntervalMs"] == Judged(
        "keySharedUnblockingIntervalMs", "what_if", 20, 10, (4,)
    )
    assert found["clusterName"] == Judged("clusterName", "ignored", lines=(5,))
    assert found["dispatcherMaxReadBatchSiz"] == Judged(
        "dispatcherMaxReadBatchSiz", "unknown", lines=(6,), nearest=READ
    )
    assert found["kafkaListeners"].nearest is None
    assert found[PRECISE] == Judged(PRECISE, "default", False, False)


@pytest.mark.parametrize(
    ("name", "version", "status", "default"),
    [
        (CLASSIC, "3.0.0", "no_effect", None),
        (CLASSIC, "4.2.4", "changed", False),
        (CLASSIC, "5.0.1", "no_effect", None),
        ("activeConsumerFailoverConsistentHashing", "3.0.7", "no_effect", None),
        ("activeConsumerFailoverConsistentHashing", "3.0.8", "changed", False),
        ("acknowledgmentAtBatchIndexLevelEnabled", "4.0.13", "changed", False),
        ("acknowledgmentAtBatchIndexLevelEnabled", "4.1.0", "default", True),
    ],
)
def test_the_release_decides(name: str, version: str, status: str, default: bool | None) -> None:
    setting = judged(f"{name}=true", version)[name]
    assert (setting.status, setting.default) == (status, default)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (PRECISE, "yes", "expected true or false"),
        (READ, "1e3", "expected an integer"),
        (READ, "0", "expected an integer from 1 to"),
        (READ, "${SIZE}", "expected an integer"),
        (READ, "+-5", "expected an integer"),
        (READ, "99999999999", "expected an integer from 1 to 2147483647"),
        ("keySharedUnblockingIntervalMs", "-1", "expected a number of milliseconds"),
    ],
)
def test_values_that_cannot_be_read_are_named_with_their_reason(name: str, value: str, reason: str) -> None:
    setting = judged(f"# c\n{name}={value}\n")[name]
    assert (setting.status, setting.lines, setting.value) == ("unreadable", (2,), None)
    assert reason in (setting.reason or "")
    assert "--set" not in (setting.reason or "")


@pytest.mark.parametrize(("text", "value"), [("TRUE", True), ("False ", False)])
def test_flags_are_read_in_any_case(text: str, value: bool) -> None:
    assert judged(f"{PRECISE}={text}")[PRECISE].value is value


def test_a_plus_sign_is_read_as_java_does() -> None:
    assert judged(f"{READ}=+16")[READ].value == 16


def test_an_empty_value_is_the_default() -> None:
    setting = judged(f"{READ}=\n")[READ]
    assert (setting.status, setting.value, setting.lines) == ("default", 100, (1,))
    assert "empty" in (setting.reason or "")


def test_of_equal_names_the_last_is_effective_and_all_lines_are_listed() -> None:
    setting = judged(f"{READ}=16\n{READ}=many\n{READ}=32\n")[READ]
    assert (setting.value, setting.lines) == (32, (1, 2, 3))


def test_the_environment_s_value_goes_before_the_file_s() -> None:
    setting = judged(f"PULSAR_PREFIX_{READ}=16\n{READ}=32\n")[READ]
    assert (setting.value, setting.lines) == (16, (2, 1))
    assert "PULSAR_PREFIX_" in (setting.reason or "")


def test_a_name_behind_a_byte_order_mark_is_unknown_to_the_broker() -> None:
    found = {
        setting.name: setting
        for setting in judge(assignments(b"\xef\xbb\xbf" + f"{READ}=16\n".encode()), "4.2.4")
        if setting.lines
    }
    assert (found[READ].status, found[READ].value, found[READ].nearest) == ("unknown", None, READ)
    assert "byte order mark" in (found[READ].reason or "")


def test_what_the_file_gives_makes_the_same_profile() -> None:
    text = f"{READ}=16\n{PRECISE}=true\nmaxUnackedMessagesPerConsumer=\nclusterName=x\n"
    config = config_of(judge(assignments(text.encode()), "4.2.4"))
    assert config == {READ: 16, PRECISE: True, "maxUnackedMessagesPerConsumer": 50000}
    values = resolve("4.2.4", config).settings
    assert (values[READ], values[PRECISE], values["maxUnackedMessagesPerConsumer"]) == (16, True, 50000)


def test_a_release_that_is_none_is_refused() -> None:
    with pytest.raises(ProfileError):
        judge([], "2.3.0")


def test_all_of_the_known_names_are_recognised() -> None:
    text = "".join(f"{name}=\n" for name in sorted(known_names()))
    assert text.count("\n") > 400
    assert not [
        setting.name for setting in judge(assignments(text.encode()), "4.2.4") if setting.status == "unknown"
    ]
