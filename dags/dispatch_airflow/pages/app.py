"""Web application under ``/dispatch-audit``: pages of the home, lists of them, and the links of one run.

Airflow does not authenticate requests to applications of plugins. Here every route does: users who are not logged in get 401
and a link to the login, users who may not read the runs of the audit's DAG get 403. Pages are made from logs, which are not
trusted. A page that draws with its own scripts runs in a sandbox with an opaque origin, without access to Airflow's session
and API; all other pages run no scripts.

The one exception to the login is plotly's script, which reports share: a browser sends no cookies from a sandbox. It is the
published script and says nothing about the logs.
"""

from __future__ import annotations

import html
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as AnyHTTPException

from dispatch_airflow.home import Home
from dispatch_airflow.pages.links import LINKS, REPORT
from dispatch_airflow.pages.published_files import (
    AREAS,
    INDEX,
    PREFIX,
    SCRIPTS,
    TYPES,
    Page,
    folders,
    is_folder,
    is_page,
    open_page,
    open_script,
    split,
)
from dispatch_airflow.sources import DAG_ID, is_namespace, namespaces

_CHUNK_BYTES: Final = 1 << 18
#: Maximum number of links that are read of one run.
_MAX_TASKS: Final = 50
_EVERYWHERE: Final = "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
_PLAIN: Final = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; {_EVERYWHERE}"
#: The page of a run shows the index of its reports in a frame.
_FRAMES: Final = f"{_PLAIN}; frame-src 'self'"
_DRAWS: Final = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline' 'self'; "
    f"style-src 'unsafe-inline'; img-src data: blob:; {_EVERYWHERE}"
)
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}
_SCRIPT_HEADERS: Final = {
    # The origin of a page in a sandbox is never the same.
    "Cross-Origin-Resource-Policy": "cross-origin",
    # Its name changes with its contents.
    "Cache-Control": "public, max-age=31536000, immutable",
}
_STYLE: Final = (
    "<style>body { font: 15px/1.6 system-ui, sans-serif; margin: 24px; color: #1a1d21; background: #fff } "
    "li { overflow-wrap: anywhere } iframe { width: 100%; height: 75vh; border: 1px solid #d0d4d9 }</style>"
)

app = FastAPI(
    title="Dispatch audit",
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
    redirect_slashes=False,
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN, param_dag_id=DAG_ID))],
)


#: Has no login.
scripts = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
for namespaced in ("", "/{kind}/{source}"):
    app.mount(f"{namespaced}/reports/{SCRIPTS}", scripts)


@scripts.get("/{name}")
async def shared_script(request: Request, name: str) -> Response:
    """Answer with the script that reports share."""
    namespace = "/".join(
        request.path_params[part] for part in ("kind", "source") if part in request.path_params
    )
    known = not namespace or is_namespace(namespace)
    home = Home.current().within(namespace if known else "")
    page = await run_in_threadpool(open_script, home, "reports", name) if known else None
    if page is None:
        return _page("404", "<p>There is no such page.</p>", 404)
    headers = {"Content-Length": str(page.size_bytes), **_SCRIPT_HEADERS}
    return StreamingResponse(_chunks(page), media_type=page.media_type, headers=headers)


