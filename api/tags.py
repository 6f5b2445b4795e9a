"""Routes for a flow's tags (F6, F27): promotion, rollback, splits and what came of them."""

from collections.abc import Sequence

import orjson
from pydantic import TypeAdapter
from starlette.responses import Response
from typing_extensions import TypedDict

from api.bodies import PutTag
from api.endpoints import Call, Endpoint, answer_response, for_designers, json_response
from flow_engine.idempotency import FinalReply
from flow_engine.ports.flow_store import FlowRecord, Guard, TagEntry
from flow_engine.use_cases.flow_overview import SideReply, split_sides
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.publishing import SplitOrder, find_tag
from flow_engine.use_cases.rollouts import OutcomesReply, RolledBackReply, Rollouts, rolled_back_reply
from flow_engine.use_cases.splits import ShareOrder
from flow_engine.values import utc_text

_PUT = TypeAdapter(PutTag)


class GuardReply(TypedDict):
    """`worseBy` is an absolute difference, in the metric's own unit."""

    metric: str
    worseBy: float
    minimum: int


class TagReply(TypedDict):
    """`split`, the base first, `guard` and `rolledBack` are null for a tag that points to one version."""

    versionId: str
    tag: str
    createdBy: str
    createdAt: str
    split: Sequence[SideReply] | None
    guard: GuardReply | None
    rolledBack: RolledBackReply | None


def tag_reply(entry: TagEntry) -> TagReply:
    split = entry.split
    guard = None if split is None else split.guard
    return TagReply(
        versionId=entry.version_id,
        tag=entry.tag,
        createdBy=entry.created_by,
        createdAt=utc_text(entry.created_at),
        split=None if split is None else split_sides(split),
        guard=None
        if guard is None
        else GuardReply(metric=guard.metric, worseBy=guard.worse_by, minimum=guard.minimum),
        rolledBack=None if split is None else rolled_back_reply(split.rolled_back),
    )


class TagRoutes:
    def __init__(self, flow_service: FlowService, rollouts: Rollouts) -> None:
        self._flow_service = flow_service
        self._rollouts = rollouts

    async def put_tag(self, call: Call) -> Response:
        body, tag, flow_id = call.parse(_PUT), call.path("tag"), call.path("flow_id")

        def respond(flow: FlowRecord) -> FinalReply:
            return FinalReply(200, orjson.dumps(tag_reply(find_tag(flow, tag))))

        if body.version_id is not None:
            reply = await self._flow_service.move_tag(
                call.tenant_id,
                flow_id,
                tag=tag,
                version_id=body.version_id,
                moved_by=body.updated_by,
                respond=respond,
                idempotency=call.idempotency,
            )
        else:
            guard = body.guard
            order = SplitOrder(
                tag,
                tuple(ShareOrder(side.version_id, side.weight) for side in body.split or ()),
                body.updated_by,
                None if guard is None else Guard(guard.metric, guard.worse_by, guard.minimum),
            )
            reply = await self._flow_service.split_tag(
                call.tenant_id, flow_id, order, respond=respond, idempotency=call.idempotency
            )
            if guard is not None:
                await self._rollouts.judge(call.tenant_id, flow_id, tag)
        return answer_response(reply)

    async def get_outcomes(self, call: Call) -> Response:
        return json_response(
            await self._rollouts.outcomes(call.tenant_id, call.path("flow_id"), call.path("tag"))
        )

    def endpoints(self) -> list[Endpoint]:
        return [
            for_designers(
                "PUT /flows/{flow_id}/tags/{tag}",
                self.put_tag,
                "Point a tag at a version, or share its new conversations out among several",
                TagReply,
                body=_PUT,
                problems=(404, 409),
                keyed=True,
                body_example={"versionId": "health-booking-v1", "updatedBy": "ada"},
            ),
            for_designers(
                "GET /flows/{flow_id}/tags/{tag}/outcomes",
                self.get_outcomes,
                "What came of a split tag's conversations, by version, with 95 % intervals",
                OutcomesReply,
                problems=(404,),
            ),
        ]
