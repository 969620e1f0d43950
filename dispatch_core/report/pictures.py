"""Draw the pictures of a report with plotly: a bounded number of marks, as JSON for plotly's script.

plotly interprets some HTML in texts, and ``%{…}`` in templates of hover texts. Names come from logs and may be hostile: they
are escaped and cut (``label``); an axis has them as texts of numbered places, so that a name ``"5"`` is not read as a
number; hover texts have them only as ``customdata``, never within a template.

Colours have a contrast of at least 3:1 to the ground of a light page and of a dark one. The page's script adds what depends
on the reader: colours of texts and grounds, the size, the marks of findings.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.names import printable
from dispatch_core.report.active import Activity
from dispatch_core.report.aggregate import HeldBack, ReportData, Share
from dispatch_core.report.blocked_hashes import BlockedHashes
from dispatch_core.report.flow import Lines
from dispatch_core.report.hash_shares import HashShares, Move
from dispatch_core.report.ring import Ring
from dispatch_core.report.statistics import DispatchOverTime
from dispatch_core.times import clock

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Colours of consumers; further consumers use them again.
COLOURS: Final = (
    "#4e79a7", "#d4700f", "#4a9142", "#d9534f", "#2f8f8a", "#a67c00", "#9c639a", "#8a6b55", "#7c858f", "#3f6fd1",
    "#b5502a", "#6b8e23", "#c0399f", "#1f8fb5", "#8f6fd6", "#a8506b", "#5f7f5f", "#c43c5e", "#6f7fae", "#0f9d76",
)  # fmt: skip
_REASON_COLOURS: Final = {
    "draining_hash": "#3f6fd1",
    "recently_joined": "#d4700f",
    "last_sent_position": "#a67c00",
    "no_permits": "#d9534f",
    "unacked_limit_consumer": "#9c639a",
    "unacked_limit_subscription": "#8f6fd6",
    "look_ahead_limit": "#4a9142",
    "replay_order": "#2f8f8a",
    "uncovered_range": "#8a6b55",
    "failover_delay": "#c0399f",
    "no_consumer": "#6f7fae",
    "no_read": "#a8506b",
}
#: Colours that have one meaning in all pictures.
GREEN, RED, BLUE, GREY, BROWN = "#4a9142", "#d9534f", "#4e79a7", "#7c858f", "#b5502a"
#: Holds of the rules that keep order by key are told apart by their ends, too.
_HOLD_SYMBOLS: Final = {"draining_hash": "circle", "recently_joined": "diamond", "last_sent_position": "x"}
#: Room below the hash space for marks of findings, as a part of it.
_LANE: Final = 0.05
_MAX_LABEL: Final = 40
_MAX_LEGEND: Final = 30
_MAX_RULED: Final = 60  # joins and leaves that get a line through the picture


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture.

    Attributes:
        figure: plotly's JSON, ``None`` without data or if the page's script draws ``ranges``.
        caption: explains it or the missing data.
        ranges: JSON of ranges that are drawn for the time and hashes at which the reader looks.
        timed: its horizontal axis is the time.
    """

    name: str
    title: str
    caption: str
    figure: str | None
    ranges: str | None = None
    timed: bool = True


def pictures(data: ReportData) -> list[Picture]:
    """All pictures of a report, in the order of the page: those along the time come first."""
    colours = _colours(data)
    return [
        *_ownership(data, colours),
        _flow(data.flow),
        *([] if data.statistics is None else [_dispatch(data.statistics.over_time, colours)]),
        _held_back(data.held_back),
        _shares(data.shares, data.subscription_type),
    ]


def _colours(data: ReportData) -> dict[str, str]:
    """Give each consumer one colour in all pictures: owners first, by name."""
    names = [*data.ring.owners]
    if data.activity is not None:
        names += data.activity.consumers
    if data.statistics is not None:
        names += data.statistics.over_time.consumers
    return {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(dict.fromkeys(names))}


