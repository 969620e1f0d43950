"""Contrast of the pages' colours (WCAG 2.2 AA), from the style itself: 4.5 for texts, 3 for what a picture draws."""

from __future__ import annotations

import re

import pytest

from dispatch_core.report import pictures
from dispatch_core.report.markup import asset


def colours() -> dict[str, dict[str, str]]:
    """The style's variables on a light and on a dark ground."""
    light, dark, *_print = re.findall(
        r":root(?::not\(\[data-print\]\))? \{(.*?)\}", asset("page.css"), re.DOTALL
    )
    of_light = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", light))
    return {"light": of_light, "dark": of_light | dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", dark))}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(text: str, ground: str) -> float:
    low, high = sorted((luminance(text), luminance(ground)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_defined() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast(scheme: str) -> None:
    of_page = colours()[scheme]
    texts = ("ink", "dim", "link", "pass-ink", "fail-ink", "unknown-ink", "major", "minor")
    poor = {
        (text, ground): round(contrast(of_page[text], of_page[ground]), 2)
        for text in texts
        for ground in ("ground", "panel", "plot")
        if contrast(of_page[text], of_page[ground]) < 4.5
    }
    assert poor == {}


def test_verdicts_are_white_on_colours_with_contrast() -> None:
    grounds = re.findall(r"\.verdict\.[A-Z]+ \{ background: (#[0-9a-f]{6}); \}", asset("page.css"))
    assert len(grounds) == 3
    assert all(contrast("#ffffff", ground) >= 4.5 for ground in grounds)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_and_edges_of_controls_have_contrast(scheme: str) -> None:
    of_page = colours()[scheme]
    drawn = {
        *pictures.COLOURS,
        *pictures._REASON_COLOURS.values(),
        pictures.GREEN,
        pictures.RED,
        pictures.BLUE,
        pictures.GREY,
        pictures.BROWN,
        of_page["edge"],
        of_page["chosen"],
    }
    poor = {
        colour for colour in drawn for ground in ("panel", "plot") if contrast(colour, of_page[ground]) < 3
    }
    assert poor == set()
