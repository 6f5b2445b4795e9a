"""A saved version, or a draft as far as it goes, as a diagram (F27)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import orjson
from pydantic import TypeAdapter
from starlette.responses import Response

from api.calls import JSON, Call, Endpoint, Parameter, json_response
from flow_engine.diagrams import dot, mermaid, xstate
from flow_engine.documents import FlowVersion
from flow_engine.ports.designer_help import DiagramRenderer
from flow_engine.use_cases.flow_service import FlowService

FORMATS = ("mermaid", "svg", "xstate")
MERMAID = "text/vnd.mermaid"
SVG = "image/svg+xml"

# Opened by itself in a browser an image is a page of this origin: nothing in it may run or load.
_SVG_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
}

_Diagram = TypeVar("_Diagram")


class DiagramRoutes:
    def __init__(self, flow_service: FlowService, renderer: DiagramRenderer) -> None:
        self._flow_service = flow_service
        self._renderer = renderer

    async def diagram(self, call: Call) -> Response:
        chosen = call.choice("format", FORMATS) or "mermaid"
        document = await self._flow_service.get_version_document(
            call.tenant_id, call.path("flow_id"), call.path("version_id")
        )
        if chosen == "xstate":
            return json_response(await asyncio.to_thread(_drawn, document, xstate))
        if chosen == "mermaid":
            return Response(await asyncio.to_thread(_drawn, document, mermaid), media_type=MERMAID)
        image = await self._renderer.svg(await asyncio.to_thread(_drawn, document, dot))
        return Response(image, headers=_SVG_HEADERS, media_type=SVG)

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/flows/{flow_id}/versions/{version_id}/diagram",
                handler=self.diagram,
                summary="A version as a diagram, or as the configuration of an XState machine",
                audience="designers",
                scopes=("designer",),
                parameters=(
                    Parameter(
                        "format",
                        "Mermaid text, an SVG image, or JSON for XState 5",
                        {"type": "string", "enum": list(FORMATS), "default": "mermaid"},
                    ),
                ),
                reply=TypeAdapter(dict[str, object]),
                media_types=(MERMAID, SVG, JSON),
                problems=(404, 409, 501),
            )
        ]


def _drawn(document: bytes, draw: Callable[[FlowVersion], _Diagram]) -> _Diagram:
    """The document was checked when it was saved, with the limits of that time."""
    return draw(FlowVersion.model_validate(orjson.loads(document)))
