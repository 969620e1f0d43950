"""Read the rows behind the counts: bounded frames of an interval's result tables, for expectations on single rows.

Two sorts of frames. ``rows_over_limits`` has the rows that the policy does not tolerate, worst first; nothing is read of a
table of which every dispatcher keeps its limits. ``whole_table`` has all rows of a table, for the user's own expectations.
Every frame has the columns ``SHOWN``, by which Data Docs name a row; ``row`` is its index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf, isnan
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
import pyarrow.dataset as ds

from dispatch_core import tables
from dispatch_core.audit.catalogue import DOCUMENTED, SEVERITIES
from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises.counts import WAITS
from dispatch_core.audit.promises.duplicate_delivery import CAUSES
from dispatch_core.audit.promises.every import PROMISES, counts
from dispatch_core.audit.promises.promise import Check
from dispatch_core.recording import schema
from dispatch_expectations.frames import KEY, NOBODY, Dispatcher
from dispatch_expectations.policy import Policy
from dispatch_expectations.table_rows import interval_dataset, read_batches
from spark_jobs.warehouse.contracts import PARTITION
from spark_jobs.warehouse.delta_tables import Place

if TYPE_CHECKING:
    import pandas as pd

#: Columns that name a row on the pages of Data Docs. ``what``: what the row says, in words.
SHOWN: Final = ("row", "cluster", "topic", "subscription", "key", "position", "what")
#: Rows of a frame of ``rows_over_limits``. The tables keep all.
MAX_ROWS: Final = 10_000
#: Rows of a frame of ``whole_table``. An expectation on a table with more is judged by these, and can only FAIL.
MAX_OWN_ROWS: Final = 100_000

_SCHEMAS: Final = {
    "anomalies": tables.ANOMALIES,
    "waits": tables.WAITS,
    "balance": tables.BALANCE,
    "divergences": tables.DIVERGENCES,
    "quarantine": schema.QUARANTINE,
}
#: Columns that no expectation can be about.
_LEFT_OUT: Final = (PARTITION, "raw")
#: Tables that expectations on single rows are about, with their columns.
COLUMNS: Final = {
    name: tuple(column for column in contract.names if column not in _LEFT_OUT)
    for name, contract in _SCHEMAS.items()
}
#: Columns that a frame has besides the table's own.
ADDED: Final = (*SHOWN, "policy", "share_ratio")
#: Checks that count rows of ``divergences`` and of ``balance``.
_DIVERGENT: Final = ("divergent", "doubted")
_SHARE: Final = "max_share_ratio"
#: Columns of ``balance`` that ``rolling_balance`` has too, which is judged in its place of an interval shorter than a day.
_BALANCE: Final = ("cluster", "topic", "subscription", "incarnation", "consumer_name", "messages", "keys")
_SHARES: Final = ("message_share", "hash_share")


@dataclass(frozen=True)
class ResultTable:
    """A bounded frame of one table; ``total``: rows that the table has, of those that were asked for."""

    name: str
    frame: pd.DataFrame
    total: int

    @property
    def is_cut(self) -> bool:
        """True if the table has more rows than the frame."""
        return self.total > len(self.frame)

    def dispatcher(self, row: int) -> Dispatcher:
        """Return the dispatcher of a row."""
        cluster, topic, subscription = self.frame.loc[row, ["cluster", "topic", "subscription"]]
        return (cluster, topic, subscription) if topic else NOBODY


def rows_over_limits(
    warehouse: Place, interval_start: datetime, frame: pd.DataFrame, policy: Policy
) -> dict[str, ResultTable]:
    """Read the rows that count against a promise whose limit is exceeded; ``frame``: see ``frames.dispatcher_frame``.

    Returns of each table a frame in which ``over_limit`` says what the row is an example of: the kind of an anomaly, the
    class of a decision, the field of a quarantined row, the number that is too great in ``waits`` and ``balance``.
    """
    broken = checks_over_limit(frame, policy)
    columns = {check.column for checks in broken.values() for check in checks}
    kinds = sorted({kind for checks in broken.values() for check in checks for kind in check.kinds})
    promised = pc.field("reason").is_null() | ~pc.field("reason").isin(DOCUMENTED)
    everything = ds.scalar(True)
    wanted: dict[str, list[ds.Expression]] = {
        "anomalies": [
            (pc.field("severity") == severity) & pc.field("kind").isin(kinds) & promised
            for severity in SEVERITIES
            if kinds
        ],
        "divergences": [pc.field("status") == "divergent"] if columns & {*_DIVERGENT} else [],
        "quarantine": [everything] if "quarantined" in columns else [],
        "waits": [everything] if columns & {*WAITS} else [],
        "balance": [everything] if _SHARE in columns else [],
    }
    found = {}
    for name, filters in wanted.items():
        rows: list[dict[str, Any]] = []
        total = 0
        for row in _rows(warehouse, interval_start, name, filters):
            over = _over_limit(name, row, broken)
            if over is None:
                continue
            total += 1
            if total <= MAX_ROWS:
                rows.append(_shown(name, row, policy) | {"over_limit": over})
        found[name] = _table(name, rows, total)
    return found


def whole_table(warehouse: Place, interval_start: datetime, name: str, policy: Policy) -> ResultTable:
    """Read up to ``MAX_OWN_ROWS`` rows of a table, in the order of its files."""
    dataset = interval_dataset(warehouse, name, interval_start)
    rows: list[dict[str, Any]] = []
    for batch in read_batches(dataset, COLUMNS[name]):
        taken = batch.slice(0, MAX_OWN_ROWS - len(rows)).to_pylist()
        rows += [_shown(name, row, policy) | {"over_limit": None} for row in taken]
        if len(rows) == MAX_OWN_ROWS:
            break
    return _table(name, rows, 0 if dataset is None else dataset.count_rows())


def checks_over_limit(frame: pd.DataFrame, policy: Policy) -> dict[Dispatcher, list[Check]]:
    """List the checks whose limit a dispatcher exceeds; dispatchers that keep all are left out."""
    found: defaultdict[Dispatcher, list[Check]] = defaultdict(list)
    for rule in policy.rules:
        of_rule = frame[frame["policy"] == rule.name]
        for promise in PROMISES if len(of_rule) else ():
            for check in promise.checks:
                over = of_rule[_is_over(check, of_rule, rule)]
                for dispatcher in over[KEY].itertuples(index=False, name=None):
                    found[dispatcher].append(check)
    return dict(found)


def _is_over(check: Check, frame: pd.DataFrame, rule: Rule) -> pd.Series:
    """Tell of each row whether its value exceeds the limit, and the check applies to it; a missing value does not."""
    import pandas as pd

    limit = rule.tolerated(check.limit)
    over = pd.to_numeric(frame[check.column]) > (inf if limit is None else limit)
    for column, least in check.gates:
        over &= pd.to_numeric(frame[column]) >= (rule.tolerated(least) or 0.0)
    return over


def _rows(
    warehouse: Place, interval_start: datetime, name: str, filters: Sequence[ds.Expression]
) -> Iterator[dict[str, Any]]:
    if not filters:
        return
    columns: Sequence[str] = COLUMNS[name]
    dataset = interval_dataset(warehouse, name, interval_start)
    if name == "balance":
        columns = (*_BALANCE, *_SHARES)
        dataset = interval_dataset(warehouse, "rolling_balance", interval_start) or dataset
    for rows in filters:
        for batch in read_batches(dataset, columns, rows):
            yield from batch.to_pylist()


def _over_limit(name: str, row: dict[str, Any], broken: dict[Dispatcher, list[Check]]) -> str | None:
    """Return what a row is an example of; None if a limit tolerates it."""
    if name == "quarantine":
        return row["field"] or "row"
    checks = broken.get((row["cluster"], row["topic"], row["subscription"]), [])
    if name == "anomalies":
        return row["kind"] if any(_counted_by(check, row) for check in checks) else None
    columns = {"divergences": _DIVERGENT, "waits": WAITS, "balance": (_SHARE,)}[name]
    over = [check.column for check in checks if check.column in columns]
    if not over:
        return None
    return row["decision_class"] if name == "divergences" else ", ".join(over)


def _counted_by(check: Check, row: dict[str, Any]) -> bool:
    if row["kind"] == "redelivered" and check.column.startswith("redelivered_"):
        cause = row["cause"] if row["cause"] in CAUSES else "unexplained"
        return check.column == f"redelivered_{cause}"
    return counts(check, row["kind"], bool(row["uncertain"]))


def _shown(name: str, row: dict[str, Any], policy: Policy) -> dict[str, Any]:
    """Add the columns that name a row; lists become text, because Great Expectations compares single values."""
    row = {
        column: ", ".join(map(str, value)) if isinstance(value, list) else value
        for column, value in row.items()
    }
    if name == "quarantine":
        line = "" if row["source_line"] is None else f":{row['source_line']}"
        named = {"cluster": "", "topic": "", "subscription": "", "position": f"{row['source_file']}{line}"}
        return row | named | {"key": "", "what": row["reason"], "policy": "", "share_ratio": None}
    row |= {"key": row.get("key") or "", "position": "", "what": "", "share_ratio": None}
    row["policy"] = policy.rule_for(row["topic"], row["subscription"]).name
    if name == "anomalies":
        row |= {"position": row["positions"], "what": row["explanation"]}
    elif name == "divergences":
        said = f"the rule says {row['expected']}, the broker did {row['recorded']}"
        row |= {"position": f"seq {row['seq']}", "what": said}
    elif name == "balance":
        row["what"] = row["consumer_name"]
        share = row["hash_share"]
        row["share_ratio"] = None if not share or isnan(share) else row["message_share"] / share
    return row


def _table(name: str, rows: list[dict[str, Any]], total: int) -> ResultTable:
    import pandas as pd

    columns = list(dict.fromkeys([*COLUMNS[name], *ADDED, "over_limit"]))
    frame = pd.DataFrame.from_records(rows, columns=columns)
    frame["row"] = range(len(frame))
    return ResultTable(name, frame, total)
