"""``--policy`` of the commands that judge: limits by topic, mistakes with file, line and field, and what goes before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatch_core.cli.main import main

CASES = Path(__file__).resolve().parents[2] / "data" / "cases"
#: FAIL by one ``out_of_order``.
DISORDER = str(CASES / "30-TRUE-out-of-order-failover")
DRAIN = str(CASES.parent / "recordings" / "4.2.4" / "designed-drain-one-by-one-ch")
WRONG = """\
version: 1
defaults:
  per_key_order: {out_of_ordr: 1}
  balance: {hot_key_share: 10}
rules:
  - {name: a, topics: "*"}
  - {name: b, topics: "x"}
"""


def policy(folder: Path, text: str) -> str:
    path = folder / "policy.yaml"
    path.write_text(f"version: 1\n{text}\n", encoding="utf-8")
    return str(path)


def judged(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, str]]:
    """The exit code of ``audit``, and verdicts by promise."""
    code = main(["audit", "--json", *arguments])
    *_, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    return code, {promise["promise"]: promise["verdict"] for promise in verdict["promises"]}


def test_a_finding_that_the_policy_tolerates_breaks_no_promise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judged(capsys, DISORDER)[1]["per_key_order"] == "FAIL"
    tolerant = policy(tmp_path, 'rules: [{name: a, topics: "*failover", per_key_order: {out_of_order: 1}}]')
    code, found = judged(capsys, DISORDER, "--policy", tolerant)
    assert (code, set(found.values())) == (0, {"PASS"})
    other = policy(tmp_path, 'rules: [{name: a, topics: "*other", per_key_order: {out_of_order: 1}}]')
    assert judged(capsys, DISORDER, "--policy", other)[1]["per_key_order"] == "FAIL"


def test_limits_that_no_finding_shows_are_judged_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = policy(
        tmp_path, "defaults: {per_key_order: {out_of_order: any}, completeness: {wait_ms_max: 1}}"
    )
    code, found = judged(capsys, DISORDER, "--policy", strict)
    assert code == 1
    assert {name for name, verdict in found.items() if verdict == "FAIL"} == {"completeness"}
    main(["audit", DISORDER, "--policy", strict])
    assert "an entry waited 7 ms for its first delivery (the policy allows 1)" in capsys.readouterr().out


def test_the_variable_names_the_policy_and_the_option_goes_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "given").mkdir()
    monkeypatch.setenv(
        "DISPATCH_AUDIT_POLICY", policy(tmp_path, "defaults: {per_key_order: {out_of_order: 1}}")
    )
    assert judged(capsys, DISORDER)[0] == 0
    given = policy(tmp_path / "given", "defaults: {per_key_order: {out_of_order: 0}}")
    assert judged(capsys, DISORDER, "--policy", given)[0] == 1


def test_a_limit_of_the_command_line_goes_before_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lax = policy(tmp_path, "defaults: {assume_absent: [], per_key_order: {out_of_order: any}}")
    assert judged(capsys, DISORDER, "--policy", lax)[1]["per_key_order"] == "UNKNOWN"
    ruled_out = ("--limit", "assume_absent=entry_filter")
    assert judged(capsys, DISORDER, "--policy", lax, *ruled_out)[1]["per_key_order"] == "PASS"
    assert main(["audit", DISORDER, "--limit", "stuck_key=1"]) == 2
    assert "there is no limit 'stuck_key': the nearest name is stuck_key_ms" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("audit", ()),
        ("explain", ()),
        ("report", ("--out", "reports")),
        ("what-if", ()),
        ("advise", ()),
        ("upgrade-risk", ("--broker-version", "5.0.1")),
        ("minimize", ("--out", "log")),
    ],
)
def test_all_mistakes_of_a_policy_are_named_and_nothing_is_judged(
    command: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(WRONG, encoding="utf-8")
    assert main([command, DISORDER, "--policy", "policy.yaml", *options]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"dispatch-audit {command}: the audit policy cannot be used; nothing was judged:",
        "  policy.yaml:3: defaults.per_key_order.out_of_ordr: is unknown; the nearest known name is 'out_of_order'",
        "  policy.yaml:4: defaults.balance.hot_key_share: must be a number from 0 to 1 or any, not '10'",
        "  policy.yaml:7: rules[1].topics: is never reached: rule 'a' matches before it",
        "Correct the file, or leave out --policy and unset DISPATCH_AUDIT_POLICY to use the shipped policy.",
    ]
    assert main([command, DISORDER, "--policy", "nowhere.yaml", *options]) == 2
    assert "nowhere.yaml: cannot be read: No such file or directory" in capsys.readouterr().err


def test_what_only_the_pipeline_reads_of_a_policy_is_no_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = policy(tmp_path, "expectations: own.yaml\nalerts: {channels: {mail: {connection: smtp}}}")
    assert judged(capsys, DISORDER, "--policy", both)[1]["per_key_order"] == "FAIL"


def test_explain_and_minimize_find_what_the_policys_limits_make_a_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key of this log waits for 2.86 s; no finding by the shipped limits."""
    short = policy(tmp_path, "defaults: {completeness: {stuck_key_ms: 2000}}")
    for options, code in (((), 0), (("--policy", short), 1)):
        assert main(["explain", "--json", DRAIN, "--failed-only", *options]) == code
        kinds = {json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()}
        assert ("stuck_key" in kinds) == bool(code)
    out = ("--json", "--budget", "1", "--finding", "stuck_key")
    assert main(["minimize", DRAIN, "--out", str(tmp_path / "none"), *out]) == 2
    capsys.readouterr()
    assert main(["minimize", DRAIN, "--out", str(tmp_path / "small"), *out, "--policy", short]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "stuck_key"


def test_reports_and_predictions_are_judged_by_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tolerant = policy(tmp_path, "defaults: {per_key_order: {out_of_order: 1}}")
    out = ("--json", "--out", str(tmp_path / "reports"))
    for options, verdict in (((), "FAIL"), (("--policy", tolerant), "PASS")):
        main(["report", DISORDER, *out, *options])
        assert json.loads(capsys.readouterr().out)["verdict"] == verdict
