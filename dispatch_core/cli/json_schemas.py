"""JSON Schemas of the lines that ``--json`` prints, one document per command.

``python -m dispatch_core.cli.json_schemas docs`` writes them to ``docs/schemas``, and their table into its page ``PAGE``.
Kinds of findings and other names that the code defines are taken from there.

An object is closed: it has the fields that are listed and no others. A field is required unless its name ends with ``?``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dispatch_core.audit.assumptions import BEHAVIOURS
from dispatch_core.audit.catalogue import KINDS, PROMISES, SEVERITIES
from dispatch_core.audit.client_log import LOST_CONNECTIONS, UNLOGGED_CONSUMERS
from dispatch_core.audit.promises.promise import FAIL, PASS, UNKNOWN
from dispatch_core.hunt.promises import NAMES as HUNTED
from dispatch_core.importers.broker_conf_file import STATUSES
from dispatch_core.what_if.advise import KINDS as CHANGES
from dispatch_core.what_if.upgrade_risk import OUTCOMES, PAIRS

Schema = Mapping[str, Any]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
#: The page with the table of the commands and their lines.
PAGE: Final = "command-line.md"
_TABLE: Final = re.compile(r"<!-- commands -->\n.*?<!-- end -->\n", re.DOTALL)


def maybe(schema: Schema) -> Schema:
    """Allow null, too.

    >>> maybe({"type": "integer"})
    {'type': ['integer', 'null']}
    """
    allowed = {**schema, "type": [schema["type"], "null"]}
    return allowed | {"enum": [*schema["enum"], None]} if "enum" in schema else allowed


def listed(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def by_name(values: Schema, names: Sequence[str] | None = None) -> Schema:
    """Return the schema of an object whose fields are not fixed, or are some of ``names``."""
    known = {} if names is None else {"propertyNames": {"enum": list(names)}}
    return {"type": "object", "additionalProperties": values, **known}


def choice(*values: str) -> Schema:
    """Return the schema of a text that is one of some."""
    return {"type": "string", "enum": list(values)}


def means(schema: Schema, text: str) -> Schema:
    """Say what a field means."""
    return {**schema, "description": text}


def closed(fields: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object with these fields; ``?`` at the end of a name: it may be missing.

    >>> closed({"a": {"type": "integer"}, "b?": {"type": "string"}})["required"]
    ['a']
    """
    return {
        "type": "object",
        "properties": {name.removesuffix("?"): schema for name, schema in fields.items()},
        "required": [name for name in fields if not name.endswith("?")],
        "additionalProperties": False,
    }


TEXT: Final[Schema] = {"type": "string"}
INTEGER: Final[Schema] = {"type": "integer"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
ANYTHING: Final[Schema] = {}
TEXTS: Final = listed(TEXT)
TIME_US: Final = means(INTEGER, "microseconds since the epoch")
POSITION: Final[Schema] = {"type": "string", "pattern": r"^-?\d+:-?\d+$"}
POSITIONS: Final = means(listed(POSITION), "ledger:entry")
#: The sticky key hash under the recorded rules: of some selectors all 31 bits.
HASH: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}
VERDICT: Final = choice(PASS, FAIL, UNKNOWN)
KIND: Final = choice(*KINDS)
RECORDING: Final = means(TEXT, "the recording's folder, after its parent")

_DISPATCHER: Final = {"topic": TEXT, "subscription": TEXT}
_WHERE: Final = {"recording": RECORDING, "cluster": TEXT, **_DISPATCHER, "incarnation": COUNT}


@dataclass(frozen=True, slots=True)
class Line:
    """One sort of line: its name, when it is printed, and its schema."""

    name: str
    printed: str
    schema: Schema


