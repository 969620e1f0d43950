"""Draw the pictures of a report with plotly: a bounded number of marks, as JSON for plotly's script.

plotly interprets some HTML in texts, and ``%{…}`` in templates of hover texts. Names come from logs and may be hostile: they
are escaped and cut (``label``); an axis has them as texts of numbered places, so that a name ``"5"`` is not read as a
number; hover texts have them only as ``customdata``, never within a template.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.names import printable
from dispatch_core.report.aggregate import HeldBack, ReportData, Share
from dispatch_core.report.flow import Lines
from dispatch_core.report.ring import Ring
from dispatch_core.report.statistics import DispatchOverTime
from dispatch_core.times import clock

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Colours of consumers; further consumers use them again.
COLOURS: Final = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac",
    "#1f4e79", "#b55d0a", "#2d6a25", "#8f1d20", "#2f7f78", "#8c7310", "#6b3f63", "#c2185b", "#5d4037", "#607d8b",
)  # fmt: skip
_REASON_COLOURS: Final = {
    "draining_hash": "#4e79a7",
    "recently_joined": "#f28e2b",
    "last_sent_position": "#edc948",
    "no_permits": "#e15759",
    "unacked_limit_consumer": "#b07aa1",
    "unacked_limit_subscription": "#6b3f63",
    "look_ahead_limit": "#59a14f",
    "replay_order": "#76b7b2",
    "uncovered_range": "#9c755f",
    "failover_delay": "#ff9da7",
    "no_consumer": "#607d8b",
    "no_read": "#8f1d20",
}
_MAX_LABEL: Final = 40
_MAX_LEGEND: Final = 30
_MAX_RULED: Final = 60  # joins and leaves that get a line through the picture
_GREEN, _RED, _BLUE, _GREY = "#2d7d32", "#c62828", "#4e79a7", "#b8bec6"


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture. ``figure``: plotly's JSON, ``None`` without data; ``caption``: explains it or the missing data."""

    name: str
    title: str
    caption: str
    figure: str | None


def pictures(data: ReportData) -> list[Picture]:
    """All pictures of a report, in the order of the page."""
    return [
        _ring(data.ring),
        _held_back(data.held_back),
        _flow(data.flow),
        _shares(data.shares),
        *([] if data.statistics is None else [_dispatch(data.statistics.over_time)]),
    ]


def label(name: str) -> str:
    """A name from a log as a text for plotly: one line of bounded length, without markup."""
    return html.escape(printable(name, _MAX_LABEL))


def _ring(ring: Ring) -> Picture:
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
            marker={"color": COLOURS[at % len(COLOURS)], "line": {"width": 0}},
            customdata=[
                [label(name), f"{a} to {b - 1}", f"{clock(s)} to {clock(u)}"]
                for a, b, s, u in zip(
                    low.tolist(), high.tolist(), since.tolist(), until.tolist(), strict=True
                )
            ],
            hovertemplate="%{customdata[0]}<br>hashes %{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        )
    for joined, word, symbol, colour in (
        (True, "joined", "triangle-up", _GREEN),
        (False, "left", "triangle-down", _RED),
    ):
        marked = [change for change in ring.changes if change.joined is joined]
        if marked:
            figure.add_scatter(
                x=[change.t_us / 1000 for change in marked],
                y=[top * (1.035 if joined else 1.075)] * len(marked),
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
            line = {"color": _GREEN if change.joined else _RED, "width": 1, "dash": "dot"}
            figure.add_shape(
                type="line", x0=change.t_us / 1000, x1=change.t_us / 1000, y0=0, y1=top * 1.02, line=line
            )
    figure.update_layout(barmode="overlay", bargap=0, height=460)
    figure.update_xaxes(type="date", title="time (UTC)")
    figure.update_yaxes(title="sticky key hash", range=[0, top * 1.1], tickformat=",d", automargin=True)
    joins = sum(change.joined for change in ring.changes)
    caption = f"{joins:,} joins (▲) and {len(ring.changes) - joins:,} leaves (▼) are marked"
    if ring.total_changes > len(ring.changes):
        caption += f", the first of {ring.total_changes:,}"
    if not ring.exact:
        caption += (
            ". Each cell shows the owner of its largest part: there are too many ranges to draw all of them"
        )
    return Picture("ring", title, f"{caption}.", _json(figure))


def _held_back(work: Sequence[HeldBack]) -> Picture:
    import plotly.graph_objects as go

    title = "Messages held back by rules, by waiting consumer"
    if not work:
        return Picture("blocked", title, "No rule held messages back long enough to be measured.", None)
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
            marker={"color": _REASON_COLOURS.get(reason, _GREY)},
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
    return Picture("blocked", title, caption, _json(figure))


def _flow(lines: Lines) -> Picture:
    from plotly.subplots import make_subplots

    title = "Deliveries and backlog over time"
    if not lines.t_us.size:
        return Picture("flow", title, "Nothing was stored and nothing was sent in this interval.", None)
    figure: go.Figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.09)
    at = lines.t_us / 1000
    for values, name, colour in ((lines.first, "sent first", _BLUE), (lines.again, "sent again", _RED)):
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
        line={"shape": "hv", "color": "#b55d0a", "width": 1.5},
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


