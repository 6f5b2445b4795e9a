"""`/docs`: the page that shows the OpenAPI document, with everything it loads from this service itself."""

from __future__ import annotations

from importlib.resources import files

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}
# The page runs one script of its own; nothing may come from elsewhere or go there.
_OWN = "'self' 'unsafe-inline'"
_POLICY = f"default-src 'self'; script-src {_OWN}; style-src {_OWN}; img-src 'self' data:"
_NO_ICON = "data:,"


def reference_routes(title: str) -> list[Route]:
    """The page and the two files that it loads, which are read once."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=title,
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url=_NO_ICON,
    )
    page.headers["Content-Security-Policy"] = _POLICY
    folder = files("fastapi_swagger") / "resources"
    assets = {
        f"/docs/{name}": Response(
            (folder / name).read_bytes(), media_type=kind, headers={"Cache-Control": "public, max-age=86400"}
        )
        for name, kind in _ASSETS.items()
    }
    return [_route("/docs", page), *(_route(path, asset) for path, asset in assets.items())]


def _route(path: str, response: Response) -> Route:
    async def answer(request: Request) -> Response:
        return response

    return Route(path, answer, methods=["GET"], include_in_schema=False)
