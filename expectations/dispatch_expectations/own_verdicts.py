"""Make the verdicts on the promise ``custom`` from what became of the user's own expectations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dispatch_core.audit.promises.promise import FAIL, PASS, UNKNOWN, plain
from dispatch_core.audit.sentences.names import LONGEST_ON_PAGES, printable
from dispatch_core.audit.verdict import NOT_CERTAIN
from dispatch_expectations.frames import NOBODY, Dispatcher
from dispatch_expectations.own_expectations import WARN
from dispatch_expectations.result_tables import ResultTable
from dispatch_expectations.run_suites import OwnOutcome
from dispatch_expectations.suites import CUSTOM_PROMISE


@dataclass
class CustomResult:
    """Findings of the user's expectations about a dispatcher: sentences by what they decide, and numbers of rows."""

    sentences: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    rows: Counter[str] = field(default_factory=Counter)

    def add(self, decides: str, sentence: str, rows: int = 1) -> None:
        """Add a sentence that decides FAIL, UNKNOWN or, with ``warn``, nothing."""
        self.sentences[decides].append(sentence)
        self.rows[decides] += rows

    @property
    def verdict(self) -> str:
        """The worst that a sentence decides."""
        return next((decides for decides in (FAIL, UNKNOWN) if self.sentences[decides]), PASS)

    @property
    def reason(self) -> str:
        """The sentences that decide, then the others."""
        reason = "; ".join(self.sentences[self.verdict]) or CUSTOM_PROMISE.kept
        if self.verdict == PASS and self.sentences[WARN]:
            reason = "every own expectation that decides was met"
        if self.verdict == FAIL and self.sentences[UNKNOWN]:
            reason += NOT_CERTAIN + "; ".join(self.sentences[UNKNOWN])
        if self.sentences[WARN]:
            reason += "; warned: " + "; ".join(self.sentences[WARN])
        return reason


#: Of a dispatcher that no expectation found anything of.
KEPT: Final = CustomResult()


def custom_results(
    outcomes: Sequence[OwnOutcome], tables: Mapping[str, ResultTable]
) -> dict[Dispatcher, CustomResult]:
    """Gather what was found by dispatcher; what is about a table as a whole belongs to ``NOBODY``.

    Of a table that was cut, unexpected rows are proven, and nothing else is.
    """
    found: defaultdict[Dispatcher, CustomResult] = defaultdict(CustomResult)
    for outcome in outcomes:
        entry, table = outcome.entry, tables[outcome.entry.table]
        name = f"{printable(entry.words, LONGEST_ON_PAGES)} ({entry.name})"
        in_doubt = WARN if entry.on_failure == WARN else UNKNOWN
        if outcome.error:
            error = printable(outcome.error, LONGEST_ON_PAGES)
            found[NOBODY].add(in_doubt, f"{name}: could not be evaluated: {error}")
            continue
        for dispatcher, rows in Counter(table.dispatcher(row) for row in outcome.rows).items():
            found[dispatcher].add(
                entry.on_failure, f"{name}: not met by {plain(rows)} rows of {entry.table}", rows
            )
        if table.is_cut and (outcome.met or not outcome.rows):
            judged = f"{plain(len(table.frame))} of {plain(table.total)} rows of {entry.table}"
            found[NOBODY].add(in_doubt, f"{name}: judged by {judged} only")
        elif not outcome.met and not outcome.rows:
            found[NOBODY].add(entry.on_failure, f"{name}: not met by the table {entry.table}")
    return dict(found)
