"""REST of the agents table, under `/v1/ai-agents` (C1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from channels.chat.http import Call, Endpoint, json_response
from channels.chat.rows import StoredRow
from channels.chat.table import AgentTable, Change, RevisionStale, patched, put
from flow_engine.errors import CorrectTheInput

BASE: Final = "/v1/ai-agents"


class AgentRoutes:
    """Every route needs a key of scope `designer`; the tenant is the key's."""

    def __init__(self, table: AgentTable) -> None:
        self._table = table

    def endpoints(self) -> Sequence[Endpoint]:
        one = BASE + "/{name}"
        routes = (
            ("GET", BASE, self.list),
            ("POST", BASE, self.create),
            ("POST", BASE + "/validate", self.validate),
            ("GET", one, self.get),
            ("PUT", one, self.put),
            ("PATCH", one, self.patch),
            ("DELETE", one, self.delete),
            ("GET", one + "/effective", self.effective),
            ("GET", one + "/history", self.history),
        )
        return [Endpoint(method, path, ("designer",), handler) for method, path, handler in routes]

    async def list(self, call: Call) -> Response:
        rows = await self._table.rows(call.principal.tenant_id)
        return json_response([_reply(row) for row in rows.values()])

    async def create(self, call: Call) -> Response:
        row = await self._table.create(call.principal.tenant_id, call.json(), call.principal.name)
        return _sent(row, 201, {"Location": f"{BASE}/{row.name}"})

    async def validate(self, call: Call) -> Response:
        found = await self._table.findings(call.principal.tenant_id, call.json())
        errors = [{"pointer": f.pointer, "code": f.code, "message": f.message} for f in found]
        return json_response({"valid": not errors, "errors": errors})

    async def get(self, call: Call) -> Response:
        return _sent(await self._table.row(call.principal.tenant_id, call.path("name")))

    async def put(self, call: Call) -> Response:
        name = call.path("name")
        return await self._changed(call, Change("update", call.principal.name, put(call.object(), name)))

    async def patch(self, call: Call) -> Response:
        name = call.path("name")
        return await self._changed(call, Change("update", call.principal.name, patched(call.object(), name)))

    async def delete(self, call: Call) -> Response:
        return await self._changed(call, Change("delete", call.principal.name, None))

    async def effective(self, call: Call) -> Response:
        agent = await self._table.effective(call.principal.tenant_id, call.path("name"))
        fields = {name: {"value": value, "from": agent.sources[name]} for name, value in agent.fields.items()}
        return json_response(
            {
                "name": agent.name,
                "revision": agent.revision,
                "fields": fields,
                "system_prompt": agent.system_prompt,
            }
        )

    async def history(self, call: Call) -> Response:
        return json_response(await self._table.history(call.principal.tenant_id, call.path("name")))

    async def _changed(self, call: Call, change: Change) -> Response:
        wanted = Change(change.action, change.by, change.fields, call.if_match)
        try:
            row = await self._table.change(call.principal.tenant_id, call.path("name"), wanted)
        except RevisionStale as stale:
            message = f"{stale}; read it again and decide"
            raise CorrectTheInput("revision_stale", message) from None
        return Response(status_code=204) if row is None else _sent(row)


def _sent(row: StoredRow, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return json_response(_reply(row), status, {"ETag": f'"{row.revision}"', **(headers or {})})


def _reply(row: StoredRow) -> dict[str, object]:
    return {**row.fields, "revision": row.revision}
