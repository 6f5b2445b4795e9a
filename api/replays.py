"""The route that replays recorded conversations on another version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field, TypeAdapter, model_validator
from starlette.responses import Response

from api.bodies import Body, Id
from api.endpoints import Call, Endpoint, for_designers, json_response
from flow_engine.documents.findings import reading_beside
from flow_engine.use_cases.replays import ReplayOrder, ReplayReply, Replays

AT_MOST, LAST = 500, 100


def _faults(fields: Mapping[str, object]) -> Iterator[str]:
    by_tag = fields.get("from") is not None
    if (fields.get("conversations") is not None) == by_tag or (fields.get("last") is not None and not by_tag):
        yield "give either 'conversations' or 'from'; 'last' goes with 'from'"


class ReplayBody(Body):
    """Conversations by their ids, or the last ones whose version the tag `from` chose (100 if not said)."""

    conversations: Annotated[tuple[Id, ...] | None, Field(strict=False, min_length=1, max_length=AT_MOST)] = (
        Field(default=None, description="The ids of the conversations.")
    )
    from_tag: Id | None = Field(
        default=None, alias="from", description="Instead: those whose version this tag chose."
    )
    last: Annotated[int | None, Field(ge=1, le=AT_MOST)] = Field(
        default=None, description=f"How many of these, the newest first; {LAST} if not given."
    )

    _one_way = model_validator(mode="wrap")(reading_beside(_faults))


_REPLAY = TypeAdapter(ReplayBody)


class ReplayRoutes:
    def __init__(self, replays: Replays) -> None:
        self._replays = replays

    async def replay(self, call: Call) -> Response:
        body = call.parse(_REPLAY)
        order = ReplayOrder(body.conversations or (), body.from_tag, body.last or LAST)
        report = await self._replays.replay(
            call.tenant_id, call.path("flow_id"), call.path("version_id"), order
        )
        return json_response(report)

    def endpoints(self) -> list[Endpoint]:
        return [
            for_designers(
                "POST /flows/{flow_id}/versions/{version_id}/replays",
                self.replay,
                "What this version, a draft too, would have made of recorded conversations",
                ReplayReply,
                scopes=("designer", "operator"),
                body=_REPLAY,
                problems=(404,),
                body_example={"from": "prod", "last": 100},
            )
        ]
