"""Routes for tools that write the memory and agents that hand it to them (F19, F32)."""

from __future__ import annotations

from typing import cast

from pydantic import TypeAdapter
from starlette.responses import Response

from api.bodies import MemoryBatch, MemoryEntryBody
from api.calls import Call, Endpoint, answer_response, json_response
from flow_engine.runtime.memory import MemoryWrite, ValueDescription
from flow_engine.runtime.replies import MemoryDump, MemoryWritten
from flow_engine.use_cases.dialogue import DialogueService
from flow_engine.values import JsonValue


class MemoryRoutes:
    def __init__(self, dialogue: DialogueService) -> None:
        self._dialogue = dialogue

    async def put(self, call: Call) -> Response:
        writes = [_write(entry) for entry in call.parse(MemoryBatch)]
        conversation = call.conversation(call.path("conversation_id"))
        return answer_response(await self._dialogue.put_memory(conversation, writes, call.idempotency))

    async def get(self, call: Call) -> Response:
        return json_response(await self._dialogue.get_memory(call.conversation(call.path("conversation_id"))))

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="PUT",
                path="/memory/{conversation_id:id}",
                handler=self.put,
                summary="Store what tools have found, the whole list or nothing",
                audience="tools",
                scopes=("tools", "agent"),
                body=MemoryBatch,
                reply=TypeAdapter(MemoryWritten),
                problems=(404, 409),
                keyed=True,
                body_example=_EXAMPLE,
            ),
            Endpoint(
                method="GET",
                path="/memory/{conversation_id:id}",
                handler=self.get,
                summary="The whole memory of a conversation",
                audience="tools",
                scopes=("tools", "agent"),
                reply=TypeAdapter(MemoryDump),
                problems=(404,),
            ),
        ]


def _write(entry: MemoryEntryBody) -> MemoryWrite:
    described = entry.description_for_llm
    return MemoryWrite(
        var=entry.var_id,
        value=cast("JsonValue", entry.value),
        contact_id=entry.contact_id,
        updated_by=entry.updated_by,
        description_for_llm=None
        if described is None
        else tuple(ValueDescription(part.name, part.value) for part in described),
    )


_EXAMPLE = [
    {
        "updatedBy": "findService",
        "contactId": "call-1",
        "varId": "idPrestazione",
        "value": {"id": "VIS-CARD"},
        "descriptionForLLM": [{"name": "Id", "value": "VIS-CARD"}],
    }
]