_FINDING: Final = {
    "kind": KIND,
    "severity": choice(*SEVERITIES),
    "key": maybe(means(TEXT, "the key as text, or base64 with key_b64")),
    "hash": maybe(HASH),
    "positions": POSITIONS,
    "consumers": means(listed(INTEGER), "numbers of connections in the log"),
    "consumer_names": listed(maybe(TEXT)),
    "seqs": means(listed(INTEGER), "the lines that prove it"),
    "uncertain": FLAG,
    "explanation": TEXT,
}
_AUDIT: Final = (
    Line(
        "finding",
        "per finding",
        closed(
            {
                **_WHERE,
                **_FINDING,
                "key_b64?": {"type": "boolean", "const": True},
                "cause?": TEXT,
                "reason?": TEXT,
                "lines?": means(TEXTS, "of client logs: file and line of each of seqs"),
            }
        ),
    ),
    Line(
        "verdict",
        "per recording, behind its findings",
        closed(
            {
                "verdict": VERDICT,
                "recording": RECORDING,
                "counts": means(by_name(COUNT, list(KINDS)), "findings by kind"),
                "as_of_us": maybe(TIME_US),
                "complete": FLAG,
                "connected": maybe(means(COUNT, "consumers that are connected then")),
                "levels": listed(choice("T", "E", "C", "")),
                "quarantined": COUNT,
                "warnings": TEXTS,
                "promises": listed(
                    closed(
                        {
                            **_DISPATCHER,
                            "promise": choice(*PROMISES),
                            "verdict": VERDICT,
                            "findings": COUNT,
                            "tolerated": COUNT,
                            "reason": TEXT,
                            "assumes?": listed(choice(*BEHAVIOURS, UNLOGGED_CONSUMERS, LOST_CONNECTIONS)),
                        }
                    )
                ),
                "not_judged?": means(
                    listed(closed({**_DISPATCHER, "promise": choice(*PROMISES), "reason": TEXT})),
                    "of client logs: promises that they do not tell",
                ),
            }
        ),
    ),
    Line(
        "finding over all topics",
        "per finding over the topics of all recordings",
        closed(
            {
                "recording": {"const": "*"},
                "cluster": TEXT,
                "topic": means(TEXT, "what the names of the topics begin with, and *"),
                "subscription": TEXT,
                **_FINDING,
            }
        ),
    ),
    Line(
        "verdict over all topics",
        "once, behind such findings",
        closed({"verdict": VERDICT, "recording": {"const": "*"}, "counts": by_name(COUNT, list(KINDS))}),
    ),
)

_COMPARED: Final = {"decisions": COUNT, "exact": COUNT, "uncertain": COUNT, "divergent": COUNT}
_VERIFY: Final = (
    Line(
        "load",
        "per dispatcher and load of its topic",
        closed(
            {
                "recording": RECORDING,
                "topic?": means(TEXT, "missing where the recording could not be read"),
                "subscription?": TEXT,
                "broker_version": maybe(TEXT),
                "rounds": COUNT,
                **_COMPARED,
                "classes": means(by_name(closed(_COMPARED)), "by class of decision"),
                "decisions_not_judged?": means(by_name(by_name(COUNT)), "by reason, then by class"),
                "first_divergence": maybe(
                    closed({"seq": INTEGER, "class": TEXT, "expected": TEXT, "recorded": TEXT})
                ),
                "uncertain_examples": listed(
                    closed(
                        {
                            "seq": INTEGER,
                            "class": TEXT,
                            "racing_seq": maybe(INTEGER),
                            "reason": maybe(TEXT),
                        }
                    )
                ),
                "warnings": TEXTS,
                "ignored_settings": TEXTS,
                "log_findings": listed(
                    closed({"seq": INTEGER, "where": TEXT, "event": TEXT, "rule": TEXT, "message": TEXT})
                ),
                "not_judged?": means(TEXT, "why nothing was compared"),
            }
        ),
    ),
)

