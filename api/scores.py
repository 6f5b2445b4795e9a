"""The route that judges scorecards again over stored conversations."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter
from starlette.responses import Response
from typing_extensions import TypedDict

from api.bodies import Body, Id
from api.endpoints import Call, Endpoint, for_designers, json_response
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.publishing import find_entry
from flow_engine.use_cases.scoring import ConversationScores, Scoring

MOST_CONVERSATIONS = 20
"""Of one request: the model is asked for each contact of each."""


class ScoreConversations(Body):
    conversations: Annotated[tuple[Id, ...], Field(strict=False, min_length=1, max_length=MOST_CONVERSATIONS)]


class ScoresReply(TypedDict):
    conversations: Sequence[ConversationScores]


_SCORE = TypeAdapter(ScoreConversations)


class ScoreRoutes:
    def __init__(self, flow_service: FlowService, scoring: Scoring) -> None:
        self._flow_service = flow_service
        self._scoring = scoring

    async def score(self, call: Call) -> Response:
        body, version_id = call.parse(_SCORE), call.path("version_id")
        find_entry(await self._flow_service.get_flow(call.tenant_id, call.path("flow_id")), version_id)
        scores = await self._scoring.score(call.tenant_id, version_id, body.conversations)
        return json_response(ScoresReply(conversations=scores))

    def endpoints(self) -> list[Endpoint]:
        return [
            for_designers(
                "POST /flows/{flow_id}/versions/{version_id}/scores",
                self.score,
                "Judge stored conversations by the version's scorecards",
                ScoresReply,
                scopes=("designer", "operator"),
                body=_SCORE,
                problems=(404, 409),
                body_example={"conversations": ["conv-1"]},
            ),
        ]
