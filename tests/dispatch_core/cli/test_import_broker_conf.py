"""``import-broker-conf``: its output and file, which ``--settings`` accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main

SAMPLE = (
    Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4" / "designed-drain-one-by-one-ch"
)
READ = "dispatcherMaxReadBatchSize"
#: A file like the broker's own, with settings of every kind.
CONF = f"""\
#
# General
#
### --- General broker settings --- ###

# The metadata store URL
metadataStoreUrl=
brokerServicePort=6650
clusterName = eu-west
{READ}=100
{READ}=16
maxUnackedMessagesPerConsumer=
maxUnackedMessagesPerConsumr=3
preciseDispatcherFlowControl=false
brokerClientAuthenticationParameters=token:SECRET-WORD
kafkaPassword=SECRET-WORD
keySharedUnblockingIntervalMs=12
subscriptionKeySharedUseClassicPersistentImplementation=false
"""


def conf(folder: Path, text: str | bytes = CONF) -> Path:
    path = folder / "broker.conf"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_text_lists_what_matters_and_counts_what_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import-broker-conf", str(conf(tmp_path)), "--broker-version", "4.2.4"]) == 0
    said = capsys.readouterr().out
    assert f"changed    {READ} = 16  (default 100; lines 10 and 11: the one in line 11 holds)" in said
    assert "default    preciseDispatcherFlowControl = false  (default false; line 14)" in said
    assert "empty in the file: the default holds" in said
    assert "keySharedUnblockingIntervalMs = 12  (default 10; line 17)" in said
    assert "maxUnackedMessagesPerConsumr  (line 13): the nearest is maxUnackedMessagesPerConsumer" in said
    assert "4 other settings do not matter for dispatch (--verbose lists them)" in said
    assert "clusterName" not in said
    assert "Nothing was written" in said


def test_all_names_are_listed_when_asked_for_and_no_value_of_theirs_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = conf(tmp_path), tmp_path / "audit.conf"
    for form in (["--verbose"], ["--json"]):
        assert main(["import-broker-conf", str(path), "--out", str(out), *form]) == 0
        captured = capsys.readouterr()
        assert "brokerClientAuthenticationParameters" in captured.out
        assert "kafkaPassword" in captured.out
        assert "SECRET" not in captured.out + captured.err + out.read_text()
        assert "4.2.4 is assumed" in captured.err


def test_json_has_an_object_per_setting_and_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import-broker-conf", str(conf(tmp_path)), "--broker-version", "3.0.0", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    *rows, summary = objects(captured.out)
    found = {row["setting"]: row for row in rows}
    row = found[READ]
    assert (row["status"], row["value"], row["default"], row["lines"]) == ("changed", 16, 100, [10, 11])
    assert (row["nearest"], row["reason"]) == (None, None)
    assert found["subscriptionKeySharedUseClassicPersistentImplementation"]["status"] == "no_effect"
    assert summary["config"] == {
        READ: 16,
        "maxUnackedMessagesPerConsumer": 50000,
        "preciseDispatcherFlowControl": False,
        "keySharedUnblockingIntervalMs": 12,
    }
    assert summary["counts"]["ignored"] == 4
    assert (summary["broker_version"], summary["out"]) == ("3.0.0", None)


def test_what_it_writes_is_taken_by_settings_and_set_goes_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "audit.conf"
    ring = "subscriptionKeySharedUseConsistentHashing"
    path = conf(tmp_path, f"{READ}=16\n{ring}=false\n")
    assert main(["import-broker-conf", str(path), "--out", str(out)]) == 0
    assert f"--broker-version 4.2.4 --settings {out}" in capsys.readouterr().out
    assert main(["verify", "--jobs", "1", str(SAMPLE)]) == 0
    assert main(["verify", "--jobs", "1", str(SAMPLE), "--settings", str(out)]) == 1
    again = ["--set", f"{READ}=100", "--set", f"{ring}=true"]
    assert main(["verify", "--jobs", "1", str(SAMPLE), "--settings", str(out), *again]) == 0


@pytest.mark.parametrize(
    "command", [["audit"], ["explain", "--key", "k"], ["report", "--out", "o"], ["what-if"], ["verify"]]
)
def test_all_commands_refuse_a_wrong_settings_file_alike(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = conf(tmp_path, f"# one\n{READ}=16\nnoSuchSetting=1\n")
    assert main([*command, "nowhere", "--settings", str(wrong)]) == 2
    said = capsys.readouterr().err
    assert f"{wrong}:3: 'noSuchSetting' is no setting of broker.conf" in said
    assert "import-broker-conf" in said
    wrong.write_text(f"{READ}=many\n")
    assert main([*command, "nowhere", "--settings", str(wrong)]) == 2
    assert (
        f"{wrong}:1: setting {READ} = 'many': expected an integer: correct it there"
        in capsys.readouterr().err
    )
    assert main([*command, "nowhere", "--settings", str(tmp_path / "no.conf")]) == 2
    assert "no.conf: cannot be read: No such file" in capsys.readouterr().err


def test_an_unreadable_value_is_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = conf(tmp_path, f"clusterName=x\n{READ}=many\n"), tmp_path / "audit.conf"
    assert main(["import-broker-conf", str(path), "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert (
        f"{path}:2: {READ}: {READ} = 'many': expected an integer; no settings file was written"
        in captured.err
    )
    assert not out.exists()
    assert main(["import-broker-conf", str(path), "--json"]) == 2
    assert objects(capsys.readouterr().out)[0]["status"] == "unreadable"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            b"a=1\nb=\x00\n",
            "broker.conf:2: not a text file: byte 0x00 at column 3; nothing was taken from it",
        ),
        (b"a=\\uZZZZ\n", "broker.conf:1: "),
        (b"# only a comment\n", "no setting in it"),
        (b"", "no setting in it"),
    ],
)
def test_what_is_no_broker_conf_ends_with_two(
    data: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import-broker-conf", str(conf(tmp_path, data))]) == 2
    assert says in capsys.readouterr().err


def test_a_folder_and_a_file_that_is_not_there_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tmp_path, tmp_path / "none.conf"):
        assert main(["import-broker-conf", str(path)]) == 2
        assert f"{path}: cannot be read: " in capsys.readouterr().err


def test_only_a_settings_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = conf(tmp_path), tmp_path / "audit.conf"
    before = path.read_bytes()
    assert main(["import-broker-conf", str(path), "--out", str(path)]) == 2
    assert "was not written by import-broker-conf" in capsys.readouterr().err
    assert path.read_bytes() == before
    for text in (CONF, f"{READ}=7\n"):
        conf(tmp_path, text)
        assert main(["import-broker-conf", str(path), "--out", str(out)]) == 0
    assert f"{READ}=7\n" in out.read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["audit.conf", "broker.conf"]
