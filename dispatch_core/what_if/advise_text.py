"""Write advice as text for people or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dispatch_core.audit.sentences.lists import counted
from dispatch_core.audit.sentences.names import printable, shown
from dispatch_core.report.advice import AdviceShown, not_computed
from dispatch_core.what_if.advise import Advice, Tried, side_effects
from dispatch_core.what_if.tell import sentence

#: Changes that do not help, which people are shown.
_MOST_REJECTED: Final = 6
_ACCURACY: Final = (
    "n of 100: of so many such predictions come true, as measured on client scripts that were recorded under several rules: "
    "docs/what-if.md#how-certain-it-is"
)


def for_people(advice: Advice) -> str:
    """The advice for one dispatcher, in lines."""
    title = f"{shown(advice.recording)}  {shown(advice.topic)}  {shown(advice.subscription)}"
    title += f"  incarnation {advice.incarnation}" if advice.incarnation else ""
    if advice.problem is not None or advice.recorded is None:
        return f"{title}\n  no advice: {printable(advice.problem or 'nothing was measured')}\n"
    found = counted(advice.recorded.order_violations, "order violation", "order violations")
    if not advice.needed:
        return f"{title}: {found}, no advice needed\n"
    keys = counted(advice.recorded.keys_out_of_order, "key", "keys")
    lines = [f"{title}: {found} of {keys}"]
    for at, tried in enumerate(advice.prevents):
        lines += [
            f"  {'or ' if at else ''}{tried.change.said}",
            f"    {printable(sentence(tried.row))}",
            f"    {effects(tried)}",
        ]
    if not advice.prevents:
        lines.append("  no change of release, setting or clients that was tried would have prevented them")
    if advice.rejected:
        lines.append("  not:")
        lines += [
            f"    {tried.change.said}: {printable(tried.against or '')}"
            for tried in advice.rejected[:_MOST_REJECTED]
        ]
        left = len(advice.rejected) - _MOST_REJECTED
        lines += [f"    and {left} more, which --json lists"] if left > 0 else []
    lines += [f"  {_ACCURACY}"] if advice.prevents else []
    return "\n".join(lines) + "\n"


def effects(tried: Tried) -> str:
    """Write the side effects of the change in one line."""
    found = side_effects(tried.row)
    parts = []
    for name, when in (("wait_ms_p50", "of half of the messages"), ("wait_ms_p99", "of 99 of 100")):
        before, after = found[name]
        if before is not None and after is not None:
            parts.append(f"waits {when} {before:.0f} → {after:.0f} ms")
    before, after = found["max_share_ratio"]
    if before is not None and after is not None:
        parts.append(f"the most loaded consumer gets {before:.2f} → {after:.2f} times its share")
    if found["moved"] is not None:
        parts.append(f"{found['moved']:.0%} of the entries go first to another consumer")
    return "; ".join(parts) or "no side effect could be measured"


def for_page(found: Sequence[Advice], command: str) -> AdviceShown:
    """Write the advice on the logs of one dispatcher for its page or an alert. ``command``: computes it again.

    Of several logs (incarnations) the first that has an advice is shown.
    """
    needed = [advice for advice in found if advice.needed]
    best = next((advice for advice in needed if advice.prevents), needed[0] if needed else None)
    if best is None:
        problem = next((advice.problem for advice in found if advice.problem is not None), None)
        return not_computed(
            printable(problem or "the log has no more order violations than are tolerated"), command
        )
    where = f" (incarnation {best.incarnation})" if best.incarnation else ""
    if best.prevents:
        tried = best.prevents[0]
        return AdviceShown(
            printable(f"Advice: {tried.change.said}{where}. {sentence(tried.row)}"), effects(tried), command
        )
    assert best.recorded is not None
    violations = counted(best.recorded.order_violations, "order violation", "order violations")
    return AdviceShown(
        f"No change of release, setting or clients that was tried would have prevented the {violations}{where}.",
        "",
        command,
    )


def as_json(advice: Advice) -> dict[str, Any]:
    """The advice as a line of ``advise --json``."""
    return {
        "recording": advice.recording,
        "cluster": advice.cluster,
        "topic": advice.topic,
        "subscription": advice.subscription,
        "incarnation": advice.incarnation,
        "order_violations": None if advice.recorded is None else advice.recorded.order_violations,
        "needed": advice.needed,
        "prevents": [_tried(tried) for tried in advice.prevents],
        "rejected": [_tried(tried) for tried in advice.rejected],
        "problem": None if advice.problem is None else printable(advice.problem),
    }


def _tried(tried: Tried) -> dict[str, Any]:
    row = tried.row
    return {
        "kind": tried.change.kind,
        "change": tried.change.said,
        "broker_version": tried.change.rules.broker_version,
        "settings": dict(tried.change.rules.settings),
        "sentence": printable(sentence(row)),
        "probability": None if row.confidence is None else row.confidence.probability,
        "not_measured": None if row.confidence is None else row.confidence.not_measured,
        "order_violations": None if row.simulated is None else row.simulated.order_violations,
        "side_effects": None if row.simulated is None or row.recorded is None else side_effects(row),
        "against": None if tried.against is None else printable(tried.against),
    }