def _ownership(data: ReportData, colours: Mapping[str, str]) -> list[Picture]:
    if data.activity is not None:
        return [_active(data.activity, colours)]
    if data.hash_shares is not None:
        return [
            _hash_shares(data.hash_shares, data.blocked_hashes, data.ring, colours),
            _ranges(data.ring, data.blocked_hashes, colours),
        ]
    if data.subscription_type == "Shared":
        caption = "Consumers of a Shared subscription own no hashes: each entry goes to whose turn it is."
        return [Picture("ring", "Owners of the hash space over time", caption, None)]
    return [_ring(data.ring, data.blocked_hashes, colours)]


def label(name: str) -> str:
    """A name from a log as a text for plotly: one line of bounded length, without markup."""
    return html.escape(printable(name, _MAX_LABEL))


def _ring(ring: Ring, blocked: BlockedHashes, colours: Mapping[str, str]) -> Picture:
    import plotly.graph_objects as go

    title = "Owners of the hash space over time"
    if not ring.owner.size:
        return Picture("ring", title, "The owners in this interval are not known.", None)
    figure = go.Figure()
    top = int(ring.high.max())
    legend = len(ring.owners) <= _MAX_LEGEND
    for at, name in enumerate(ring.owners):
        of_owner = np.flatnonzero(ring.owner == at)
        if not of_owner.size:
            continue
        low, high = ring.low[of_owner], ring.high[of_owner]
        since, until = ring.from_us[of_owner], ring.until_us[of_owner]
        figure.add_bar(
            orientation="h",
            base=since / 1000,
            x=(until - since) / 1000,
            y=(low + high) / 2,
            width=high - low,
            name=label(name),
            showlegend=legend,
            marker={"color": colours[name], "line": {"width": 0}},
            customdata=[
                [label(name), f"{a} to {b - 1}", f"{clock(s)} to {clock(u)}"]
                for a, b, s, u in zip(
                    low.tolist(), high.tolist(), since.tolist(), until.tolist(), strict=True
                )
            ],
            hovertemplate="%{customdata[0]}<br>hashes %{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        )
    _hold_marks(figure, blocked)
    _change_marks(figure, ring, top * 1.035, top * 1.075, ruled=top * 1.02)
    figure.update_layout(barmode="overlay", bargap=0, height=460)
    figure.update_xaxes(type="date", title="time (UTC)")
    figure.update_yaxes(title="sticky key hash", range=[-_LANE * top, top * 1.1], tickformat=",d")
    caption = f"{_changes_of(ring)}. {_holds_of(blocked)}"
    if not ring.exact:
        caption += (
            " Each cell shows the owner of its largest part: there are too many ranges to draw all of them."
        )
    return Picture("ring", title, caption, _json(figure))


def _changes_of(ring: Ring) -> str:
    joins = sum(change.joined for change in ring.changes)
    text = f"{joins:,} joins (▲) and {len(ring.changes) - joins:,} leaves (▼) are marked"
    if ring.total_changes > len(ring.changes):
        text += f", the first of {ring.total_changes:,}"
    return text


def _holds_of(blocked: BlockedHashes) -> str:
    if not blocked.total:
        return "No rule held back single hashes long enough to be measured."
    text = f"Lines of one hash show when a rule held it back: {blocked.total:,} times"
    if len(blocked.holds) < blocked.total:
        text += f", of which the {len(blocked.holds):,} with the most message-seconds are drawn"
    return f"{text}."


def _change_marks(figure: go.Figure, ring: Ring, joined_y: float, left_y: float, *, ruled: float) -> None:
    """Mark joins and leaves, with a line up to ``ruled`` if they are few."""
    for joined, word, symbol, colour, y in (
        (True, "joined", "triangle-up", GREEN, joined_y),
        (False, "left", "triangle-down", RED, left_y),
    ):
        marked = [change for change in ring.changes if change.joined is joined]
        if marked:
            figure.add_scatter(
                x=[change.t_us / 1000 for change in marked],
                y=[y] * len(marked),
                mode="markers",
                name=word,
                marker={"symbol": symbol, "color": colour, "size": 9},
                customdata=[
                    [label(change.name), f"{clock(change.t_us)} (seq {change.seq})"] for change in marked
                ],
                hovertemplate=f"%{{customdata[0]}} {word}<br>%{{customdata[1]}}<extra></extra>",
            )
    if len(ring.changes) <= _MAX_RULED:
        for change in ring.changes:
            line = {"color": GREEN if change.joined else RED, "width": 1, "dash": "dot"}
            figure.add_shape(
                type="line", x0=change.t_us / 1000, x1=change.t_us / 1000, y0=0, y1=ruled, line=line
            )


def _hold_marks(figure: go.Figure, blocked: BlockedHashes) -> None:
    """Draw each hold as a line along the time, at its hash. The page's script gives it the colour of texts."""
    for reason in blocked.reasons:
        holds = [hold for hold in blocked.holds if hold.reason == reason]
        if not holds:
            continue
        x: list[float | None] = []
        y: list[int | None] = []
        texts: list[list[str] | None] = []
        for hold in holds:
            text = [
                f"{label(reason)}: hash {hold.hash}",
                f"{label(hold.waiting)} waits behind {label(hold.holder)}",
                f"{clock(hold.from_us)} to {clock(hold.until_us)}",
            ]
            x += [hold.from_us / 1000, hold.until_us / 1000, None]
            y += [hold.hash, hold.hash, None]
            texts += [text, text, None]
        figure.add_scatter(
            x=x,
            y=y,
            mode="lines+markers",
            name=label(reason),
            meta="hold",
            line={"width": 2},
            marker={"size": 4, "symbol": _HOLD_SYMBOLS.get(reason, "square")},
            customdata=texts,
            hovertemplate="%{customdata[0]}<br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        )


def _hash_shares(
    shares: HashShares, blocked: BlockedHashes, ring: Ring, colours: Mapping[str, str]
) -> Picture:
    """Three rows: share of each consumer, part of the hash space that moved at each change, blocked hashes."""
    from plotly.subplots import make_subplots

    figure: go.Figure = make_subplots(
        rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.58, 0.2, 0.22]
    )
    at = shares.t_us / 1000
    for number, name in enumerate(shares.owners):
        figure.add_scatter(
            x=at,
            y=np.round(100 * shares.share[number], 3),
            mode="lines",
            line={"shape": "hv", "width": 0.5, "color": colours.get(name, GREY)},
            fillcolor=colours.get(name, GREY),
            stackgroup="owners",
            name=label(name),
            customdata=[[label(name)]] * at.size,
            hovertemplate="%{customdata[0]}: %{y:.1f} % of the hash space<br>%{x}<extra></extra>",
            row=1,
            col=1,
        )
    _change_marks(figure, ring, 104, 110, ruled=100)
    _moved_stems(figure, shares.moves)
    for number, reason in enumerate(blocked.reasons):
        figure.add_scatter(
            x=blocked.t_us / 1000,
            y=blocked.counts[number],
            mode="lines",
            line={"shape": "hv", "width": 1.8, "color": _REASON_COLOURS.get(reason, GREY)},
            name=label(reason),
            hovertemplate=f"%{{y:,}} hashes: {label(reason)}<br>%{{x}}<extra></extra>",
            row=3,
            col=1,
        )
    figure.update_layout(height=600)
    figure.update_xaxes(type="date")
    figure.update_xaxes(title="time (UTC)", row=3, col=1)
    figure.update_yaxes(title="% of hashes", range=[0, 114], tickvals=[0, 25, 50, 75, 100], row=1, col=1)
    figure.update_yaxes(title="% moved", rangemode="tozero", row=2, col=1)
    figure.update_yaxes(title="blocked", rangemode="tozero", row=3, col=1)
    caption = f"Above: share of the hash space of each consumer; {_changes_of(ring)}. "
    if shares.moves:
        most = max(shares.moves, key=lambda move: move.share)
        caption += (
            f"Middle: part of the hash space that went from one consumer to another, {shares.total_moves:,} times, at most "
            f"{most.share:.0%} at {clock(most.t_us)}. "
        )
    else:
        caption += "Middle: no hash went from one consumer to another. "
    caption += (
        "Below: number of hashes that were held back at a time, by rule."
        if blocked.total
        else "Below: no rule held back single hashes long enough to be measured."
    )
    return Picture("shares", "Share of the hash space per consumer, and what moved", caption, _json(figure))


def _moved_stems(figure: go.Figure, moves: Sequence[Move]) -> None:
    if not moves:
        return
    texts = []
    for move in moves:
        pairs = [f"{label(a)} to {label(b)}: {share:.1%}" for a, b, share in move.pairs]
        texts.append([f"{move.share:.1%} of the hash space moved at {clock(move.t_us)}", "<br>".join(pairs)])
    _stems(
        figure,
        [move.t_us / 1000 for move in moves],
        [round(100 * move.share, 3) for move in moves],
        name="moved",
        customdata=texts,
        hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    )


def _stems(figure: go.Figure, x: Sequence[float], y: Sequence[float], **more: Any) -> None:
    """Draw amounts at moments, in the second row: unlike bars, stems have no width along the time."""
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"color": "#8f6fd6", "size": 6},
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [0] * len(x),
            "arrayminus": y,
            "width": 0,
            "thickness": 2,
        },
        row=2,
        col=1,
        **more,
    )


