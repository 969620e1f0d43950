"""Make the HTML page of a hunt of releases, without scripts. Pure: the values of ``hunt.json`` in, text out."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dispatch_core.audit.sentences.names import printable
from dispatch_core.hunt.zoo import KEPT

_MAX_SENTENCE: Final = 2000
_STYLE: Final = """
body { font: 15px/1.55 system-ui, sans-serif; margin: 24px; color: #1b1f24; background: #fff }
table { border-collapse: collapse; margin: 6px 0 4px }
th, td { text-align: left; padding: 3px 16px 3px 0; vertical-align: top }
th { font-weight: 600; border-bottom: 1px solid #bbb } td.n, th.n { text-align: right }
h2 { font-size: 17px; margin: 28px 0 2px } h3 { font-size: 15px; margin: 20px 0 2px }
.new { color: #b00020; font-weight: 700 } .known { color: #8a5a00; font-weight: 700 } .kept { color: #1a6e2e }
.scroll { overflow-x: auto } .note { margin: 2px 0; color: #444; overflow-wrap: anywhere } dt { font-weight: 600 }
@media (prefers-color-scheme: dark) { body { background: #14171a; color: #e6e6e6 } .note { color: #aaa } a { color: #8ab4f8 }
.new { color: #ff8a80 } .known { color: #ffcc80 } .kept { color: #8bd49c } th { border-color: #555 } }
"""


def campaign_page(result: Mapping[str, Any]) -> str:
    """Make the page: what was asked, the causes by release, each shortest schedule, and what was covered."""
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Hunt: {_text(', '.join(result['asked']['releases']))}</title><style>{_STYLE}</style></head><body>",
            "<h1>Hunt</h1>",
            *_asked(result["asked"]),
            *_causes(result),
            *(part for row in result["finds"] for part in _schedule(row)),
            *_played(result["releases"]),
            *_covered(result["releases"]),
            "</body></html>\n",
        ]
    )


def _asked(asked: Mapping[str, Any]) -> Iterable[str]:
    settings = ", ".join(f"{name}={_value(value)}" for name, value in asked["settings"].items())
    order = ", allowOutOfOrderDelivery" if asked["allow_out_of_order"] else ""
    last = asked["first_seed"] + asked["seeds"] - 1
    facts = {
        "releases": ", ".join(asked["releases"]),
        "subscription": f"{asked['subscription_type']}{order}",
        "settings": settings or "as shipped",
        "promises": ", ".join(asked["promises"]),
        "further steps": ", ".join(asked["also"]) or "none",
        "passed over": ", ".join(asked["pass_over"]) or "nothing",
        "schedules of each release": f"{asked['schedules']:,} of the seeds {asked['first_seed']} to {last}",
    }
    yield "<dl>"
    yield from (
        f"<dt>{_text(name)}</dt><dd>{_text(value, _MAX_SENTENCE)}</dd>" for name, value in facts.items()
    )
    yield "</dl>"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _causes(result: Mapping[str, Any]) -> Iterable[str]:
    releases = result["asked"]["releases"]
    yield "<h2>Broken promises and their causes, by release</h2>"
    if not result["finds"]:
        yield '<p class="kept">No promise was broken by any schedule that was played.</p>'
        return
    heads = "".join(f"<th>{_text(release)}</th>" for release in releases)
    yield f'<div class="scroll"><table><tr><th>promise and cause</th>{heads}</tr>'
    for row in result["finds"]:
        cells = "".join(f"<td>{_cell(row['releases'][release])}</td>" for release in releases)
        yield f'<tr><td><a href="#{_text(row["verdict"])}">{_text(row["verdict"])}</a></td>{cells}</tr>'
    yield "</table></div>"
    yield (
        '<p class="note">New: no file of the zoo breaks the same promise by the same cause under these rules. '
        "Not found is no proof: it says how many schedules were played. The shortest schedule of the row was played on "
        "every release.</p>"
    )


def _cell(cell: Mapping[str, Any]) -> str:
    if not cell["found"]:
        played = cell["shortest_played"]
        other = "breaks nothing" if played == KEPT else f"gives {played}"
        kind = "kept" if played == KEPT else "known"
        return (
            f"not found in {cell['schedules']:,} schedules; "
            f'<span class="{kind}">the shortest one {_text(other)}</span>'
        )
    found = f"{cell['steps']} steps, found {cell['times']:,} times"
    if cell["known"] is None:
        return f'<span class="new">new</span>: {found}'
    return f'<span class="known">known</span> ({_text(cell["known"]["exhibit"])}): {found}'


def _schedule(row: Mapping[str, Any]) -> Iterable[str]:
    yield f'<h3 id="{_text(row["verdict"])}">{_text(row["verdict"])}</h3><ol>'
    yield from (f"<li>{_text(step)}</li>" for step in row["steps"])
    yield f"</ol><p>{_text(row['outcome'], _MAX_SENTENCE)}</p>"
    for verdict, releases in row["breaks"].items():
        ranges = _text(", ".join(releases) or "no known release", _MAX_SENTENCE)
        yield f'<p class="note">releases that get {_text(verdict)}: {ranges}</p>'
    for known in _each_known(row):
        links = "".join(f' <a href="{_text(link)}">{_text(link)}</a>' for link in known["links"])
        yield f'<p class="note">known as {_text(known["exhibit"])}: {_text(known["title"], _MAX_SENTENCE)}{links}</p>'
    files = (_text(cell["file"]) for cell in row["releases"].values() if cell["found"])
    links = ", ".join(f'<a href="{file}">{file}</a>' for file in files)
    yield f'<p class="note">for <code>dispatch-audit hunt --play</code>: {links}</p>'


def _each_known(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    known = (cell["known"] for cell in row["releases"].values() if cell["found"] and cell["known"])
    return [*{exhibit["exhibit"]: exhibit for exhibit in known}.values()]


def _played(releases: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    yield "<h2>What was played</h2>"
    yield (
        '<table><tr><th>release</th><th>rules</th><th class="n">schedules</th><th class="n">steps</th><th class="n">sets of '
        'keys</th><th class="n">states, about</th><th>passed over</th><th>found, not shrunk</th></tr>'
    )
    for release in releases:
        numbers = (release["schedules"], release["steps"], release["sets_of_keys"], release["states"])
        cells = "".join(
            f'<td class="n">{"not counted" if number is None else f"{number:,}"}</td>' for number in numbers
        )
        counts = "".join(f"<td>{_counts(release[name])}</td>" for name in ("passed_over", "not_shrunk"))
        yield f"<tr><td>{_text(release['release'])}</td><td>{_text(release['rules'])}</td>{cells}{counts}</tr>"
    yield "</table>"


def _counts(counts: Mapping[str, int]) -> str:
    return _text(", ".join(f"{name} {count:,} times" for name, count in counts.items()) or "nothing")


def _covered(releases: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    seen = {release["release"]: release["coverage"] for release in releases if release["coverage"]}
    if not seen:
        return
    modules = list(dict.fromkeys(module for coverage in seen.values() for module in coverage["modules"]))
    counts = ", ".join(f"{coverage['schedules']:,} of {release}" for release, coverage in seen.items())
    yield "<h2>Rules and branches that a sample went through</h2>"
    yield (
        f'<p class="note">The first schedules of each seed ({_text(counts)}), played once more with the rules interpreted. '
        "A branch is one way of a condition. Rules of other dispatchers and of steps that were not asked for are among "
        "those that were not reached; hunt.json has each function.</p>"
    )
    heads = "".join(
        f'<th class="n">{_text(release)}: called</th><th class="n">branches</th>' for release in seen
    )
    yield f'<div class="scroll"><table><tr><th>functions of</th>{heads}</tr>'
    for module in modules:
        cells = "".join(_module_cells(coverage["modules"].get(module)) for coverage in seen.values())
        yield f"<tr><td>{_text(module)}</td>{cells}</tr>"
    yield "</table></div>"


def _module_cells(counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return '<td class="n">-</td><td class="n">-</td>'
    called = f"{counts['called']} of {counts['functions']}"
    return f'<td class="n">{called}</td><td class="n">{counts["reached"]} of {counts["branches"]}</td>'


def _text(value: Any, limit: int = 200) -> str:
    return html.escape(printable(str(value), limit))
