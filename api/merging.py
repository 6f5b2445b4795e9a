"""Routes that merge versions of a flow: stored ones, and work that is not saved with one of them."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter
from starlette.responses import Response

from api.bodies import Body, Id
from api.endpoints import Call, Endpoint, Parameter, for_designers, json_response
from flow_engine.documents import Change, MergedVersion, Side, merged
from flow_engine.use_cases.designing import MOST_MADE_FROM, Designing
from flow_engine.use_cases.flow_overview import common_version


class MergeReply(MergedVersion):
    baseVersionId: str


class WorkMergeReply(MergeReply):
    """`changes` are what the merged document changes of the one that was sent."""

    changes: Sequence[Change]


class MergeWork(Body):
    """`document` is not saved; `madeFrom` are the versions that the work on it has been, the latest last.
    `choices` are the sides that are taken of conflicts, by their paths: `ours` is the document's."""

    document: dict[str, object]
    made_from: Annotated[list[Id], Field(min_length=1, max_length=MOST_MADE_FROM)]
    choices: dict[str, Side] = Field(default_factory=dict[str, Side])


_VERSION = "/flows/{flow_id}/versions/{version_id}"
_WORK = TypeAdapter(MergeWork)


class MergeRoutes:
    def __init__(self, designing: Designing) -> None:
        self._designing = designing

    async def merge_versions(self, call: Call) -> Response:
        flow_id, ours, theirs = (call.path(name) for name in ("flow_id", "version_id", "other_version_id"))
        base = call.query("baseVersionId") or common_version(
            await self._designing.flows.get_flow(call.tenant_id, flow_id), ours, theirs
        )
        over, own, other = [
            await self._designing.document(call.tenant_id, flow_id, id) for id in (base, ours, theirs)
        ]
        found = await asyncio.to_thread(merged, over, own, other)
        return json_response(MergeReply(baseVersionId=base, **found))

    async def merge_work(self, call: Call) -> Response:
        work = call.parse(_WORK)
        base, found, changes = await self._designing.merge(
            call.tenant_id,
            call.path("flow_id"),
            work.document,
            made_from=work.made_from,
            other_id=call.path("version_id"),
            choices=work.choices,
        )
        return json_response(WorkMergeReply(baseVersionId=base, changes=changes, **found))

    def endpoints(self) -> list[Endpoint]:
        return [
            for_designers(
                f"GET {_VERSION}/merge/{{other_version_id}}",
                self.merge_versions,
                "What both versions change of the one that they were made from, in one document",
                MergeReply,
                parameters=(
                    Parameter("baseVersionId", "Instead of the nearest version that both were made from"),
                ),
                problems=(404, 409),
            ),
            for_designers(
                f"POST {_VERSION}/merge",
                self.merge_work,
                "The same of a document that is not saved and this version",
                WorkMergeReply,
                body=_WORK,
                problems=(404,),
                body_example={"document": {"draft": True}, "madeFrom": ["health-booking-v1"]},
            ),
        ]