_EXPLAIN: Final = (
    Line(
        "moment",
        "per moment of what is explained",
        closed(
            {
                "recording": RECORDING,
                **_DISPATCHER,
                "incarnation": COUNT,
                "seq": maybe(INTEGER),
                "t_us": TIME_US,
                "what": TEXT,
                "kind": maybe(KIND),
                "consumer": maybe(INTEGER),
                "consumer_name": maybe(TEXT),
                "positions": POSITIONS,
                "hash": maybe(HASH),
                "reason": maybe(TEXT),
                "holder": maybe(INTEGER),
                "held_by_positions": POSITIONS,
                "for_ms": maybe(NUMBER),
                "text": TEXT,
            }
        ),
    ),
    Line(
        "explained",
        "per recording, with --key, --position or --consumer",
        closed({"explained": RECORDING, "entries": COUNT, "anomalies": COUNT}),
    ),
    Line(
        "worst",
        "per load with a finding or a wait, the worst first, without these options",
        closed(
            {
                "recording": RECORDING,
                **_DISPATCHER,
                "incarnation": COUNT,
                "kind": maybe(KIND),
                "subject": {
                    **by_name(TEXT, ["key", "position", "consumer"]),
                    "minProperties": 1,
                    "maxProperties": 1,
                },
                "text": TEXT,
            }
        ),
    ),
)

#: Fields of ``pulsar-admin topics stats`` that a log determines (docs/stats.md).
_OF_SUBSCRIPTION: Final = (
    *("type", "unackedMessages", "blockedSubscriptionOnUnackedMsgs", "activeConsumerName", "activeConsumer"),
    *("msgInReplay", "allowOutOfOrderDelivery", "keySharedMode", "consumersAfterMarkDeletePosition"),
    *("lastSentPosition", "individuallySentPositions", "drainingHashesCount", "drainingHashesClearedTotal"),
    *("drainingHashesUnackedMessages", "msgRateOut", "msgBacklog", "consumers"),
)
_OF_CONSUMER: Final = (
    *("consumer", "consumerName", "address", "availablePermits", "unackedMessages"),
    *("blockedConsumerOnUnackedMsgs", "avgMessagesPerEntry", "readPositionWhenJoining"),
    *("lastSentPositionWhenJoining", "keyHashRanges", "keyHashRangeArrays", "keyHashes"),
    *("drainingHashesCount", "drainingHashesClearedTotal", "drainingHashesUnackedMessages", "drainingHashes"),
    *("msgRateOut", "msgOutCounter", "keysHeld", "keysHeldFirst"),
)


def _statistics(required: Sequence[str]) -> Schema:
    """Return the schema of values with the nesting of ``topics stats``."""
    consumers = {**by_name(ANYTHING, _OF_CONSUMER), "required": ["consumer"]}
    return {
        "type": "object",
        "properties": {
            name: listed(consumers) if name == "consumers" else ANYTHING for name in _OF_SUBSCRIPTION
        },
        "required": [*required, "consumers"],
        "additionalProperties": False,
    }