def _ranges(ring: Ring, blocked: BlockedHashes, colours: Mapping[str, str]) -> Picture:
    """Every range, as columns of numbers: the page's script draws those at which the reader looks."""
    import plotly.graph_objects as go

    times, at = np.unique(np.concatenate([ring.from_us, ring.until_us]), return_inverse=True)
    figure = go.Figure()
    _hold_marks(figure, blocked)
    figure.update_layout(height=520)
    figure.update_xaxes(type="date", title="time (UTC)")
    figure.update_yaxes(title="sticky key hash", tickformat=",d", automargin=True)
    ranges = {
        "labels": [label(name) for name in ring.owners],
        "colours": [colours[name] for name in ring.owners],
        "times": (times / 1000).tolist(),
        "owner": ring.owner.tolist(),
        "from": at[: ring.owner.size].tolist(),
        "until": at[ring.owner.size :].tolist(),
        "low": ring.low.tolist(),
        "high": ring.high.tolist(),
        "figure": json.loads(_json(figure)),
    }
    caption = f"Zoom in, along the time or the hashes, until single ranges can be read. {_holds_of(blocked)}"
    if not ring.exact:
        caption += " There are too many ranges: each shows the owner of most of it."
    return Picture(
        "ring", "Owner of every range of the hash space", caption, None, json.dumps(ranges, sort_keys=True)
    )


