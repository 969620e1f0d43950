"""Statistics of known states: of real brokers (``make states``), and those quoted in public issues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dispatch_core.diagnose.answers import Answer
from dispatch_core.diagnose.documents import documents_in, moments_of
from dispatch_core.diagnose.facts import subscriptions_of
from dispatch_core.diagnose.history import History, histories_of
from dispatch_core.diagnose.rules import answers_of

STATISTICS = Path(__file__).parents[2] / "data" / "states"
RELEASES = ("4.0.0", "4.2.4")


def states(folder: str) -> dict[str, dict[str, Any]]:
    """Return what each state of a folder is, by its name."""
    return json.loads((STATISTICS / folder / "states.json").read_text(encoding="utf-8"))


def lines_of(folder: str, name: str) -> list[dict[str, Any]]:
    """Return the moments of a state."""
    text = (STATISTICS / folder / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def histories(text: str, name: str = "stats.json", **known: Any) -> tuple[list[History], list[str]]:
    """Read a text; returns the subscriptions and the problems."""
    found = documents_in(name, text)
    problems = list(found.problems)
    moments = moments_of(found.documents)
    version = known.pop("broker_version", next((m.broker_version for m in moments if m.broker_version), None))
    read = [subscriptions_of(moment, problems) for moment in moments]
    return histories_of(read, version, known), problems


def answers(text: str, name: str = "stats.json", **known: Any) -> list[Answer]:
    """Return the answers of the only subscription in a text."""
    (history,), _ = histories(text, name, **known)
    return answers_of(history)


def as_text(lines: list[dict[str, Any]]) -> str:
    """Write moments as ``diagnose --save`` does."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def is_right(answer: Answer, truth: dict[str, Any]) -> bool:
    """True if an answer names the rule, and the holder if there is one."""
    holder = answer.holders[0].name if answer.holders else None
    return answer.rule == truth["reason"] and truth["holder"] in (None, holder)
