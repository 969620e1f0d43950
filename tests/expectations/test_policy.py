"""The policy file: limits per topic, and complaints that name file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.audit.limits import DEFAULT_LIMITS, NO_LIMIT, LimitsError
from dispatch_core.audit.policy.reader import PolicyError
from dispatch_core.audit.promises.every import PROMISES
from dispatch_expectations.alert_routes import Channel
from dispatch_expectations.policy import current_alert_rules, load_policy

#: Limits that no check compares: they decide what becomes a finding.
MAKES_FINDINGS = [
    *(
        ("completeness", f"{name}_ms")
        for name in ("stuck_key", "stuck_consumer", "stuck_subscription", "never_delivered", "ack_hole")
    ),
    *(("balance", name) for name in ("hot_key_share", "needless_message_ms", "min_topics")),
]


def write(folder: Path, text: str) -> Path:
    path = folder / "audit-policy.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load_policy(write(folder, text))
    return [problem.removeprefix(f"{folder}/") for problem in caught.value.problems]


def test_shipped_policy_tolerates_what_the_catalogue_tolerates() -> None:
    rule = load_policy().rule_for("any", "any")
    limits = {name: value for section in rule.limits.values() for name, value in section.items()}
    for kind in KINDS.values():
        if kind.name in limits and kind.promise in ("per_key_order", "duplicate_delivery"):
            assert limits[kind.name] == kind.default_tolerated, kind.name


def test_every_limit_of_the_policy_is_used_by_a_check_and_every_limited_check_has_one() -> None:
    known = {
        f"{section}.{name}" for section, names in load_policy().rules[0].limits.items() for name in names
    }
    used = {check.limit for promise in PROMISES for check in promise.checks if check.limit}
    used |= {f"{section}.{name}" for section, name in MAKES_FINDINGS}
    used |= {gate for promise in PROMISES for check in promise.checks for _, gate in check.gates}
    assert used == known


def test_every_kind_of_the_catalogue_is_judged_by_some_promise() -> None:
    judged = {kind for promise in PROMISES for check in promise.checks for kind in check.kinds}
    assert judged == set(KINDS)


def test_first_matching_rule_wins_and_inherits(tmp_path: Path) -> None:
    policy = load_policy(
        write(
            tmp_path,
            "version: 1\n"
            "defaults: {per_key_order: {split_key: 1}}\n"
            "rules:\n"
            '- {name: a, topics: "persistent://t/n/a*", per_key_order: {out_of_order: 7}}\n'
            '- {name: b, topics: "persistent://t/n/*", subscriptions: s, per_key_order: {out_of_order: any}}\n',
        )
    )
    chosen = [
        policy.rule_for(f"persistent://t/n/{name}", sub).name
        for name, sub in (("ab", "s"), ("b", "s"), ("b", "x"))
    ]
    assert chosen == ["a", "b", "default"]
    first, second, default = policy.rules
    assert first.limit("per_key_order", "out_of_order") == 7
    assert second.limit("per_key_order", "out_of_order") is None
    assert default.limit("per_key_order", "out_of_order") == 0
    assert {rule.limit("per_key_order", "split_key") for rule in policy.rules} == {1}


def test_limits_are_handed_down_by_topic_and_keep_their_meaning(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "version: 1\n"
        "defaults: {completeness: {ack_hole_ms: any}}\n"
        "rules:\n"
        '- {name: a, topics: "persistent://t/n/a*", completeness: {stuck_key_ms: 250}, balance: {max_share_ratio: 2}}\n',
    )
    rules = load_policy(path).limit_rules()
    read = LimitRules.of_json(rules.json())
    assert read == rules
    assert read.digest == rules.digest != load_policy().limit_rules().digest
    own, others = (read.limits_for(topic, "s") for topic in ("persistent://t/n/ab", "persistent://t/n/b"))
    assert (own.stuck_key_ms, others.stuck_key_ms) == (250, DEFAULT_LIMITS.stuck_key_ms)
    assert (own.share_ratio, others.share_ratio) == (2, DEFAULT_LIMITS.share_ratio)
    assert own.ack_hole_ms == others.ack_hole_ms == NO_LIMIT


def test_the_shipped_limits_are_those_of_the_core() -> None:
    assert load_policy().limit_rules().limits_for("any", "any") == DEFAULT_LIMITS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "{}",
        "[1]",
        "9" * 5000,
        '[{"topics": "*"}]',
        '[{"topics":"*","subscriptions":"*","limits":{"x":1}}]',
    ],
)
def test_rules_of_limits_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(LimitsError):
        LimitRules.of_json(text)


def test_every_problem_of_a_file_is_named_with_line_and_field(tmp_path: Path) -> None:
    text = (
        "version: 2\n"
        "defaults:\n"
        "  per_key_order:\n"
        "    out_of_ordr: 1\n"
        "    split_key: -1\n"
        "  balance: {min_messages: any}\n"
        "rules:\n"
        "  - name: Not A Name\n"
        "    topic: x\n"
        "  - {name: b, topics: [1], topics: y}\n"
    )
    assert problems(tmp_path, text) == [
        "audit-policy.yaml:1: version: must be 1, not '2'",
        "audit-policy.yaml:4: defaults.per_key_order.out_of_ordr: is unknown; the nearest known name is 'out_of_order'",
        "audit-policy.yaml:5: defaults.per_key_order.split_key: must be a number from 0 or any, not '-1'",
        "audit-policy.yaml:6: defaults.balance.min_messages: must be a number from 0, not 'any'",
        "audit-policy.yaml:9: rules[0].topic: is unknown; the nearest known name is 'topics'",
        "audit-policy.yaml:8: rules[0].topics: is missing",
        "audit-policy.yaml:8: rules[0].name: must be lower-case letters, digits, - or _",
        "audit-policy.yaml:10: rules[1].topics: is given twice; keep one",
        "audit-policy.yaml:10: rules[1].topics: must be a text, not a list",
    ]


def test_a_limit_that_could_never_hold_is_refused(tmp_path: Path) -> None:
    text = "version: 1\ndefaults:\n  conformance: {uncertain_percent: 101}\n  balance: {hot_key_share: 10}\n"
    assert problems(tmp_path, text) == [
        "audit-policy.yaml:4: defaults.balance.hot_key_share: must be a number from 0 to 1 or any, not '10'",
        "audit-policy.yaml:3: defaults.conformance.uncertain_percent: must be a number from 0 to 100 or any, not '101'",
    ]


def test_a_rule_behind_one_that_matches_all_of_it_is_named(tmp_path: Path) -> None:
    text = (
        "version: 1\nrules:\n"
        '  - {name: a, topics: "*", subscriptions: s}\n'
        '  - {name: b, topics: "x*", subscriptions: s}\n'
        '  - {name: c, topics: "x*"}\n'
        '  - {name: d, topics: "x*", subscriptions: t}\n'
        '  - {name: e, topics: "xy*"}\n'
    )
    assert problems(tmp_path, text) == [
        "audit-policy.yaml:4: rules[1].topics: is never reached: rule 'a' matches before it",
        "audit-policy.yaml:6: rules[3].topics: is never reached: rule 'c' matches before it",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "audit-policy.yaml:1: (file): is empty"),
        ("version: 1\nrules: " + "[" * 5000, "audit-policy.yaml:1: (file): is nested too deeply"),
        ("version: 1\nrules: {", "audit-policy.yaml:2: (file): is not YAML"),
        ("- a\n", "audit-policy.yaml:1: (file): must be a mapping"),
        ("defaults: {}\n", "audit-policy.yaml:1: version: is missing"),
        ("version: 1\nrules: none\n", "audit-policy.yaml:2: rules: must be a list"),
    ],
)
def test_a_file_that_is_no_policy_says_where(tmp_path: Path, text: str, problem: str) -> None:
    assert any(found.startswith(problem) for found in problems(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("version: 1\nrules:\n" + "- a\n" * 900, "(file): has too many problems; the rest was not read"),
        ("version: 1\nrules:\n" + "- a\n" * 1001, "rules: are 1001; the limit is 1000"),
    ],
)
def test_a_file_full_of_problems_is_left_soon(tmp_path: Path, text: str, last: str) -> None:
    found = problems(tmp_path, text)
    assert len(found) <= 101
    assert found[-1].endswith(last)


def test_text_that_is_not_utf8_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"version: 1\n# \xff\n")
    with pytest.raises(PolicyError, match=r"p\.yaml:2: .*UTF-8"):
        load_policy(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"none\.yaml: cannot be read"):
        load_policy(tmp_path / "none.yaml")


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text("version: 1\n" + text, encoding="utf-8", errors="surrogateescape")
    complaints: tuple[str, ...] = ()
    try:
        assert load_policy(path).rule_for("t", "s").name == "default"
    except PolicyError as error:
        complaints = error.problems
    assert all(problem.startswith(str(path)) for problem in complaints)


def test_what_is_ruled_out_goes_to_the_stages_that_make_findings(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "version: 1\n"
        "defaults:\n  assume_absent: [transactions]\n"
        "rules:\n  - {name: strict, topics: 'a*', assume_absent: []}\n  - {name: same, topics: 'b*'}\n"
    )
    rules = load_policy(path).limit_rules()
    assert [rules.limits_for(topic, "s").assume_absent for topic in ("a", "b", "c")] == [
        (),
        ("transactions",),
        ("transactions",),
    ]
    assert load_policy().limit_rules().limits_for("t", "s").assume_absent is None
    path.write_text("version: 1\ndefaults:\n  assume_absent: [transaction]\n")
    with pytest.raises(
        PolicyError, match=r"policy.yaml:3: defaults.assume_absent: .* nearest name is transactions"
    ):
        load_policy(path)


ALERTS = """\
version: 1
alerts:
  channels:
    mail: {connection: smtp_payments}
    night: {connection: pagerduty_night, min_severity: critical, digest_above: any}
  routes:
    - {topics: "persistent://payments/*", subscriptions: "pay-*", team: payments, channels: [night, mail]}
    - {topics: "*test*", channels: [mail]}
  operations: [mail]
  upgrade_risk: [mail]
  digest_above: 7