def _active(data: Activity, colours: Mapping[str, str]) -> Picture:
    import plotly.graph_objects as go

    title = "Who was active"
    if not data.consumers:
        return Picture("active", title, "No consumer was connected in this interval.", None)
    place = {name: at for at, name in enumerate(data.consumers)}
    figure = go.Figure()
    _spans(figure, data.connected, place, "connected", 0.22, dict.fromkeys(place, GREY))
    _spans(figure, data.active, place, "active", 0.66, {name: colours.get(name, BLUE) for name in place})
    figure.update_layout(barmode="overlay", bargap=0, height=_height(len(place), 34))
    figure.update_xaxes(type="date", title="time (UTC)")
    _places(figure, [label(name) for name in data.consumers], lane=0.5)
    active_us = sum(data.active_us)
    if not active_us:
        caption = "No consumer was active. Grey: connected."
    else:
        caption = (
            f"Colour: the active consumer; grey: connected. {data.consumers[0]} was active longest: "
            f"{duration(data.active_us[0])}, {data.active_us[0] / active_us:.0%} of the time in which one was. The active "
            f"consumer changed {data.changes:,} times."
        )
        if data.nobody_us:
            caption += f" In between, nobody was active for {duration(data.nobody_us)}."
    if data.left_out:
        caption += f" {data.left_out:,} further consumers have no row."
    return Picture("active", title, caption, _json(figure))