_OF_A_CONSUMER: Final = {"consumer": INTEGER, "consumerName": TEXT}
_STATS: Final = (
    Line(
        "dispatcher",
        "per dispatcher",
        closed(
            {
                **_WHERE,
                "broker_version": maybe(TEXT),
                "rules": maybe(TEXT),
                "level": choice("T", "E"),
                "seq": INTEGER,
                "t_us": TIME_US,
                "from_t_us": TIME_US,
                "lines": COUNT,
                "window_ms": NUMBER,
                "decisions": by_name(COUNT),
                "assumes": TEXTS,
                "notes": TEXTS,
                "stats": _statistics(["type"]),
                "at_least": _statistics([]),
                "not_known": _statistics([]),
                "draining_pending_acks": maybe(
                    listed(
                        closed(
                            {
                                "hash": HASH,
                                "consumer": INTEGER,
                                "consumerName": TEXT,
                                "waiting": maybe(INTEGER),
                                "waitingName": maybe(TEXT),
                                "unackMsgs": COUNT,
                                "blockedAttempts?": COUNT,
                                "messageIds": POSITIONS,
                                "since_t_us": maybe(TIME_US),
                                "for_ms": maybe(NUMBER),
                            }
                        )
                    )
                ),
                "tracker": closed(
                    {
                        "look_ahead_limit": maybe(INTEGER),
                        "msgInReplay": maybe(COUNT),
                        "msgInReplayPeak": maybe(COUNT),
                        "msgInReplayPeak_t_us": maybe(TIME_US),
                        "drainingHashes?": maybe(COUNT),
                        "drainingHashesPeak?": maybe(COUNT),
                        "drainingHashesPeak_t_us?": maybe(TIME_US),
                    }
                ),
                "reads": closed(
                    {
                        "entries_delivered": COUNT,
                        "entries_read": maybe(COUNT),
                        "entries_read_at_least": COUNT,
                        "read_amplification": maybe(NUMBER),
                        "read_amplification_at_least": maybe(NUMBER),
                    }
                ),
                "key_changes": maybe(
                    closed(
                        {
                            "keys": COUNT,
                            "changes": COUNT,
                            "by_membership_change": listed(
                                closed(
                                    {
                                        "seq": maybe(INTEGER),
                                        "t_us": maybe(TIME_US),
                                        "what": maybe(choice("joined", "left")),
                                        "consumer": maybe(INTEGER),
                                        "consumerName": maybe(TEXT),
                                        "keys": COUNT,
                                    }
                                )
                            ),
                            "worst_keys": listed(
                                closed(
                                    {
                                        "key": TEXT,
                                        "key_b64": FLAG,
                                        "changes": COUNT,
                                        "consumers": listed(INTEGER),
                                    }
                                )
                            ),
                        }
                    )
                ),
                "dispatch_rate": closed(
                    {
                        "from_t_us": TIME_US,
                        "step_ms": NUMBER,
                        "consumers": listed(closed({**_OF_A_CONSUMER, "messages": listed(COUNT)})),
                    }
                ),
            }
        ),
    ),
)

_ISSUES: Final = listed(
    closed(
        {
            "id": TEXT,
            "title": TEXT,
            "links": TEXTS,
            "kind": TEXT,
            "releases": TEXT,
            "mended_in": TEXTS,
            "cure": TEXT,
        }
    )
)
_CERTAINTY: Final = choice("certain", "possible")
_ANSWER: Final = {
    "kind": {"const": "statistics"},
    "topic": maybe(TEXT),
    "subscription": TEXT,
    "rule": TEXT,
    "certainty": _CERTAINTY,
    "waiting": maybe(COUNT),
    "holders": listed(
        closed(
            {
                "name": TEXT,
                "address": maybe(TEXT),
                "availablePermits": maybe(INTEGER),
                "unackedMessages": maybe(INTEGER),
            }
        )
    ),
    "held_for": TEXTS,
    "explanation": TEXT,
    "evidence": listed(closed({"field": TEXT, "value": ANYTHING, "moments": COUNT})),
    "decided_by": maybe(means(TEXT, "what would settle it")),
    "since": maybe(means(TEXT, "ISO 8601, UTC")),
    "since_t_us": maybe(TIME_US),
    "since_what": maybe(TEXT),
    "known_issues": _ISSUES,
    "next": means(TEXTS, "commands to run next"),
}
_DIAGNOSE: Final = (
    Line(
        "statistics",
        "per rule that holds messages of a subscription, from the broker's statistics",
        closed({**_ANSWER, "log_agrees": maybe(FLAG)}),
    ),
    Line(
        "log",
        "per blocker of a recorded dispatcher",
        closed(
            {
                "kind": {"const": "log"},
                "recording": RECORDING,
                "cluster": TEXT,
                **_DISPATCHER,
                "rule": TEXT,
                "certainty": _CERTAINTY,
                "holder": maybe(TEXT),
                "held_for": TEXTS,
                "messages": COUNT,
                "hashes": COUNT,
                "message_seconds": NUMBER,
                "since": means(TEXT, "ISO 8601, UTC"),
                "since_t_us": TIME_US,
                "at_t_us": TIME_US,
                "level": choice("T", "E"),
                "positions": POSITIONS,
                "holder_positions": POSITIONS,
                "explanation": TEXT,
                "known_issues": _ISSUES,
            }
        ),
    ),
    Line(
        "end",
        "once, at the end",
        closed({"kind": {"const": "end"}, "subscriptions": COUNT, "logs": COUNT, "problems": TEXTS}),
    ),
)
_CHANGE: Final = {
    "t_us": TIME_US,
    "topic": maybe(TEXT),
    "subscription": TEXT,
    "held_since_t_us": maybe(TIME_US),
    "backlog": maybe(COUNT),
}
_WATCH_STATS: Final = (
    Line(
        "held",
        "when something begins to hold messages of a subscription, or another rule does",
        closed({**_ANSWER, **_CHANGE, "held": {"const": True}}),
    ),
    Line("free", "when nothing holds them any more", closed({**_CHANGE, "held": {"const": False}})),
)

