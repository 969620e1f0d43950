"""Wrong rules for the choice of consumers: selectors, hashing, the active consumer of Failover and Exclusive."""

from __future__ import annotations

from typing import Final

from tests.wrong_rules.switch import WrongRule, edit, release

WRONG_CHOICES: Final[dict[str, WrongRule]] = {
    # --- selectors -----------------------------------------------------------------------------------------------
    "highest_of_equal_ranges_is_split": edit(
        "of several widest ranges the highest is split",
        "selectors.auto_split:AutoSplitSelector._widest",
        "key=lambda pair: pair[1] - pair[0]",
        "key=lambda pair: (pair[1] - pair[0], pair[1])",
    ),
    "joining_gets_the_upper_half": edit(
        "the joining consumer gets the upper half of the range that is split",
        "selectors.auto_split:AutoSplitSelector.add",
        "self._owners[boundary] = consumer\n    self._note(consumer, boundary)",
        "self._owners[boundary] = consumer\n"
        "    self._note(consumer, boundary)\n"
        "    if boundary != self._size:\n"
        "        owner = self._owners[upper]\n"
        "        self._owners[upper], self._owners[boundary] = consumer, owner\n"
        "        self._note(owner, boundary)\n"
        "        self._note(consumer, upper)",
    ),
    "freed_range_goes_down": edit(
        "the range of a consumer that leaves goes to the next lower one",
        "selectors.auto_split:AutoSplitSelector.remove",
        "boundary = self._of.pop(key)\n",
        "boundary = self._of.pop(key)\n"
        "    at = self._boundaries.index(boundary)\n"
        "    if 0 < at < len(self._boundaries) - 1:\n"
        "        lower = self._boundaries[at - 1]\n"
        "        self._owners[boundary] = self._owners[lower]\n"
        "        self._note(self._owners[lower], boundary)\n"
        "        boundary = lower\n",
    ),
    "name_index_never_reused": edit(
        "a returning consumer gets another index, and so other points",
        "selectors.names:NameIndexes.release",
        "self._used[name].discard(index)",
        "pass",
    ),
    "joining_wins_a_point": edit(
        "a joining consumer takes a point that is taken",
        "selectors.consistent_hashing:ConsistentHashingSelector._meet",
        "queue.append(joining)",
        "queue.insert(0, joining)",
    ),
    "equal_names_do_not_share": edit(
        "of consumers with one name only the first is chosen",
        "selectors.consistent_hashing_shared:SharedPointsSelector._share",
        "sticky_hash % consumers",
        "0",
    ),
    "ring_without_separator": release("ring points have, or lack, the NUL of #22053", "ring_point_separator"),
    "sticky_ranges": release(
        "sticky ranges are matched by their end points where they are exact, and the other way round (#24730)",
        "sticky_ranges_exact",
    ),
    # --- hashing -------------------------------------------------------------------------------------------------
    "fallback_key": release(
        "entries without a key are hashed as one key where each has its own, and the other way round (#23219)",
        "fallback_key",
    ),
    "hash_zero": edit(
        "the hash 0 stays 0",
        "hashing:HashSpace.sticky_array",
        "(values == NOT_SET) & self.reserve_zero",
        "values < 0",
    ),
    "ordering_key_ignored": edit(
        "the ordering key does not go before the key",
        "hashing:entry_h31",
        "(ordering, True, np.ones(messages.num_rows, dtype=bool)),",
        "",
    ),
    "binary_key_is_text": edit(
        "a base64 key is hashed as the text that it stands for",
        "hashing:entry_h31",
        "h31(_decode(word) if decode else utf8(word))",
        "h31(utf8(word))",
    ),
    # --- Failover and Exclusive ----------------------------------------------------------------------------------
    "failover_by_join_order": edit(
        "consumers stay in the order in which they joined",
        "selectors.failover:sort_key",
        "utf16(candidate.name)",
        "b''",
    ),
    "failover_without_priority": edit(
        "priority levels do not sort consumers",
        "selectors.failover:sort_key",
        "candidate.priority_level, utf16",
        "0, utf16",
    ),
    "failover_all_levels": edit(
        "consumers of a worse level take part",
        "selectors.failover:takes_part",
        "candidate.priority_level == first.priority_level",
        "True",
    ),
    "failover_ring_for_modulo": edit(
        "partitions use the ring where they use the modulo, and the other way round",
        "selectors.failover:pick",
        "if ring else",
        "if ring != (partition_index >= 0) else",
    ),
    "failover_first_keeps_the_point": edit(
        "of two consumers on one point the lower index keeps it",
        "selectors.failover:wins_point",
        "joining > holder",
        "False",
    ),
    "failover_delay_holds_reads": edit(
        "the failover delay holds the read after a written batch",
        "single_active_rules:delay_holds_reads",
        "return False",
        "return True",
    ),
    "failover_delay_does_not_hold_flow": edit(
        "a flow command makes a read while the failover delay runs",
        "single_active_rules:delay_holds_flow",
        "return True",
        "return False",
    ),
    "failover_without_delay": edit(
        "an active-consumer change rewinds at once",
        "single_active_rules:step_of_change",
        "if not delayed:",
        "if True:",
    ),
    "failover_without_rewind": edit(
        "the new active consumer goes on where the old one stopped",
        "single_active:SingleActiveDispatcher._rewind",
        "cursor.rewind(self.state)",
        "pass",
    ),
    "failover_old_read_is_sent": edit(
        "a read for the old active consumer is sent to the new one",
        "single_active_rules:is_read_for_another",
        "reader != active",
        "False",
    ),
    "failover_everybody_is_served": edit(
        "flow and redelivery requests of consumers that are not active count",
        "single_active_rules:only_the_active_is_served",
        "consumer == active",
        "True",
    ),
    "failover_epochs": release(
        "a read that a redelivery request has replaced is sent, or is not (#26174)", "failover_read_epoch"
    ),
    "failover_notifies_no_consumer": edit(
        "an active-consumer change notifies no consumer",
        "single_active:SingleActiveDispatcher.notices_of_change",
        "if active is None or self._exclusive:",
        "if True:",
    ),
    "failover_acks_of_others_ignored": edit(
        "an ack does not move the cursor",
        "single_active:SingleActiveDispatcher.acknowledge",
        "cursor.acknowledge(self.state, entry)",
        "pass",
    ),
}