def _spans(
    figure: go.Figure,
    spans: Iterable[tuple[str, int, int]],
    place: Mapping[str, int],
    word: str,
    width: float,
    colours: Mapping[str, str],
) -> None:
    """Draw spans of time, in the row of each consumer."""
    rows = list(spans)
    if not rows:
        return
    figure.add_bar(
        orientation="h",
        base=[since / 1000 for _name, since, _until in rows],
        x=[(until - since) / 1000 for _name, since, until in rows],
        y=[place[name] for name, _since, _until in rows],
        width=width,
        name=word,
        showlegend=False,
        marker={"color": [colours[name] for name, _since, _until in rows], "line": {"width": 0}},
        customdata=[
            [f"{label(name)} {word}", f"{clock(since)} to {clock(until)} ({duration(until - since)})"]
            for name, since, until in rows
        ],
        hovertemplate="%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    )


def _held_back(work: Sequence[HeldBack]) -> Picture:
    import plotly.graph_objects as go

    title = "Messages held back by rules, by waiting consumer"
    if not work:
        caption = "No rule held messages back long enough to be measured."
        return Picture("blocked", title, caption, None, timed=False)
    names = list(dict.fromkeys(item.consumer for item in work))
    place = {name: at for at, name in enumerate(names)}
    texts = [label(name) for name in names]
    figure = go.Figure()
    for reason in dict.fromkeys(item.reason for item in work):
        of_reason = [item for item in work if item.reason == reason]
        figure.add_bar(
            orientation="h",
            y=[place[item.consumer] for item in of_reason],
            x=[round(item.message_s, 3) for item in of_reason],
            name=label(reason),
            marker={"color": _REASON_COLOURS.get(reason, GREY)},
            customdata=[
                [
                    label(item.consumer),
                    f"{item.message_s:,.1f} message-seconds, {item.needless_s:,.1f} of them needlessly",
                    f"in {item.holds:,} holds ({item.uncertain:,} uncertain), {item.clock_s:,.3f} s on the clock",
                ]
                for item in of_reason
            ],
            hovertemplate=f"%{{customdata[0]}}: {label(reason)}<br>%{{customdata[1]}}<br>%{{customdata[2]}}"
            "<extra></extra>",
        )
    figure.update_layout(barmode="stack", height=_height(len(texts)))
    figure.update_xaxes(title="message-seconds held back")
    _places(figure, texts)
    needless = sum(item.needless_s for item in work)
    caption = (
        f"{sum(item.message_s for item in work):,.1f} message-seconds altogether; {needless:,.1f} of them although "
        "no other consumer had an entry of the same hash pending."
    )
    return Picture("blocked", title, caption, _json(figure), timed=False)


def _flow(lines: Lines) -> Picture:
    from plotly.subplots import make_subplots

    title = "Deliveries and backlog over time"
    if not lines.t_us.size:
        return Picture("flow", title, "Nothing was stored and nothing was sent in this interval.", None)
    figure: go.Figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.09)
    at = lines.t_us / 1000
    for values, name, colour in ((lines.first, "sent first", BLUE), (lines.again, "sent again", RED)):
        if name == "sent first" or values.any():
            figure.add_bar(
                x=at,
                y=values,
                offset=0,
                width=lines.step_us / 1000,
                name=name,
                marker={"color": colour, "line": {"width": 0}},
                hovertemplate=f"%{{y:,}} {name}<br>%{{x}}<extra></extra>",
                row=1,
                col=1,
            )
    figure.add_scatter(
        x=at + lines.step_us / 1000,
        y=lines.waiting,
        mode="lines+markers" if lines.t_us.size < 3 else "lines",
        line={"shape": "hv", "color": BROWN, "width": 1.5},
        fill="tozeroy",
        name="stored, not sent yet",
        hovertemplate="%{y:,} wait<br>%{x}<extra></extra>",
        row=2,
        col=1,
    )
    figure.update_layout(barmode="stack", bargap=0, height=420)
    figure.update_xaxes(type="date")
    figure.update_xaxes(title="time (UTC)", row=2, col=1)
    figure.update_yaxes(title="entries per step", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="entries waiting", rangemode="tozero", row=2, col=1)
    caption = (
        f"{lines.total:,} deliveries, {int(lines.again.sum()):,} of them repeated, in steps of {duration(lines.step_us)}. "
        f"Backlog: entries stored and not yet sent, at most {int(lines.waiting.max()):,}."
    )
    return Picture("flow", title, caption, _json(figure))


