"""Airflow as ``make up`` starts it, with recorded logs of some days, and a logged-in browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.checkout import PYTHONPATH
from tests.stack.logs import POLICY, Injected, scaled_logs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
#: The backfill covers the first days, one of which has the order violation; the schedule audits the last day.
DAYS, BACKFILLED, BAD = 4, 3, 0
#: Time limit for a busy machine.
PATIENCE_MS = 120_000


@dataclass(frozen=True)
class Up:
    """A running Airflow."""

    base: str
    password: str
    first: date
    injected: Injected

    def day(self, number: int) -> date:
        """Return a day of the logs, counted from 0."""
        return self.first + timedelta(days=number)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    root = tmp_path_factory.mktemp("ui")
    first = datetime.now(UTC).date() - timedelta(days=DAYS)
    injected = scaled_logs(root / "logs", first, DAYS, bad=BAD)
    policy = root / "audit-policy.yaml"
    policy.write_text(POLICY)
    environment = os.environ | {
        "DISPATCH_AUDIT_HOME": str(root / "home"),
        "DISPATCH_AUDIT_SOURCE": str(root / "logs" / "segments"),
        "DISPATCH_AUDIT_POLICY": str(policy),
        # Lateness would depend on the time of day; with this deadline no log is late.
        "DISPATCH_AUDIT_DEADLINE_HOURS": "240",
        "PYTHONPATH": PYTHONPATH,
    }

    def local_run(command: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "dispatch_airflow.local_run", command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        said = local_run("up")
        base, password = re.search(r"(http://\S+?)/dags", said), re.search(r"password +(\S+)", said)
        assert base is not None, said
        assert password is not None, said
        yield Up(base[1], password[1], first, injected)
    finally:
        local_run("down")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    path = os.environ.get("DISPATCH_AUDIT_BROWSER", "/usr/bin/chromium")
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=path, headless=True, args=FLAGS, timeout=PATIENCE_MS)
        yield started
        started.close()


class Pages:
    """Airflow's pages in a browser, with a screenshot of every step."""

    def __init__(self, browser: Browser, up: Up, pictures: Path) -> None:
        self.up = up
        self.page: Page = browser.new_context(viewport={"width": 1500, "height": 1100}).new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self._pictures = pictures
        self._taken = 0

    def open(self, path: str) -> Page:
        """Go to an address below the base."""
        self.page.goto(f"{self.up.base}{path}")
        return self.page

    def picture(self, name: str) -> None:
        """Take a screenshot."""
        self._taken += 1
        self.page.screenshot(path=self._pictures / f"{self._taken:02d}-{name}.png")

    def log_in(self) -> None:
        """Log in by the form, as the user that ``make up`` prints."""
        page = self.open("/auth/login")
        page.get_by_role("textbox", name=re.compile("username", re.I)).fill("admin")
        page.get_by_label(re.compile("password", re.I)).fill(self.up.password)
        self.picture("login")
        page.get_by_role("button", name=re.compile("sign in|log in|submit", re.I)).click()
        page.wait_for_url(lambda url: "/login" not in url)

    def api(self, path: str) -> dict[str, Any]:
        """Send a request of the logged-in browser to the API; return the answer."""
        answer = self.page.request.get(f"{self.up.base}/api/v2/{path}")
        assert answer.ok, answer.text()
        found = answer.json()
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="module")
def pages(browser: Browser, up: Up) -> Iterator[Pages]:
    named = os.environ.get("DISPATCH_AUDIT_SCREENSHOTS")
    pictures = Path(named) if named else ROOT / ".dispatch-audit" / "screenshots"
    pictures.mkdir(parents=True, exist_ok=True)
    for earlier in pictures.glob("[0-9][0-9]-*.png"):
        earlier.unlink()
    seen = Pages(browser, up, pictures)
    try:
        seen.log_in()
        yield seen
    finally:
        seen.picture("last")
