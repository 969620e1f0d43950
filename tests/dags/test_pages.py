"""Reports, Data Docs and what-if results in Airflow's web server: for whoever is logged in, and nothing but them."""

from __future__ import annotations

import os
import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest

from dispatch_airflow.home import HOME_VARIABLE, Home
from dispatch_airflow.pages import published_files

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<script>alert(1)</script>"
REPORT = "reports/2026-11-21/0123456789abcdef0123.html"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """An application with Airflow's own login and this plugin, as Airflow loads it, on an empty database."""
    from airflow import settings
    from airflow.api_fastapi.app import init_auth_manager, init_plugins
    from airflow.configuration import conf
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from fastapi import FastAPI

    conf.set("api_auth", "jwt_secret", "x" * 64)
    import_all_models()
    Base.metadata.create_all(settings.engine)
    app = FastAPI()
    init_auth_manager(app)
    init_plugins(app)
    return app


@pytest.fixture
def token(server):
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    return get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="night", role="viewer"))


@pytest.fixture
def anonymous(server):
    from fastapi.testclient import TestClient

    return TestClient(server, follow_redirects=False)


@pytest.fixture
def user(anonymous, token):
    """Somebody who is logged in."""
    anonymous.headers["Authorization"] = f"Bearer {token}"
    return anonymous


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with one page of each sort, and much that is no page."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "place"))
    home = Home.current()
    reports = Path(home.root) / "reports"
    pages = [REPORT, "reports/2026-11-21/index.html", "data-docs/index.html", "what-if/ab12/index.html"]
    pages += [
        "data-docs/2026-11-21/validations/per_key_order/a:b+c=d@e,f/x.html",
        "what-if/ab12/comparison.json",
        "hunts/ab12/index.html",
        "hunts/ab12/finds/stuck.no_read-4.2.4.toml",
    ]
    for name in (*pages, "reports/2026-11-21/.secret.html", "reports/.hidden/index.html", "secret.html"):
        path = Path(home.root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<p>{name}</p>")
    for name in ("page.js", "page.svg", "page.htm", "page", "page.HTML", "page.html.part", "passwords"):
        (reports / name).write_text("foreign")
    (tmp_path / "outside.html").write_text("outside")
    (reports / "link.html").symlink_to(tmp_path / "outside.html")
    (reports / "inside.html").symlink_to(reports / "2026-11-21" / "index.html")
    (reports / "folder").symlink_to(tmp_path)
    (reports / "gone.html").symlink_to(tmp_path / "nowhere")
    os.mkfifo(reports / "pipe.html")
    with socket.socket(socket.AF_UNIX) as end:
        os.chdir(reports)
        end.bind("socket.html")
        os.chdir(ROOT)
    return home


@pytest.mark.parametrize(
    "path", ["", "reports", "reports/", REPORT, "runs/a/b", "what-if/ab12/index.html", "nothing/x"]
)
def test_nobody_who_is_not_logged_in_sees_anything(anonymous, home, path):
    answer = anonymous.get(f"/dispatch-audit/{path}")
    assert answer.status_code == 401
    assert f'<a href="/auth/login?next={quote(f"/dispatch-audit/{path}", safe="")}">' in answer.text
    assert "2026-11-21</p>" not in answer.text
    anonymous.headers["Authorization"] = "Bearer forged"
    assert anonymous.get(f"/dispatch-audit/{path}").status_code in (401, 403)


@pytest.mark.parametrize("path", ["", "reports/", REPORT, "runs/dispatch_audit/b", "nothing/x"])
def test_users_who_may_not_read_runs_of_the_audit_see_nothing(user, home, monkeypatch, path):
    from airflow.api_fastapi.app import get_auth_manager

    asked = []

    def refuse(*, method, access_entity, details, user):
        asked.append((method, access_entity.value, details.id))
        return False

    monkeypatch.setattr(get_auth_manager(), "is_authorized_dag", refuse)
    answer = user.get(f"/dispatch-audit/{path}")
    assert (answer.status_code, asked) == (403, [("GET", "RUN", "dispatch_audit")])
    assert "Forbidden" in answer.text
    assert "2026-11-21" not in answer.text


def test_a_cookie_or_a_token_opens_a_page(anonymous, home, token):
    anonymous.cookies.set("_token", token)
    assert anonymous.get(f"/dispatch-audit/{REPORT}").text == f"<p>{REPORT}</p>"
    anonymous.cookies.clear()
    bearer = {"Authorization": f"Bearer {token}"}
    answer = anonymous.get(f"/dispatch-audit/{REPORT}", headers=bearer)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    head = anonymous.head(f"/dispatch-audit/{REPORT}", headers=bearer)
    assert (head.status_code, head.text) == (200, "")
    assert head.headers["content-length"] == str(len(f"<p>{REPORT}</p>"))
    assert anonymous.post(f"/dispatch-audit/{REPORT}", headers=bearer).status_code == 405


def test_the_script_that_reports_share_needs_no_login_and_nothing_beside_it_is_served(anonymous, home):
    """A browser sends no cookie from the sandbox in which a report draws, and takes a script of an opaque origin."""
    scripts = Path(home.root) / "reports" / "scripts"
    scripts.mkdir()
    name = f"plotly-{'0123456789abcdef0123'}.js"
    for file in (name, "other.js", "page.html", "plotly-1.js"):
        (scripts / file).write_text("draws()")
    (scripts / f"plotly-{'f' * 20}.js").symlink_to(scripts / "other.js")
    answer = anonymous.get(f"/dispatch-audit/reports/scripts/{name}")
    assert (answer.status_code, answer.text) == (200, "draws()")
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    hidden = ("other.js", "page.html", "plotly-1.js", f"plotly-{'f' * 20}.js", f"plotly-{'e' * 20}.js", "")
    for file in (*hidden, f"../2026-11-21/{name}", "..%2Fsecret.html"):
        refused = anonymous.get(f"/dispatch-audit/reports/scripts/{file}")
        assert refused.status_code in (401, 404), file
        assert "draws" not in refused.text
    assert anonymous.post(f"/dispatch-audit/reports/scripts/{name}").status_code == 405


def test_names_that_great_expectations_and_what_if_write_are_served(user, home):
    deep = "data-docs/2026-11-21/validations/per_key_order/a:b+c=d@e,f/x.html"
    assert user.get(f"/dispatch-audit/{quote(deep)}").text == f"<p>{deep}</p>"
    answer = user.get("/dispatch-audit/what-if/ab12/comparison.json")
    assert answer.headers["content-type"] == "application/json"


def test_a_folder_leads_to_its_index_and_an_area_without_one_is_listed(user, home):
    for path in ("reports/2026-11-21", "reports/2026-11-21/"):
        answer = user.get(f"/dispatch-audit/{path}")
        assert (answer.status_code, answer.headers["location"]) == (
            307,
            "/dispatch-audit/reports/2026-11-21/index.html",
        )
    assert (
        user.get("/dispatch-audit/data-docs/").headers["location"] == "/dispatch-audit/data-docs/index.html"
    )
    assert user.get("/dispatch-audit/reports").headers["location"] == "/dispatch-audit/reports/"
    listed = re.findall(r'href="([^"]*)"', user.get("/dispatch-audit/reports/").text)
    assert listed == ["/dispatch-audit/reports/2026-11-21/index.html"]
    areas = re.findall(r'href="([^"]*)"', user.get("/dispatch-audit/").text)
    assert areas == [f"/dispatch-audit/{area}/" for area in published_files.AREAS]


def test_the_pages_of_another_source_are_listed_and_served_apart(user, home):
    other = home.within("sources/orders")
    (other.reports / "2026-11-21" / "index.html").write_text("of the orders")
    (home.within("sources/.hidden").place / "reports" / "a" / "index.html").write_text("hidden")
    areas = re.findall(r'href="([^"]*)"', user.get("/dispatch-audit/").text)
    assert areas[-1] == "/dispatch-audit/sources/orders/"
    assert len(areas) == len(published_files.AREAS) + 1
    below = re.findall(r'href="([^"]*)"', user.get(areas[-1]).text)
    assert below[0] == "/dispatch-audit/sources/orders/reports/"
    assert user.get("/dispatch-audit/sources/orders/reports").headers["location"] == below[0]
    [day] = re.findall(r'href="([^"]*)"', user.get(below[0]).text)
    assert user.get(day).text == "of the orders"
    assert user.get(day.removesuffix("/index.html")).headers["location"] == day
    assert user.get(day.replace("sources/orders/", "")).text == "<p>reports/2026-11-21/index.html</p>"


def test_an_area_in_which_nothing_was_published_says_so(user, tmp_path, monkeypatch):
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "new"))
    assert "Nothing has been published yet" in user.get("/dispatch-audit/what-if/").text