def _shares(shares: Sequence[Share]) -> Picture:
    import plotly.graph_objects as go

    title = "Messages of each consumer, and its share of the hash space"
    if not shares:
        return Picture("balance", title, "Nothing was sent in this interval.", None)
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
    series = [("share of messages", [share.message_share for share in shares], _BLUE)]
    owned = any(share.hash_share is not None for share in shares)
    if owned:
        series.append(("share of the hash space", [share.hash_share or 0.0 for share in shares], _GREY))
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
        else "Every delivery counts, redeliveries too. No consumer owns hashes here."
    )
    return Picture("balance", title, caption, _json(figure))


def _dispatch(data: DispatchOverTime) -> Picture:
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
            line={"shape": "hv", "color": COLOURS[number % len(COLOURS)], "width": 1.8},
            name=label(name),
            customdata=[[label(name)]] * steps,
            hovertemplate="%{customdata[0]}: %{y:,.1f} messages per second<br>%{x}<extra></extra>",
            row=1,
            col=1,
        )
    if sizes:
        _sizes(figure, data)
    elif data.moved_us:
        figure.add_bar(
            x=[t_us / 1000 for t_us in data.moved_us],
            y=list(data.moved_keys),
            width=max((data.until_us - data.from_us) / 1000 / 120, 1),
            name="keys moved",
            marker={"color": "#6b3f63"},
            hovertemplate="%{y:,} keys went to another consumer<br>%{x}<extra></extra>",
            row=2,
            col=1,
        )
    figure.update_layout(height=580)
    figure.update_xaxes(type="date", range=[data.from_us / 1000, (data.until_us + 1) / 1000])
    figure.update_xaxes(title="time (UTC)", row=2, col=1)
    # Short titles: on a phone the legend leaves each row little height.
    figure.update_yaxes(title="messages/s", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title="held back" if sizes else "keys moved", rangemode="tozero", row=2, col=1)
    return Picture("dispatch", title, _caption_of_dispatch(data, sizes=sizes), _json(figure))


def _sizes(figure: go.Figure, data: DispatchOverTime) -> None:
    """Draw the replay set, the draining hashes and the look-ahead limit in the second row."""
    at = np.append(data.size_us, data.until_us) / 1000
    lines = [(data.in_replay, "replay set", "#b55d0a")]
    if data.has_draining:
        lines.append((data.draining, "draining hashes", "#1f4e79"))
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
            line={"color": _RED, "width": 1.2, "dash": "dash"},
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


def _places(figure: go.Figure, texts: Sequence[str]) -> None:
    """Names along the vertical axis, the first on top."""
    figure.update_yaxes(
        tickmode="array",
        tickvals=list(range(len(texts))),
        ticktext=list(texts),
        range=[len(texts) - 0.5, -0.5],
        automargin=True,
    )


def _height(bars: int, each: int = 24) -> int:
    return 130 + each * max(bars, 2)


def _json(figure: go.Figure) -> str:
    """The figure as JSON, the same text for the same figure."""
    figure.update_layout(
        template="none",
        margin={"l": 90, "r": 20, "t": 30, "b": 50},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        font={"family": "system-ui, sans-serif", "size": 12},
        paper_bgcolor="#ffffff",
        plot_bgcolor="#f7f8fa",
        hovermode="closest",
    )
    figure.update_xaxes(gridcolor="#e2e5e9", zeroline=False)
    figure.update_yaxes(gridcolor="#e2e5e9", zeroline=False)
    shown: dict[str, Any] = json.loads(figure.to_json(engine="json"))
    return json.dumps({"data": shown["data"], "layout": shown["layout"]}, sort_keys=True)