def _shares(shares: Sequence[Share], subscription_type: str) -> Picture:
    import plotly.graph_objects as go

    owned = any(share.hash_share is not None for share in shares)
    title = "Messages of each consumer" + (", and its share of the hash space" if owned else "")
    if not shares:
        return Picture("balance", title, "Nothing was sent in this interval.", None, timed=False)
    figure = go.Figure()
    shown = [
        [
            label(share.consumer),
            f"{share.messages:,} messages of {share.keys:,} keys, {share.size_bytes:,} bytes",
            f"{share.message_share:.1%} of the messages"
            + ("" if share.hash_share is None else f", {share.hash_share:.1%} of the hash space"),
        ]
        for share in shares
    ]
    texts = "%{customdata[0]}<br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>"
    series = [("share of messages", [share.message_share for share in shares], BLUE)]
    if owned:
        series.append(("share of the hash space", [share.hash_share or 0.0 for share in shares], GREY))
    for name, values, colour in series:
        figure.add_bar(
            orientation="h",
            y=list(range(len(shares))),
            x=[100 * value for value in values],
            name=name,
            marker={"color": colour},
            customdata=shown,
            hovertemplate=texts,
        )
    figure.update_layout(barmode="group", height=_height(len(shares), 30))
    figure.update_xaxes(title="percent", rangemode="tozero")
    _places(figure, [label(share.consumer) for share in shares])
    caption = (
        "Every delivery counts, redeliveries too. The share of the hash space is weighted by messages: each message adds to "
        "a consumer's share the part of the hash space that it owned when the message was delivered."
        if owned
        else f"Every delivery counts, redeliveries too. Consumers of a {subscription_type or 'Shared'} subscription own no "
        "hashes."
    )
    return Picture("balance", title, caption, _json(figure), timed=False)


def _dispatch(data: DispatchOverTime, colours: Mapping[str, str]) -> Picture:
    from plotly.subplots import make_subplots

    title = "Dispatch rate per consumer, and what the dispatcher held back"
    if not data.consumers:
        return Picture("dispatch", title, "Nothing was sent by then.", None)
    sizes = len(data.size_us) > 0
    figure: go.Figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.6, 0.4]
    )
    steps = data.per_second.shape[1]
    at = (data.from_us + data.step_us * np.arange(steps)) / 1000
    for number, name in enumerate(data.consumers):
        figure.add_scatter(
            x=at,
            y=np.round(data.per_second[number], 3),
            mode="lines+markers" if steps < 3 else "lines",
            line={"shape": "hv", "color": colours.get(name, GREY), "width": 1.8},
            name=label(name),
            customdata=[[label(name)]] * steps,
            hovertemplate="%{customdata[0]}: %{y:,.1f} messages per second<br>%{x}<extra></extra>",
            row=1,
            col=1,
        )
    if sizes:
        _sizes(figure, data)
    elif data.moved_us:
        _stems(
            figure,
            [t_us / 1000 for t_us in data.moved_us],
            list(data.moved_keys),
            name="keys moved",
            hovertemplate="%{y:,} keys went to another consumer<br>%{x}<extra></extra>",
        )
    figure.update_layout(height=580)
    figure.update_xaxes(type="date")
    figure.update_xaxes(title="time (UTC)", row=2, col=1)
    # Short titles: on a phone the legend leaves each row little height.
    figure.update_yaxes(title="messages/s", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="held back" if sizes else "keys moved", rangemode="tozero", row=2, col=1)
    return Picture("dispatch", title, _caption_of_dispatch(data, sizes=sizes), _json(figure))


