"""Every line of ``--json`` meets the schema of its command, and a line with another, or without a, field does not."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from dispatch_core.audit.active_topics import ACTIVE_TIMES, failover_imbalances
from dispatch_core.audit.limits import DEFAULT_LIMITS
from dispatch_core.cli import audit, json_schemas
from dispatch_core.cli.main import COMMANDS, NEED_SPARK, _parser, main
from dispatch_core.golden.runner import Judgement, Mismatch
from tests.json_lines import SCHEMAS, valid_lines, validator

ROOT: Final = Path(__file__).resolve().parents[3]
DATA: Final = ROOT / "tests" / "data"
NACKS: Final = str(DATA / "recordings" / "4.2.4" / "designed-negative-acks-ch")
FAILOVER: Final = str(DATA / "cases" / "30-TRUE-out-of-order-failover")
SHARED: Final = str(DATA / "cases" / "82-shared-unload-no-checkpoint")
BINARY_KEY: Final = str(DATA / "cases" / "24-producer-bad-b64-key")
DRAIN: Final = str(DATA / "recordings" / "4.2.4" / "designed-drain-one-by-one-ch")
STALL: Final = str(DATA / "stalls" / "4.2.4" / "stall-classic")
OUT: Final = "OUT"

#: The arguments of calls, and names of sorts of lines that they print. ``OUT``: a folder of the test.
CALLS: Final[dict[str, tuple[tuple[list[str], set[str]], ...]]] = {
    "audit": (([FAILOVER, SHARED, BINARY_KEY], {"finding", "verdict"}),),
    "verify": (([DRAIN, FAILOVER, "--jobs", "1"], {"load"}),),
    "explain": (
        ([FAILOVER], {"worst", "moment"}),
        ([FAILOVER, "--consumer", "1"], {"moment", "explained"}),
    ),
    "stats": (([DRAIN, "--at", "1795249220599065"], {"dispatcher"}), ([FAILOVER], {"dispatcher"})),
    "diagnose": (
        ([str(DATA / "stats" / "4.2.4-key-shared"), STALL], {"statistics", "log", "end"}),
    ),
    "what-if": (([FAILOVER, SHARED, "--seeds", "1"], {"prediction"}),),
    "advise": (([DRAIN, SHARED, "--seeds", "1"], {"advice"}),),
    "upgrade-risk": (
        ([DRAIN, SHARED, "--broker-version", "5.0.1", "--seeds", "1"], {"risk", "outcomes"}),
    ),
    "ranges": ((["--nodes", "3", "--to-nodes", "4"], {"node", "move"}),),
    "report": (([FAILOVER, "--out", OUT], {"report"}),),
    "golden": (([str(DATA / "golden" / "4.2.4" / "failover.jsonl.gz")], {"file"}),),
    "hunt": ((["--broker-version", "4.0.0", "--schedules", "20000", "--seed", "3"], {"find", "totals"}),),
    "minimize": (([FAILOVER, "--out", OUT, "--budget", "1"], {"log"}),),
    "import-broker-conf": (
        ([str(DATA / "broker.conf"), "--broker-version", "4.2.4", "--out", f"{OUT}/audit.conf"],
         {"setting", "summary"}),
    ),
}  # fmt: skip
#: Their lines are checked where a broker's stand-in, or the stages, are.
ELSEWHERE: Final = {
    "record-messages": "tests/dispatch_core/cli/test_record_messages.py",
    "watch-stats": "tests/dispatch_core/cli/test_watch_stats.py",
    "pipeline": "tests/expectations/test_same_verdicts.py",
}


def sorts_of(command: str, line: dict[str, Any]) -> list[str]:
    """The sorts of lines of a command that a line is."""
    return [
        sort.name
        for sort, schema in zip(
            json_schemas.LINES[command], json_schemas.document(command)["oneOf"], strict=True
        )
        if validator(command).evolve(schema=schema).is_valid(line)
    ]


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """All schemas of objects within a schema."""
    if isinstance(value, dict):
        if value.get("type") == "object" or value.get("type") == ["object", "null"]:
            yield value
        for inner in value.values():
            yield from objects_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from objects_in(inner)


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.slow] if name == "hunt" else []) for name in CALLS]
)
def test_every_line_meets_the_schema_and_is_of_one_sort(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (arguments, sorts) in enumerate(CALLS[command]):
        out = tmp_path / str(number)
        given = [argument.replace(OUT, str(out)) for argument in arguments]
        if command == "import-broker-conf":
            out.mkdir()
        main([command, "--json", *given])
        said = capsys.readouterr()
        lines = valid_lines(command, said.out)
        found = [sorts_of(command, line) for line in lines]
        assert all(len(names) == 1 for names in found)
        assert {names[0] for names in found} == sorts
        assert not {"\r", "\x1b"} & set(said.out + said.err), "no progress on a pipe"
        for line in lines[:: max(1, len(lines) // 5)]:
            refused_without_a_field(command, line)


def refused_without_a_field(command: str, line: dict[str, Any]) -> None:
    """A line must be refused with one field more, and without any field that its sort requires."""
    assert not validator(command).is_valid(line | {"unheard_of": 1})
    (sort,) = sorts_of(command, line)
    (schema,) = (s.schema for s in json_schemas.LINES[command] if s.name == sort)
    for name in schema["required"]:
        left = {field: value for field, value in line.items() if field != name}
        assert not validator(command).is_valid(left), name
        assert not validator(command).is_valid(left | {f"{name}_renamed": line[name]}), name


def test_findings_over_all_topics() -> None:
    rows = [
        ("c", f"t{number}", "s", name, active, 10, 0)
        for number in range(12)
        for name, active in (("busy", 10), ("a", 0), ("b", 0), ("c", 0), ("d", 0))
    ]
    times = pa.table([list(column) for column in zip(*rows, strict=True)], schema=ACTIVE_TIMES)
    found = failover_imbalances(times, DEFAULT_LIMITS)
    lines = list(audit._json_lines_of_all(found, "FAIL"))
    assert [sorts_of("audit", line) for line in lines] == [
        ["finding over all topics"],
        ["verdict over all topics"],
    ]
    for line in lines:
        refused_without_a_field("audit", line)


def test_a_mismatch_of_vectors() -> None:
    judgement = Judgement("f", "hash", ("4.2.4",), 1, 0, 1)
    judgement.first_mismatch = Mismatch("4.2.4", 2, 1, {"range_size": 9}, 0, "owner", [1], None)
    line = judgement.as_json()
    assert sorts_of("golden", line) == ["file"]
    del line["first_mismatch"]["expected"]
    assert sorts_of("golden", line) == []


def test_each_command_with_json_has_a_schema_and_is_run() -> None:
    def takes_json(command: str) -> bool:
        if command in NEED_SPARK:
            return True
        parser = _parser(command)
        (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        return "--json" in commands.choices[command]._option_string_actions

    assert {command for command in COMMANDS if takes_json(command)} == set(json_schemas.LINES)
    assert {*CALLS, *ELSEWHERE} == set(json_schemas.LINES)
    for command, file in ELSEWHERE.items():
        assert f'valid_lines("{command}"' in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("command", json_schemas.LINES)
def test_every_object_says_which_fields_it_may_have(command: str) -> None:
    for schema in objects_in(json_schemas.document(command)):
        assert "additionalProperties" in schema
        assert set(schema.get("required", ())) <= set(schema.get("properties", schema.get("required", ())))


@pytest.mark.parametrize("command", json_schemas.LINES)
def test_the_files_are_those_of_the_code(command: str) -> None:
    assert (SCHEMAS / f"{command}.json").read_text(encoding="utf-8") == json_schemas.text_of(command), (
        "run: python -m dispatch_core.cli.json_schemas docs"
    )


def test_the_page_lists_every_line() -> None:
    page = (ROOT / "docs" / json_schemas.PAGE).read_text(encoding="utf-8")
    assert json_schemas.in_step(page) == page, "run: python -m dispatch_core.cli.json_schemas docs"
    assert {path.stem for path in SCHEMAS.glob("*.json")} == set(json_schemas.LINES)


def test_json_schemas_writes_what_is_kept(tmp_path: Path) -> None:
    write: Callable[[Path], None] = json_schemas.main
    (tmp_path / json_schemas.PAGE).write_text("<!-- commands -->\n<!-- end -->\n", encoding="utf-8")
    write(tmp_path)
    assert len(list((tmp_path / "schemas").glob("*.json"))) == len(json_schemas.LINES)
    assert (
        "| [`audit`](schemas/audit.json) | finding | per finding |"
        in (tmp_path / json_schemas.PAGE).read_text()
    )