@app.middleware("http")
async def safe_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add restrictive security headers to every response, including errors."""
    response = await call_next(request)
    for name, value in {"Content-Security-Policy": _PLAIN, **_HEADERS}.items():
        response.headers.setdefault(name, value)
    return response


@app.exception_handler(AnyHTTPException)
async def error_page(request: Request, error: AnyHTTPException) -> Response:
    """Answer an error with a page that contains nothing of the requested address."""
    if error.status_code == 401:
        login = get_auth_manager().get_url_login(next_url=request.url.path)
        link = f'<a href="{html.escape(login)}">Log in to Airflow</a>, then open this page again.'
        return _page("Not logged in", f"<p>{link}</p>", error.status_code)
    why = "There is no such page." if error.status_code == 404 else html.escape(str(error.detail))
    return _page(f"{error.status_code}", f"<p>{why}</p>", error.status_code)


@app.get("/")
def home_page(request: Request) -> Response:
    """List the areas with published pages, and the sources that have some of their own."""
    home = Home.current()
    others = [f"{namespace}/" for namespace in namespaces(home) if namespace]
    items = [(f"{area}/", name) for area, name in AREAS.items()] + [(name, name[:-1]) for name in others]
    return _page("Dispatch audit", _links(request, items))


@app.get("/runs/{dag_id}/{run_id}", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))])
def run_page(request: Request, dag_id: str, run_id: str) -> Response:
    """List the failed tasks of a run and the pages that its tasks link to; show the index of its reports."""
    links, failed = read_links(dag_id, run_id), read_failed(dag_id, run_id)
    body = ""
    if failed:
        logs = f"/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}/tasks"
        root = _base(request).removesuffix(PREFIX)
        items = [
            f'<a target="_top" href="{root}{html.escape(logs)}/{quote(task, safe="")}">{html.escape(task)}</a>'
            for task in failed
        ]
        body += f"<h2>Failed tasks</h2>{_list(items)}"
    if links:
        pages = [(address.removeprefix(f"{PREFIX}/"), name) for name, address in links.items()]
        body += f"<h2>Pages</h2>{_links(request, pages)}"
    index = links.get(REPORT.name)
    if index is not None:
        source = f"{_base(request)}{html.escape(index.removeprefix(PREFIX))}"
        body += f'<iframe title="Verdicts" src="{source}"></iframe>'
    return _page("Dispatch audit", body or "<p>This run has not published a page yet.</p>", policy=_FRAMES)


@app.get("/{address:path}")
@app.head("/{address:path}", include_in_schema=False)
async def published(request: Request, address: str) -> Response:
    """Answer with a page, the list of an area or namespace, or a redirect to the index page of a folder."""
    namespace, area, path = split(address)
    home = Home.current().within(namespace)
    if area not in AREAS:
        if namespace and not area and await run_in_threadpool(home.place.exists):
            return _page(
                namespace, _links(request, [(f"{namespace}/{name}/", AREAS[name]) for name in AREAS])
            )
        raise HTTPException(404)
    if not path and not address.endswith("/"):
        # With a slash, because links on a page are relative to its folder.
        return RedirectResponse(f"{_base(request)}/{quote(address)}/", status_code=307)
    page = await run_in_threadpool(open_page, home, area, path)
    if page is not None:
        return _answer(page, request.method)
    where = "/".join(filter(None, (namespace, area)))
    if await run_in_threadpool(is_folder, home, area, path):
        below = quote("/".join(filter(None, (where, path.rstrip("/"), INDEX))))
        return RedirectResponse(f"{_base(request)}/{below}", status_code=307)
    if not path:
        names = await run_in_threadpool(folders, home, area)
        items = [(f"{where}/{quote(name)}/{INDEX}", name) for name in names]
        return _page(
            AREAS[area], _links(request, items) if items else "<p>Nothing has been published yet.</p>"
        )
    raise HTTPException(404)


def read_failed(dag_id: str, run_id: str) -> list[str]:
    """Read the names of the failed tasks of a run, in the order in which they ended."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = (
        select(TaskInstance.task_id)
        .where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.state == "failed")
        .order_by(TaskInstance.end_date, TaskInstance.task_id)
        .limit(_MAX_TASKS)
    )
    with create_session() as session:
        return list(dict.fromkeys(session.scalars(wanted)))


def read_links(dag_id: str, run_id: str) -> Mapping[str, str]:
    """Read the pages that the tasks of a run link to, by the name of the link; addresses start with ``PREFIX``.

    Any task may write such an XCom, so only valid addresses of this application are used.
    """
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    found: dict[str, str] = {}
    with create_session() as session:
        for key, name in LINKS.items():
            wanted = XComModel.get_many(key=key, dag_ids=dag_id, run_id=run_id, limit=_MAX_TASKS)
            for (value,) in session.execute(wanted.with_only_columns(XComModel.value)):
                address = link_address(_plain(value))
                if address is not None:
                    found[name] = address
    return found


def link_address(link: object) -> str | None:
    """Return the address of a link to this application, from ``PREFIX`` on; None for any other link."""
    try:
        path = urlsplit(link).path if isinstance(link, str) else ""
    except ValueError:
        return None
    _before, found, address = path.partition(f"{PREFIX}/")
    return f"{PREFIX}/{address}" if found and is_page(unquote(address)) else None


def _plain(value: object) -> object:
    """Convert an XCom's value back to what the task returned: the database has texts as JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _answer(page: Page, method: str) -> Response:
    headers = {"Content-Length": str(page.size_bytes)}
    headers["Content-Security-Policy"] = _DRAWS if page.scripts else _PLAIN
    if method == "HEAD":
        page.file.close()
        return Response(media_type=page.media_type, headers=headers)
    return StreamingResponse(_chunks(page), media_type=page.media_type, headers=headers)


def _chunks(page: Page) -> Iterator[bytes]:
    """Yield the bytes of the open file; if it is replaced meanwhile, the earlier contents are read to the end."""
    with page.file:
        left = page.size_bytes
        while left > 0 and (chunk := page.file.read(min(_CHUNK_BYTES, left))):
            left -= len(chunk)
            yield chunk


def _base(request: Request) -> str:
    """Return the prefix of this application's addresses, below Airflow's own prefix if it has one."""
    return html.escape(str(request.scope.get("root_path") or PREFIX))


def _links(request: Request, items: list[tuple[str, str]]) -> str:
    """Write a list of links: pairs of an address behind ``PREFIX``, as a browser needs it or plain, and a text."""
    base = _base(request)
    return _list([f'<a href="{base}/{html.escape(to)}">{html.escape(name)}</a>' for to, name in items])


def _list(items: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def _page(title: str, body: str, status: int = 200, policy: str = _PLAIN) -> HTMLResponse:
    head = f'<meta charset="utf-8">{_STYLE}<title>{html.escape(title)}</title>'
    text = f'<!DOCTYPE html><html lang="en"><head>{head}</head><body><h1>{html.escape(title)}</h1>{body}</body></html>\n'
    headers = {"Content-Security-Policy": policy}
    return HTMLResponse(text, status_code=status, headers=headers, media_type=TYPES[".html"])