"""


def test_alerts_go_to_the_channels_of_the_first_route_that_matches_else_to_all(tmp_path: Path) -> None:
    alerts = load_policy(write(tmp_path, ALERTS)).alerts
    assert alerts.channels == (
        Channel("mail", "smtp_payments", "info", 7),
        Channel("night", "pagerduty_night", "critical", None),
    )
    asked = (("persistent://payments/a", "pay-1"), ("persistent://payments/test", "x"), ("other", "x"))
    taken = [[name for name in ("mail", "night") if alerts.takes(name, *who)] for who in asked]
    assert taken == [["mail", "night"], ["mail"], ["mail", "night"]]
    assert [alerts.team(*who) for who in asked] == ["payments", None, None]
    assert alerts.of_operations() == ("mail",)
    assert alerts.upgrade_risk == ("mail",)


def test_a_policy_without_alerts_uses_the_two_usual_connections_if_they_exist() -> None:
    alerts = load_policy().alerts
    assert [(channel.name, channel.connection, channel.required) for channel in alerts.channels] == [
        ("mail", "dispatch_audit_smtp", False),
        ("webhook", "dispatch_audit_webhook", False),
    ]
    assert alerts.of_operations() == ("mail", "webhook")
    assert alerts.upgrade_risk == ()


def test_mistakes_in_alerts_are_named_with_line_and_field(tmp_path: Path) -> None:
    text = (
        "version: 1\n"
        "alerts:\n"
        "  channels:\n"
        "    Mail: {connection: a}\n"
        "    file: {connection: a}\n"
        "    hook: {conection: a, min_severity: bad}\n"
        '    chat: {connection: "a b", digest_above: 0}\n'
        "  routes:\n"
        '    - {topics: "*", channels: [nobody]}\n'
        "    - {topics: a, team: t}\n"
        "  operations: []\n"
        "  operation: red\n"
    )
    assert problems(tmp_path, text) == [
        "audit-policy.yaml:12: alerts.operation: is unknown; the nearest known name is 'operations'",
        "audit-policy.yaml:4: alerts.channels.Mail: must be lower-case letters, digits, - or _",
        "audit-policy.yaml:5: alerts.channels.file: is the name of the files that are always written; choose another",
        "audit-policy.yaml:6: alerts.channels.hook.conection: is unknown; the nearest known name is 'connection'",
        "audit-policy.yaml:6: alerts.channels.hook.connection: is missing",
        "audit-policy.yaml:6: alerts.channels.hook.min_severity: must be one of critical, major, minor, info, not 'bad'",
        "audit-policy.yaml:7: alerts.channels.chat.connection: is no id of an Airflow connection",
        "audit-policy.yaml:7: alerts.channels.chat.digest_above: must be a number from 1 or any, not '0'",
        "audit-policy.yaml:9: alerts.routes[0].channels: 'nobody' is no channel; there are: Mail, file, hook, chat",
        "audit-policy.yaml:10: alerts.routes[1].channels: is missing",
        "audit-policy.yaml:10: alerts.routes[1].topics: is never reached: routes[0] matches before it",
        "audit-policy.yaml:11: alerts.operations: must be a list of channels: Mail, file, hook, chat",
    ]


def test_channels_can_be_read_although_another_section_has_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, f"{ALERTS}defaults: {{per_key_order: {{out_of_ordr: 1}}}}\n")
    monkeypatch.setenv("DISPATCH_AUDIT_POLICY", str(path))
    assert [channel.name for channel in current_alert_rules().channels] == ["mail", "night"]
    write(tmp_path, ALERTS.replace("operations: [mail]", "operations: [nobody]"))
    with pytest.raises(PolicyError, match=r"alerts\.operations: 'nobody' is no channel"):
        current_alert_rules()
