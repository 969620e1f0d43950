"""The findings that docs/anomalies.md quotes from sample recordings are those of the audit."""

from __future__ import annotations

import json
import re

import pytest

from dispatch_core.cli.main import main
from tests.platform.test_boundaries import ROOT

SAMPLES = {
    f"{folder.parent.name}/{folder.name}": folder
    for home in ("recordings", "stalls", "verify", "races")
    for folder in (ROOT / "tests" / "data" / home).glob("*/*")
    if folder.is_dir()
}
#: Words of an example whose log is a changed recording.
CHANGED = ("taken out", "beside a copy")


def quotes() -> list[tuple[str, tuple[str, ...], str]]:
    """Yield recording, options and sentence of each example from a sample recording."""
    text = (ROOT / "docs" / "anomalies.md").read_text(encoding="utf-8")
    found = []
    for quote in re.finditer(r"(?:^>.*\n)+", text, re.MULTILINE):
        example = text[: quote.start()].rstrip().rpartition("\n\n")[2]
        recordings = re.findall(r"`([\w.-]+/[\w-]+)`", example)
        if recordings and recordings[0] in SAMPLES and not any(words in example for words in CHANGED):
            options = tuple(re.findall(r"(--(?:limit|set)) (\S+=\w+)", example))
            sentence = " ".join(line[1:].strip() for line in quote[0].splitlines())
            words = [word for pair in options for word in pair]
            words += re.findall(r"--complete", example)
            found.append((recordings[0], tuple(words), sentence))
    return found


def test_sample_recordings_are_quoted() -> None:
    assert len(quotes()) >= 8


@pytest.mark.parametrize(("recording", "options", "sentence"), quotes(), ids=lambda value: str(value)[:40])
def test_the_audit_says_what_is_quoted(
    recording: str, options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["audit", "--json", str(SAMPLES[recording]), *options])
    said = [json.loads(line).get("explanation") for line in capsys.readouterr().out.splitlines()]
    assert sentence in said