@pytest.mark.parametrize(
    "path",
    [
        "reports/..%2Fsecret.html",
        "reports/%2e%2e/secret.html",
        "reports/%2e%2e%2fsecret.html",
        "reports/..%5csecret.html",
        "reports/2026-11-21/..%2f..%2f..%2foutside.html",
        "reports/%2Fetc/passwd.html",
        "reports//etc/passwd.html",
        "reports/2026-11-21//index.html",
        "reports/2026-11-21/%2e/index.html",
        "..%2freports/2026-11-21/index.html",
        "secret.html",
        ".%2freports/index.html",
        "reports/2026-11-21/.secret.html",
        "reports/.hidden/index.html",
        "reports/.hidden",
        "reports/link.html",
        "reports/inside.html",
        "reports/folder/outside.html",
        "reports/folder/place/secret.html",
        "reports/gone.html",
        "reports/pipe.html",
        "reports/socket.html",
        "reports/page.js",
        "reports/page.svg",
        "reports/page.htm",
        "reports/page",
        "reports/page.HTML",
        "reports/page.html.part",
        "reports/passwords",
        "reports/2026-11-21/index.html%00.json",
        "reports/2026-11-21/index.html%0a",
        "reports/2026-11-21/missing.html",
        "reports/" + "a/" * 40 + "index.html",
        "reports/" + "a" * 5000 + ".html",
        f"reports/{quote(HOSTILE, safe='')}",
        f"{quote(HOSTILE, safe='')}/x.html",
        "landing/index.html",
        "sources/orders/",
        "sources/.hidden/reports/a/index.html",
        "sources/orders/landing/index.html",
        "ad-hoc/%2e%2e/reports/2026-11-21/index.html",
        "warehouse/alerts_sent/index.html",
        "openapi.json",
        "docs",
    ],
)
def test_what_is_no_page_is_not_there(user, home, path):
    answer = user.get(f"/dispatch-audit/{path}")
    assert answer.status_code == 404, answer.text
    assert "There is no such page." in answer.text
    assert "<script" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_page_that_draws_runs_in_a_sandbox_and_all_others_run_nothing(user, home):
    def policy(path: str) -> str:
        return str(user.get(f"/dispatch-audit/{path}").headers["content-security-policy"])

    assert policy(REPORT).startswith("sandbox allow-scripts allow-downloads;")
    assert "allow-same-origin" not in policy(REPORT)
    for path in (
        "",
        "reports/",
        "reports/2026-11-21/index.html",
        "data-docs/index.html",
        "runs/a/b",
        "nothing",
    ):
        assert policy(path).startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;"), path
        assert "script-src" not in policy(path)
    for path in (REPORT, "data-docs/index.html", "what-if/ab12/comparison.json"):
        headers = user.get(f"/dispatch-audit/{path}").headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "private, no-cache"
        assert "frame-ancestors 'self'" in headers["content-security-policy"]


