"""The JSON Schema of flow versions, at an address that editors may keep. It needs no key."""

from __future__ import annotations

import orjson
from pydantic import TypeAdapter
from starlette.responses import Response

from api.calls import Call, Endpoint
from flow_engine.documents.json_schema import SCHEMA_VERSION, version_schema

SCHEMA_JSON = "application/schema+json"
_REPLY = TypeAdapter(dict[str, object])
# An editor that runs in a page of another origin may read it: it is the same for everybody.
_HEADERS = {"Cache-Control": "public, max-age=3600", "Access-Control-Allow-Origin": "*"}


class SchemaRoutes:
    def __init__(self) -> None:
        self._flow_version = orjson.dumps(version_schema())

    async def flow_version(self, call: Call) -> Response:
        return Response(self._flow_version, headers=_HEADERS, media_type=SCHEMA_JSON)

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path=path,
                handler=self.flow_version,
                summary=summary,
                audience="editors",
                scopes=(),
                reply=_REPLY,
                media_types=(SCHEMA_JSON,),
            )
            for path, summary in (
                (
                    f"/schemas/flow-version/{SCHEMA_VERSION}.json",
                    f"JSON Schema of flow versions, {SCHEMA_VERSION}",
                ),
                ("/schemas/flow-version.json", "JSON Schema of flow versions, the newest"),
            )
        ]
