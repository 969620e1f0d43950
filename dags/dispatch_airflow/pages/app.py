"""Web application under ``/dispatch-audit``: pages of the home, lists of them, and the links of one run.

Airflow does not authenticate requests to applications of plugins. Here every route does: users who are not logged in get 401
and a link to the login. Pages are made from logs, which are not trusted. A page that draws with its own scripts runs in a
sandbox with an opaque origin, without access to Airflow's session and API; all other pages run no scripts.

The one exception to the login is plotly's script, which reports share: a browser sends no cookies from a sandbox. It is the
published script and says nothing about the logs.
"""

from __future__ import annotations

import html
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag, requires_authenticated
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as AnyHTTPException

from dispatch_airflow.home import Home
from dispatch_airflow.pages.links import LINKS
from dispatch_airflow.pages.published_files import (
    AREAS,
    INDEX,
    PREFIX,
    SCRIPTS,
    TYPES,
    Page,
    folders,
    is_folder,
    open_page,
    open_script,
)

_CHUNK_BYTES: Final = 1 << 18
#: Maximum number of links that are read of one run.
_MAX_TASKS: Final = 50
_EVERYWHERE: Final = "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
_PLAIN: Final = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; {_EVERYWHERE}"
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
    "li { overflow-wrap: anywhere }</style>"
)

app = FastAPI(
    title="Dispatch audit",
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
    redirect_slashes=False,
    dependencies=[Depends(requires_authenticated())],
)


#: Has no login.
scripts = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
app.mount(f"/reports/{SCRIPTS}", scripts)


@scripts.get("/{name}")
async def shared_script(name: str) -> Response:
    """Answer with the script that reports share."""
    page = await run_in_threadpool(open_script, Home.current(), "reports", name)
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
    """List the areas with published pages."""
    items = [f'<a href="{_base(request)}/{area}/">{html.escape(name)}</a>' for area, name in AREAS.items()]
    return _page("Dispatch audit", _list(items))


@app.get("/runs/{dag_id}/{run_id}", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))])
def run_page(request: Request, dag_id: str, run_id: str) -> Response:
    """List the pages that the tasks of one run link to."""
    links = read_links(dag_id, run_id)
    if not links:
        return _page("Dispatch audit", "<p>This run has not published a page yet.</p>")
    items = [
        f'<a href="{_base(request)}{html.escape(address.removeprefix(PREFIX))}">{html.escape(name)}</a>'
        for name, address in links.items()
    ]
    return _page("Dispatch audit", _list(items))


@app.get("/{area}")
def area_without_slash(request: Request, area: str) -> Response:
    """Redirect to the address with a slash, because links on a page are relative to its folder."""
    if area not in AREAS:
        raise HTTPException(404)
    return RedirectResponse(f"{_base(request)}/{area}/", status_code=307)


@app.get("/{area}/{path:path}")
@app.head("/{area}/{path:path}", include_in_schema=False)
async def published(request: Request, area: str, path: str) -> Response:
    """Answer with a page of an area, the list of an area, or a redirect to the index page of a folder."""
    home = Home.current()
    page = await run_in_threadpool(open_page, home, area, path)
    if page is not None:
        return _answer(page, request.method)
    if area in AREAS and await run_in_threadpool(is_folder, home, area, path):
        below = quote("/".join([area, *filter(None, [path.rstrip("/")]), INDEX]))
        return RedirectResponse(f"{_base(request)}/{below}", status_code=307)
    if area in AREAS and not path:
        names = await run_in_threadpool(folders, home, area)
        items = [
            f'<a href="{_base(request)}/{area}/{quote(name)}/{INDEX}">{html.escape(name)}</a>'
            for name in names
        ]
        return _page(AREAS[area], _list(items) if items else "<p>Nothing has been published yet.</p>")
    raise HTTPException(404)


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
    parts = address.split("/")
    if not found or parts[0] not in AREAS or any(part in ("", ".", "..") for part in parts):
        return None
    return f"{PREFIX}/{address}"


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


def _list(items: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def _page(title: str, body: str, status: int = 200) -> HTMLResponse:
    head = f'<meta charset="utf-8">{_STYLE}<title>{html.escape(title)}</title>'
    text = f'<!DOCTYPE html><html lang="en"><head>{head}</head><body><h1>{html.escape(title)}</h1>{body}</body></html>\n'
    return HTMLResponse(text, status_code=status, media_type=TYPES[".html"])