def test_a_page_that_is_replaced_while_it_is_read_stays_whole(home):
    page = published_files.open_page(home, "reports", "2026-11-21/index.html")
    (home.reports / "2026-11-21" / "index.html").write_text("another")
    with page.file:
        assert page.file.read() == b"<p>reports/2026-11-21/index.html</p>"


def xcom(number: int, run_id: str, key: str, value: object, task_id: str = "t") -> None:
    """An XCom of a run of which the database knows nothing else."""
    import json

    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType
    from sqlalchemy import text

    with create_session() as session:
        session.execute(text("PRAGMA foreign_keys=OFF"))
        if session.get(DagRun, number) is None:
            run = DagRun("dispatch_audit", run_id, run_type=DagRunType.MANUAL, run_after=datetime.now(UTC))
            run.id = number
            session.add(run)
        row = XComModel(
            dag_run_id=number, task_id=task_id, map_index=-1, key=key, dag_id="dispatch_audit", run_id=run_id
        )
        row.value = json.dumps(value)
        session.add(row)


def test_the_page_of_a_run_has_the_links_of_its_tasks_and_no_others(user, home):
    from dispatch_airflow.pages.links import DATA_DOCS, WHAT_IF
    from dispatch_airflow.pages.links import REPORT as REPORTS

    run = "scheduled__2026-11-21T00:00:00+00:00"
    xcom(1, run, REPORTS.xcom_key, "", "alert")
    xcom(
        1,
        run,
        REPORTS.xcom_key,
        "https://airflow.example.org/x/dispatch-audit/reports/2026-11-21/index.html",
        "report",
    )
    xcom(1, run, DATA_DOCS.xcom_key, f"/dispatch-audit/data-docs/{quote(HOSTILE)}/index.html")
    xcom(
        1, run, DATA_DOCS.xcom_key, "/dispatch-audit/ad-hoc/eu-7/data-docs/2026-11-21/index.html", "validate"
    )
    xcom(1, run, WHAT_IF.xcom_key, "javascript:alert(1)")
    xcom(2, "another", WHAT_IF.xcom_key, "/dispatch-audit/what-if/ab12/index.html")
    text = user.get(f"/dispatch-audit/runs/dispatch_audit/{quote(run)}").text
    links = dict(re.findall(r'<a href="([^"]*)">([^<]*)</a>', text))
    assert links == {
        "/dispatch-audit/reports/2026-11-21/index.html": "Reports",
        "/dispatch-audit/ad-hoc/eu-7/data-docs/2026-11-21/index.html": "Data Docs",
    }
    [frame] = re.findall(r'<iframe title="Verdicts" src="([^"]*)"', text)
    assert frame == "/dispatch-audit/reports/2026-11-21/index.html"
    assert "<script" not in text
    hostile = quote(HOSTILE.replace("/", ""))
    nothing = user.get(f"/dispatch-audit/runs/{hostile}/{hostile}")
    assert nothing.status_code == 200
    assert "<script" not in nothing.text
    assert "has not published a page yet" in nothing.text