_SPREAD: Final = closed({"p50": maybe(NUMBER), "p99": maybe(NUMBER), "max": maybe(NUMBER)})
_MEASURES: Final = closed(
    {
        **dict.fromkeys(
            (
                *("topics", "messages", "out_of_order", "split_key", "handed_over", "order_uncertain"),
                *("keys_out_of_order", "double_outstanding", "duplicates", "redelivered"),
            ),
            COUNT,
        ),
        "wait_ms": _SPREAD,
        "key_wait_ms_max": _SPREAD,
        "blocked_message_s": maybe(NUMBER),
        "needless_message_s": maybe(NUMBER),
        "balance": closed(
            {"max_share_ratio": maybe(NUMBER), "messages": by_name(COUNT), "keys": by_name(COUNT)}
        ),
        "active_topics": by_name(COUNT),
        "key_changes": means(
            closed(
                {
                    "keys": COUNT,
                    "of": means(COUNT, "keys that were sent"),
                    "changes": COUNT,
                    "by_membership_change": listed(
                        closed(
                            {
                                "t_us": TIME_US,
                                "what": choice("joined", "left"),
                                "consumer_name": TEXT,
                                "keys": COUNT,
                            }
                        )
                    ),
                }
            ),
            "keys that went to another consumer name than before; of several topics without the joins and leaves",
        ),
        "throughput_per_s": maybe(NUMBER),
        "never_sent": COUNT,
        "stuck_keys": means(
            COUNT, "keys of which the log proves that entries wait although nothing legal holds them back"
        ),
    }
)
_WHAT_IF: Final = (
    Line(
        "prediction",
        "per load and rules, then per subscription with several topics and rules",
        closed(
            {
                "recording": maybe(RECORDING),
                "group?": means(
                    closed({"cluster": TEXT, "subscription": TEXT}), "of a prediction for all topics together"
                ),
                "cluster": TEXT,
                "topic": maybe(TEXT),
                "subscription": TEXT,
                "incarnation": maybe(COUNT),
                "rules": closed(
                    {
                        "name": TEXT,
                        "broker_version": maybe(TEXT),
                        "settings": by_name({"type": ["string", "integer", "boolean"]}),
                        "clients": means(by_name(TEXT), "settings of the consumers"),
                        "priority_levels": by_name(INTEGER),
                        "profile": maybe(TEXT),
                        "proposal": means(
                            maybe(
                                closed(
                                    {
                                        "title": TEXT,
                                        "revision": TEXT,
                                        "status": TEXT,
                                        "figures": by_name(NUMBER),
                                    }
                                )
                            ),
                            "rules of a proposal; null = of a release alone",
                        ),
                    }
                ),
                "recorded": maybe(_MEASURES),
                "simulated": maybe(_MEASURES),
                "over_seeds": by_name(listed(NUMBER)),
                "same_first_consumer": maybe(NUMBER),
                "assumptions": TEXTS,
                "confidence": maybe(
                    closed(
                        {
                            "violates": means(FLAG, "more order violations than are tolerated are predicted"),
                            "probability": means(NUMBER, "of the prediction, as measured on recordings"),
                            "seeds": COUNT,
                            "violating_seeds": COUNT,
                            "control": maybe(
                                closed(
                                    {
                                        "same_first_consumer": maybe(NUMBER),
                                        "recorded_order_violations": COUNT,
                                        "simulated_order_violations": COUNT,
                                        "right": NUMBER,
                                    }
                                )
                            ),
                            "reason": means(TEXT, "what the probability rests on"),
                            "not_measured": means(
                                maybe(TEXT),
                                "why no pair of recordings is like this prediction; null = some are",
                            ),
                        }
                    )
                ),
                "sentence": means(maybe(TEXT), "the prediction in one sentence"),
                "warnings": TEXTS,
                "notes": means(TEXTS, "what rules did that no release has"),
                "problem": maybe(TEXT),
                "verdict": VERDICT,
            }
        ),
    ),
)
_TWO: Final[Schema] = means(listed(maybe(NUMBER)), "recorded and predicted")
_ADVISED: Final[Schema] = closed(
    {
        "kind": choice(*CHANGES),
        "change": means(TEXT, "what to do"),
        "broker_version": means(maybe(TEXT), "null = the recorded one"),
        "settings": by_name({"type": ["string", "integer", "boolean"]}),
        "sentence": means(TEXT, "its prediction"),
        "probability": maybe(NUMBER),
        "not_measured": means(
            maybe(TEXT), "why no pair of recordings is like this prediction; null = some are"
        ),
        "order_violations": means(maybe(COUNT), "predicted"),
        "side_effects": maybe(
            closed(
                {
                    **dict.fromkeys(
                        (
                            *("wait_ms_p50", "wait_ms_p99", "blocked_message_s"),
                            *("max_share_ratio", "redelivered", "never_sent"),
                        ),
                        _TWO,
                    ),
                    "moved": means(maybe(NUMBER), "share of the entries that go first to another consumer"),
                }
            )
        ),
        "against": means(maybe(TEXT), "why it is not advised; null = it is"),
    }
)
_ADVISE: Final = (
    Line(
        "advice",
        "per dispatcher",
        closed(
            {
                "recording": RECORDING,
                "cluster": TEXT,
                **_DISPATCHER,
                "incarnation": COUNT,
                "order_violations": means(maybe(COUNT), "recorded"),
                "needed": means(FLAG, "there are more than the policy tolerates"),
                "prevents": means(
                    listed(_ADVISED), "changes that would have prevented them, the smallest first"
                ),
                "rejected": means(listed(_ADVISED), "changes that were tried before and would not"),
                "problem": maybe(TEXT),
            }
        ),
    ),
)
_PAIR: Final[Schema] = means(
    maybe(listed(maybe(NUMBER))), "under A and under B; null = nothing was predicted"
)
_UPGRADE_RISK: Final = (
    Line(
        "risk",
        "per dispatcher, the worst first",
        closed(
            {
                "recording": RECORDING,
                "cluster": TEXT,
                **_DISPATCHER,
                "subscription_type": TEXT,
                "incarnation": maybe(COUNT),
                "outcome": choice(*OUTCOMES),
                "violates": means(
                    maybe(NUMBER), "the probability of more order violations under B than are tolerated"
                ),
                "probability": means(maybe(NUMBER), "of the prediction of B"),
                "probability_before": means(maybe(NUMBER), "of that of A; null = A is what was recorded"),
                **dict.fromkeys(PAIRS, _PAIR),
                "moved": means(
                    maybe(NUMBER), "share of the entries that go first to another consumer than was recorded"
                ),
                "sentence": means(maybe(TEXT), "the prediction of B"),
                "not_judged": means(TEXTS, "what could not be judged, and why"),
            }
        ),
    ),
    Line(
        "outcomes",
        "at the end",
        closed(
            {
                "asked": closed(
                    {
                        "release": means(TEXT, "B"),
                        "settings": by_name({"type": ["string", "integer", "boolean"]}),
                        "against": means(maybe(TEXT), "A; null = what was recorded"),
                        "called": means(TEXTS, "A and B for people"),
                    }
                ),
                "outcomes": means(
                    by_name(COUNT, list(OUTCOMES)),
                    "subscriptions by outcome, as the worst partition or incarnation decides",
                ),
            }
        ),
    ),
)
_NODES: Final = {
    "nodes": means(COUNT, "that divide the hash space"),
    "points": maybe(means(COUNT, "of each node; null = equal parts")),
}
_RANGES: Final = (
    Line(
        "node",
        "per node",
        closed(
            {
                "node": means(COUNT, "its index"),
                **_NODES,
                "ranges": means(listed(listed(COUNT)), "start and end, both included"),
                "share": means(NUMBER, "of the hash space"),
            }
        ),
    ),
    Line(
        "move",
        "last, with --to-nodes",
        closed({**_NODES, "to_nodes": COUNT, "moved_share": means(NUMBER, "of the hash space")}),
    ),
)
_REPORT: Final = (
    Line(
        "report",
        "per report that was written",
        closed({"recording": RECORDING, **_DISPATCHER, "report": TEXT, "verdict": VERDICT, "bytes": COUNT}),
    ),
)
_GOLDEN: Final = (
    Line(
        "file",
        "per file of vectors",
        closed(
            {
                "file": TEXT,
                "kind": TEXT,
                "versions": TEXTS,
                "steps": COUNT,
                "exact": COUNT,
                "mismatched": COUNT,
                "first_mismatch": maybe(
                    {
                        **closed(
                            {
                                "version": TEXT,
                                "line": COUNT,
                                "seed": INTEGER,
                                "step": COUNT,
                                "field": TEXT,
                                "expected": ANYTHING,
                                "computed": ANYTHING,
                            }
                        ),
                        # Fields that tell the histories of a seed apart.
                        "additionalProperties": ANYTHING,
                    }
                ),
                "problems": TEXTS,
            }
        ),
    ),
)
_MINIMIZE: Final = (
    Line(
        "log",
        "once",
        closed(
            {
                "recording": RECORDING,
                **_DISPATCHER,
                "kind": KIND,
                "key": maybe(TEXT),
                "explanation": TEXT,
                "positions": POSITIONS,
                "lines_before": COUNT,
                "entries_before": COUNT,
                "lines": COUNT,
                "entries": COUNT,
                "minimal": FLAG,
                "logs_tried": COUNT,
                "seconds": NUMBER,
                "names_kept": maybe(TEXT),
                "files": means(by_name(TEXT), "paths of the files that were written"),
            }
        ),
    ),
)
_HUNT: Final = (
    Line(
        "find",
        "per promise and cause that schedules have shown",
        closed(
            {
                "promise": choice(*HUNTED.values()),
                "cause": means(TEXT, "a gate of the dispatcher, or a name of docs/hunt.md"),
                "found": means(COUNT, "how many schedules have shown it"),
                "keys": means(TEXTS, "those that the entries of the schedule may have"),
                "steps": means(TEXTS, "the shortest schedule, in words"),
                "entry": POSITION,
                "outcome": TEXT,
                "files": means(by_name(TEXT), "paths of the files that were written"),
            }
        ),
    ),
    Line(
        "totals",
        "last",
        closed(
            {
                "rules": TEXT,
                "schedules": COUNT,
                "steps": COUNT,
                "sets_of_keys": COUNT,
                "seconds": NUMBER,
                "states": means(maybe(COUNT), "states that schedules led to, about; with --states"),
                "found": COUNT,
                "every": maybe(
                    means(
                        closed({"steps": COUNT, "schedules": COUNT, "states": COUNT}),
                        "with --depth: every schedule of up to so many steps was played, and the states they lead to",
                    )
                ),
                "passed_over": means(by_name(COUNT), "how many schedules ended by each cause to pass over"),
                "not_shrunk": means(
                    by_name(COUNT), "further finds by promise and cause, which were not shrunk"
                ),
            }
        ),
    ),
    Line(
        "exhibit",
        "per file of --play; then nothing else is",
        closed(
            {
                "exhibit": TEXT,
                "title": TEXT,
                "verdict": means(TEXT, "kept, or the promise and the cause, joined by a dot"),
                "expected": maybe(TEXT),
            }
        ),
    ),
)
_VALUE: Final[Schema] = {"type": ["string", "integer", "boolean"]}
_IMPORT_BROKER_CONF: Final = (
    Line(
        "setting",
        "per setting",
        closed(
            {
                "setting": TEXT,
                "status": choice(*STATUSES),
                "value": {"type": [*_VALUE["type"], "null"]},
                "default": {"type": [*_VALUE["type"], "null"]},
                "lines": listed(COUNT),
                "nearest": maybe(TEXT),
                "reason": maybe(TEXT),
            }
        ),
    ),
    Line(
        "summary",
        "once, at the end",
        closed(
            {
                "summary": {"const": "import-broker-conf"},
                "broker_version": TEXT,
                "counts": closed(dict.fromkeys(STATUSES, COUNT)),
                "config": means(by_name(_VALUE), "the settings that were, or would be, written"),
                "warnings": TEXTS,
                "out": maybe(TEXT),
            }
        ),
    ),
)
_RECORD_MESSAGES: Final = (
    Line(
        "topic",
        "per topic or partition",
        closed(
            {
                "topic": TEXT,
                "entries": COUNT,
                "messages": COUNT,
                "payload_bytes": COUNT,
                "last": maybe(POSITION),
                "segments": TEXTS,
                "ended": TEXT,
                "more_keys": COUNT,
                "chunked": COUNT,
                "base64_failed": COUNT,
            }
        ),
    ),
)
_PIPELINE: Final = (
    Line(
        "verdict",
        "per dispatcher and promise of each interval",
        closed(
            {
                "interval_start": means(TEXT, "ISO 8601, UTC"),
                "cluster": TEXT,
                **_DISPATCHER,
                "incarnation": COUNT,
                "promise": means(choice("all", *PROMISES, "custom"), "all = over all promises"),
                "verdict": VERDICT,
                "findings": COUNT,
                "tolerated": COUNT,
                "reason": TEXT,
                "top_findings": TEXTS,
            }
        ),
    ),
)

