"""HTML that all pages of reports share: escaped text, verdicts, the style, and the policy on scripts.

Texts from a log may be hostile. They are part of a page as escaped text, or as JSON that a script inserts as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from dispatch_core.audit.sentences.names import LONGEST_ON_PAGES, printable
from dispatch_core.audit.verdict import FAIL, PASS, UNKNOWN

#: Longest sentence of a page, in characters.
MAX_SENTENCE: Final = 2_000


def text(value: Any, limit: int = LONGEST_ON_PAGES) -> str:
    """Return a value as escaped text of bounded length."""
    return html.escape(printable(str(value), limit))


def badge(verdict: str) -> str:
    """Return a verdict as a coloured word."""
    return f'<span class="verdict {verdict_class(verdict)}">{text(verdict)}</span>'


def verdict_class(verdict: str) -> str:
    """Return the name of a verdict's colours; a verdict that is not known has those of UNKNOWN."""
    return verdict if verdict in {PASS, FAIL, UNKNOWN} else UNKNOWN


def head(title: str, scripts: Iterable[str]) -> list[str]:
    """Return the beginning of a page, up to its body.

    ``scripts``: sources of the policy for scripts. The page may run these and nothing else, and makes no other requests.
    """
    policy = (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{text(title)}</title>",
        f"<style>{asset('page.css')}</style></head>",
    ]


def digest(script: str) -> str:
    """Return the source of a policy that allows this script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@lru_cache(maxsize=4)
def asset(name: str) -> str:
    """Return the text of a file beside this one."""
    return files("dispatch_core.report").joinpath(name).read_text("utf-8")