def _sizes(figure: go.Figure, data: DispatchOverTime) -> None:
    """Draw the replay set, the draining hashes and the look-ahead limit in the second row."""
    at = np.append(data.size_us, data.until_us) / 1000
    lines = [(data.in_replay, "replay set", BROWN)]
    if data.has_draining:
        lines.append((data.draining, "draining hashes", "#3f6fd1"))
    for values, name, colour in lines:
        figure.add_scatter(
            x=at,
            y=np.append(values, values[-1]),
            mode="lines",
            line={
                "shape": "hv",
                "color": colour,
                "width": 1.8,
                "dash": "solid" if name == "replay set" else "dot",
            },
            name=name,
            hovertemplate=f"%{{y:,}} in {name}<br>%{{x}}<extra></extra>",
            row=2,
            col=1,
        )
    limit = data.look_ahead_limit
    # A limit far above what was held would press the lines to the ground.
    if limit is not None and limit <= 3 * max(int(data.in_replay.max()), 1):
        figure.add_scatter(
            x=[data.from_us / 1000, data.until_us / 1000],
            y=[limit, limit],
            mode="lines",
            line={"color": RED, "width": 1.2, "dash": "dash"},
            name="look-ahead limit",
            hovertemplate="look-ahead limit %{y:,}<extra></extra>",
            row=2,
            col=1,
        )


def _caption_of_dispatch(data: DispatchOverTime, *, sizes: bool) -> str:
    rates = f"Above: messages per second in steps of {duration(data.step_us)}. Below: "
    if not sizes:
        return (
            f"{rates}keys that went to another consumer after each join or leave. How much the dispatcher held back is not "
            "in this log: it has no trace."
        )
    sizes_text = f"positions in the replay set, at most {int(data.in_replay.max()):,}"
    if data.has_draining:
        sizes_text += f", and draining hashes, at most {int(data.draining.max()):,}"
    limit = data.look_ahead_limit
    return f"{rates}{sizes_text}." + (
        "" if limit is None else f" Normal reads stop at {limit:,} positions (look-ahead limit)."
    )


def _places(figure: go.Figure, texts: Sequence[str], lane: float = 0.0) -> None:
    """Names along the vertical axis, the first on top; ``lane``: room below the last for marks of findings, in rows."""
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(texts))),
        ticktext=list(texts),
        range=[len(texts) - 0.5 + lane, -0.5],
        automargin=True,
    )


def _height(bars: int, each: int = 24) -> int:
    return 130 + each * max(bars, 2)


def _json(figure: go.Figure) -> str:
    """The figure as JSON, the same text for the same figure."""
    figure.update_layout(
        template="none",
        margin={"l": 20, "r": 16, "t": 30, "b": 20},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        font={"family": "system-ui, sans-serif", "size": 12},
        hovermode="closest",
    )
    figure.update_xaxes(zeroline=False, automargin=True)
    figure.update_yaxes(zeroline=False, automargin=True)
    shown: dict[str, Any] = json.loads(figure.to_json(engine="json"))
    return json.dumps({"data": shown["data"], "layout": shown["layout"]}, sort_keys=True)