#: The sorts of lines of each command that has ``--json``.
LINES: Final[Mapping[str, tuple[Line, ...]]] = {
    "advise": _ADVISE,
    "audit": _AUDIT,
    "diagnose": _DIAGNOSE,
    "explain": _EXPLAIN,
    "golden": _GOLDEN,
    "import-broker-conf": _IMPORT_BROKER_CONF,
    "hunt": _HUNT,
    "minimize": _MINIMIZE,
    "pipeline": _PIPELINE,
    "ranges": _RANGES,
    "record-messages": _RECORD_MESSAGES,
    "report": _REPORT,
    "stats": _STATS,
    "upgrade-risk": _UPGRADE_RISK,
    "verify": _VERIFY,
    "watch-stats": _WATCH_STATS,
    "what-if": _WHAT_IF,
}


def document(command: str) -> dict[str, Any]:
    """Return the JSON Schema of a line that a command prints with ``--json``."""
    lines = LINES[command]
    return {
        "$schema": _DIALECT,
        "title": f"A line of dispatch-audit {command} --json",
        "oneOf": [
            {"title": line.name, "description": f"Printed {line.printed}.", **line.schema} for line in lines
        ],
    }


def text_of(command: str) -> str:
    """Return the content of a command's schema file."""
    return json.dumps(document(command), indent=1, ensure_ascii=False) + "\n"


def in_step(page: str) -> str:
    """Return the page ``docs/command-line.md`` with the table of the commands and their lines."""
    rows = ["| command | line | printed |", "|---|---|---|"]
    for command, lines in LINES.items():
        for number, line in enumerate(lines):
            name = "" if number else f"[`{command}`](schemas/{command}.json)"
            rows.append(f"| {name} | {line.name} | {line.printed} |")
    table = "\n".join(rows)
    return _TABLE.sub(lambda _: f"<!-- commands -->\n{table}\n<!-- end -->\n", page)


def main(folder: Path) -> None:
    """Write the schemas and the table into a folder of documents."""
    (folder / "schemas").mkdir(exist_ok=True)
    for command in LINES:
        (folder / "schemas" / f"{command}.json").write_text(text_of(command), encoding="utf-8")
    page = folder / PAGE
    page.write_text(in_step(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
