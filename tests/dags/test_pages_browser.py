"""Pages as a person opens them from Airflow, in a real browser: `make browser`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from dispatch_airflow.home import HOME_VARIABLE, Home
from dispatch_core.report.page import library_name, library_script, page
from tests.dags.test_pages import server  # noqa: F401 - a fixture
from tests.report.tables import HOSTILE, HOSTILE_TOPIC, hostile_report
from tests.report.test_browser import PATIENCE_MS, PICTURES, browser  # noqa: F401 - a fixture

pytestmark = [pytest.mark.browser, pytest.mark.airflow]

NAME = "0123456789abcdef0123.html"
#: What Airflow's UI puts around a plugin's page.
FRAME = """<iframe sandbox="allow-scripts allow-same-origin allow-forms allow-downloads"
src="/dispatch-audit/" width="1200" height="900">"""
#: A page that somebody managed to put there tries to act for the person who opens it.
THIEF = """<p id="p">waiting</p><script>
const say = text => { document.getElementById("p").textContent += " " + text };
try { say(document.cookie || "no cookie") } catch (error) { say(error.name) }
fetch("/probe").then(answer => say("fetched " + answer.status), error => say(error.name));
</script>"""


@pytest.fixture(scope="module")
def address(server, tmp_path_factory) -> Iterator[str]:  # noqa: F811
    """Serve the pages of a home; return their address."""
    import uvicorn
    from fastapi.responses import HTMLResponse

    place = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(place))
        reports = place / "reports" / "2026-11-21"
        assert Home.current().reports.local == reports.parent
        reports.mkdir(parents=True)
        (reports.parent / "scripts").mkdir()
        (reports.parent / "scripts" / library_name()).write_text(library_script(), "utf-8")
        (reports / NAME).write_text(page(hostile_report(), library=f"../scripts/{library_name()}"), "utf-8")
        (reports / "thief.html").write_text(THIEF, "utf-8")
        links = f'<a href="{NAME}">report</a> <a href="thief.html">thief</a>'
        (reports / "index.html").write_text(
            f"<!DOCTYPE html>{links}<script>document.body.id = 'ran'</script>"
        )
        server.add_api_route("/frame", lambda: HTMLResponse(FRAME))
        server.add_api_route("/probe", lambda: HTMLResponse("of the session"))
        runner = uvicorn.Server(uvicorn.Config(server, host="127.0.0.1", port=0, log_level="warning"))
        thread = threading.Thread(target=runner.run, daemon=True)
        thread.start()
        deadline = time.monotonic() + 60
        while not runner.started and time.monotonic() < deadline:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{runner.servers[0].sockets[0].getsockname()[1]}"
        runner.should_exit = True
        thread.join()


@pytest.fixture
def shown(browser, address):  # noqa: F811
    """A window of somebody who is logged in."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="night", role="viewer"))
    context = browser.new_context()
    cookie = {"name": "_token", "value": token, "url": address, "httpOnly": True, "sameSite": "Lax"}
    context.add_cookies([cookie])
    window = context.new_page()
    window.set_default_timeout(PATIENCE_MS)
    window.complaints = []
    window.on("console", lambda said: window.complaints.append(f"{said.type}: {said.text}"))
    window.on("pageerror", lambda error: window.complaints.append(str(error)))
    yield window
    context.close()


def test_a_report_draws_in_its_sandbox_and_names_stay_text(shown, address):
    shown.goto(f"{address}/dispatch-audit/reports/2026-11-21/{NAME}")
    for picture in PICTURES:
        shown.wait_for_selector(f"#plot-{picture} .trace path", state="attached")
        assert shown.locator(f"#plot-{picture} .trace path").count() >= 2, picture
    assert HOSTILE_TOPIC in shown.locator("h1").text_content()
    assert HOSTILE in shown.locator("#findings dd").all_text_contents()
    assert shown.evaluate("window.origin") == "null"
    assert shown.complaints == []


def test_within_airflows_frame_a_person_gets_from_the_menu_to_the_report(shown, address):
    shown.goto(f"{address}/frame")
    frame = shown.frame_locator("iframe")
    for name in ("Reports", "2026-11-21", "report"):
        frame.get_by_role("link", name=name, exact=True).click()
    assert frame.locator("#plot-ring .trace path").first.text_content() is not None
    assert frame.locator("h1").text_content().startswith(HOSTILE_TOPIC[:10])


def test_a_page_of_somebody_else_can_do_nothing_in_the_name_of_who_opens_it(shown, address):
    shown.goto(f"{address}/dispatch-audit/reports/2026-11-21/index.html")
    assert shown.locator("#ran").count() == 0, "an index runs no script"
    shown.get_by_role("link", name="thief").click()
    said = shown.locator("#p")
    deadline = time.monotonic() + 60
    while said.text_content().count(" ") < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert said.text_content() == "waiting SecurityError TypeError"
