"""Effects of acknowledgements that the lines of a trace leave open, and when mark-delete passes them."""

from __future__ import annotations

from dispatch_core.verify.trace.open_effects import OpenEffects


def test_mark_delete_passes_acknowledged_entries_in_the_order_of_their_positions() -> None:
    effects = OpenEffects()
    for seq, entry in enumerate((7, 3, 5), 1):
        effects.ack(seq, seq, holder=1, messages=1, entry=entry)
    effects.passed(3, seq=10)
    effects.passed(6, seq=11)
    assert effects.first_entries_missing(since=9) == {7: 1, 3: 2, 5: 3}
    assert effects.first_entries_missing(since=10) == {7: 1, 5: 3}
    assert effects.first_entries_missing(since=11) == {7: 1}


def test_entries_are_passed_by_their_new_ordinals_after_others_were_dropped() -> None:
    effects = OpenEffects()
    for seq, entry in enumerate((7, 3, 5), 1):
        effects.ack(seq, seq, holder=1, messages=1, entry=entry)
    effects.drop(4)
    effects.passed(1, seq=10)
    assert effects.first_entries_missing(since=9) == {3: 1, 1: 3}
    assert effects.first_entries_missing(since=10) == {3: 1}