@pytest.mark.parametrize(
    "link",
    [
        "javascript:alert(1)",
        "/dispatch-audit/reports/../../api",
        "/dispatch-audit/api/x",
        "/dispatch-audit/",
        "//[evil/dispatch-audit/reports/a",
        "",
        None,
        7,
        {"a": 1},
    ],
)
def test_what_leads_elsewhere_is_no_link(server, link):
    from dispatch_airflow.pages.app import link_address

    found = link_address(link)
    assert found is None or found == "/dispatch-audit/reports/x", (
        "of another address only the path here is left"
    )


def test_the_plugin_has_a_menu_entry_and_a_tab_on_a_run_below_airflows_own_address(server, monkeypatch):
    from airflow import plugins_manager

    (plugin,) = (
        candidate for candidate in plugins_manager._get_plugins()[0] if candidate.name == "dispatch_audit"
    )
    hrefs = {view["destination"]: view["href"] for view in plugin.external_views}
    assert hrefs == {"nav": "/dispatch-audit/", "dag_run": "/dispatch-audit/runs/{DAG_ID}/{RUN_ID}"}
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.org/airflow/")
    assert {view["href"] for view in plugin.external_views} == {
        "/airflow/dispatch-audit/",
        "/airflow/dispatch-audit/runs/{DAG_ID}/{RUN_ID}",
    }


class _Ended:
    """A task instance that has ended, with the XComs of its run."""

    task_id = "compare"

    def __init__(self, **returned: object) -> None:
        self.returned = returned

    def xcom_pull(self, task_ids: str) -> object:
        return self.returned.get(task_ids)


CHOSEN = {
    "interval_start": "2026-11-21T00:00:00+00:00",
    "interval_end": "2026-11-22T00:00:00+00:00",
    "namespace": "",
}


def test_a_hunt_is_served_with_its_schedules(user, home):
    assert user.get("/dispatch-audit/hunts/ab12/index.html").status_code == 200
    answer = user.get("/dispatch-audit/hunts/ab12/finds/stuck.no_read-4.2.4.toml")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")


def test_links_of_a_task_lead_to_the_pages_of_its_run(home, monkeypatch):
    from dispatch_airflow.pages.links import DATA_DOCS, WHAT_IF
    from dispatch_airflow.pages.links import REPORT as REPORTS

    (home.data_docs / "2026-11-21" / "index.html").write_text("docs")
    page = home.what_if / "ab12" / "index.html"
    ended = _Ended(choose_interval=CHOSEN, compare={"index": str(page)})
    links = {link.name: link.get_link(None, ti_key=ended) for link in (REPORTS, DATA_DOCS, WHAT_IF)}
    assert links == {
        "Reports": "/dispatch-audit/reports/2026-11-21/index.html",
        "Data Docs": "/dispatch-audit/data-docs/2026-11-21/index.html",
        "What-if comparison": "/dispatch-audit/what-if/ab12/index.html",
    }
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.org/airflow/")
    assert REPORTS.get_link(None, ti_key=ended).startswith(
        "https://example.org/airflow/dispatch-audit/reports/"
    )
    other = home.within("ad-hoc/eu-7")
    (other.reports / "2026-11-21" / "index.html").write_text("of another source")
    adhoc = _Ended(choose_interval=CHOSEN | {"namespace": "ad-hoc/eu-7"})
    assert REPORTS.get_link(None, ti_key=adhoc).endswith(
        "/dispatch-audit/ad-hoc/eu-7/reports/2026-11-21/index.html"
    )
    page.delete()
    assert WHAT_IF.get_link(None, ti_key=ended) == ""
    elsewhere = _Ended(compare={"index": "/etc/passwd"})
    assert [link.get_link(None, ti_key=elsewhere) for link in (REPORTS, DATA_DOCS, WHAT_IF)] == ["", "", ""]


def test_links_are_kept_with_the_dag(home):
    from airflow.sdk import dag, task
    from airflow.serialization.serialized_objects import DagSerialization

    from dispatch_airflow.pages.links import DATA_DOCS, with_links
    from dispatch_airflow.pages.links import REPORT as REPORTS

    @dag(schedule=None)
    def linked() -> None:
        @task
        def judge() -> None:
            """Judge."""

        with_links(judge(), REPORTS, DATA_DOCS)

    stored = DagSerialization.to_dict(linked())["dag"]["tasks"][0]["__var"]["_operator_extra_links"]
    assert stored == {"Reports": "_link_ReportLink", "Data Docs": "_link_DataDocsLink"}
