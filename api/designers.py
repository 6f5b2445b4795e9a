"""Routes for those who design flows (F27)."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import orjson
from pydantic import TypeAdapter, WithJsonSchema
from starlette.responses import Response
from typing_extensions import TypedDict

from api.bodies import CreateFlow, RenameFlow
from api.endpoints import (
    FLAG,
    FLOW_VERSION,
    JSON,
    NEW_FLOW_VERSION,
    Call,
    Endpoint,
    Parameter,
    answer_response,
    for_designers,
    json_response,
    one_of,
    whole,
)
from api.problems import FindingReply, findings_reply
from api.tags import TagReply, tag_reply
from flow_engine.documents import VersionDifference, difference
from flow_engine.errors import CorrectTheInput
from flow_engine.idempotency import FinalReply
from flow_engine.ports.flow_store import FlowRecord
from flow_engine.use_cases.designing import Designing
from flow_engine.use_cases.flow_overview import FlowHistoryReply, VersionRowReply, flow_history
from flow_engine.values import utc_text
from flow_engine.vocabulary import CHANNELS


class FlowReply(TypedDict):
    """`updatedAt` is of the flow itself, `savedAt` of the version that was saved last; `drafts` counts."""

    id: str
    name: str
    campaignId: str
    templateId: None
    updatedAt: str
    updatedBy: str
    savedAt: str | None
    savedBy: str | None
    drafts: int
    tags: Sequence[TagReply]


class FlowCreated(TypedDict):
    id: str


class VersionSaved(TypedDict):
    versionId: str
    warnings: Sequence[FindingReply]


class Verdict(TypedDict):
    """`errors` are what a save would refuse, `too_large` and `too_deep` among them."""

    valid: bool
    errors: Sequence[FindingReply]
    warnings: Sequence[FindingReply]


CHANGES, CHANGES_AT_MOST = 200, 6_000
_VERSIONS = "/flows/{flow_id}/versions"
_CREATE = TypeAdapter(CreateFlow)
_RENAME = TypeAdapter(RenameFlow)
_SAVED = Annotated[dict[str, object], WithJsonSchema({"$comment": FLOW_VERSION})]
_NEW = TypeAdapter(Annotated[dict[str, object], WithJsonSchema({"$comment": NEW_FLOW_VERSION})])


class DesignerRoutes:
    def __init__(self, designing: Designing) -> None:
        self._designing = designing
        self._flow_service = designing.flows

    async def list_flows(self, call: Call) -> Response:
        flows = await self._flow_service.list_flows(
            call.tenant_id, campaign_id=call.query("campaignId"), channel=call.choice("channel", CHANNELS)
        )
        return json_response([_flow(flow) for flow in flows])

    async def create_flow(self, call: Call) -> Response:
        body = call.parse(_CREATE)
        reply = await self._flow_service.create_flow(
            call.tenant_id,
            name=body.name,
            campaign_id=body.campaign_id,
            schema_version=body.schema_version,
            updated_by=body.updated_by,
            respond=lambda flow: FinalReply(201, orjson.dumps(FlowCreated(id=flow.flow_id))),
            idempotency=call.idempotency,
        )
        return answer_response(reply)

    async def rename_flow(self, call: Call) -> Response:
        body = call.parse(_RENAME)
        reply = await self._flow_service.rename_flow(
            call.tenant_id,
            call.path("flow_id"),
            name=body.name,
            updated_by=body.updated_by,
            respond=lambda flow: FinalReply(200, orjson.dumps(_flow(flow))),
            idempotency=call.idempotency,
        )
        return answer_response(reply)

    async def history(self, call: Call) -> Response:
        limit = call.limit(CHANGES, at_most=CHANGES_AT_MOST)
        flow = await self._flow_service.get_flow(call.tenant_id, call.path("flow_id"))
        return json_response(flow_history(flow, at_most=limit))

    async def list_versions(self, call: Call) -> Response:
        rows = await self._flow_service.list_versions(
            call.tenant_id, call.path("flow_id"), only_tagged=call.flag("onlyTaggedVersions")
        )
        return json_response(rows)

    async def get_version(self, call: Call) -> Response:
        document = await self._flow_service.get_version_document(
            call.tenant_id, call.path("flow_id"), call.path("version_id")
        )
        return Response(document, media_type=JSON)

    async def compare_versions(self, call: Call) -> Response:
        before, after = [
            await self._designing.document(call.tenant_id, call.path("flow_id"), call.path(name))
            for name in ("version_id", "other_version_id")
        ]
        return json_response(await asyncio.to_thread(difference, before, after))

    async def save_version(self, call: Call) -> Response:
        submission = await self._designing.check(call.path("flow_id"), call.body, author=call.principal.name)
        warnings = findings_reply(submission.warnings)
        reply = await self._designing.save(
            call.tenant_id,
            call.path("flow_id"),
            submission,
            lambda id: FinalReply(201, orjson.dumps(VersionSaved(versionId=id, warnings=warnings))),
            parent_version_id=call.query("parentVersionId"),
            tag=call.query("tag"),
            idempotency=call.idempotency,
        )
        return answer_response(reply)

    async def validate_version(self, call: Call) -> Response:
        flow = await self._flow_service.get_flow(call.tenant_id, call.path("flow_id"))
        try:
            submission = await self._designing.check(flow.flow_id, call.body, author=call.principal.name)
        except CorrectTheInput as refused:
            if refused.code == "json_invalid":
                raise
            return json_response(Verdict(valid=False, errors=findings_reply(refused.findings), warnings=[]))
        return json_response(Verdict(valid=True, errors=[], warnings=findings_reply(submission.warnings)))

    def _flows_themselves(self) -> list[Endpoint]:
        return [
            for_designers(
                "GET /flows",
                self.list_flows,
                "Flows with their tags",
                list[FlowReply],
                scopes=("designer", "agent"),
                parameters=(
                    Parameter("campaignId", "Only flows of this campaign"),
                    Parameter(
                        "channel", "Only flows with a tagged version for this channel", one_of(CHANNELS)
                    ),
                ),
            ),
            for_designers(
                "POST /flows",
                self.create_flow,
                "Create a flow without versions",
                FlowCreated,
                body=_CREATE,
                status=201,
                problems=(409,),
                keyed=True,
                body_example={"name": "Bookings", "campaignId": "clinic", "updatedBy": "ada"},
            ),
            for_designers(
                "PATCH /flows/{flow_id}",
                self.rename_flow,
                "Rename a flow",
                FlowReply,
                body=_RENAME,
                problems=(404, 409),
                keyed=True,
                body_example={"name": "Bookings 2026", "updatedBy": "ada"},
            ),
        ]

    def endpoints(self) -> list[Endpoint]:
        return [
            *self._flows_themselves(),
            for_designers(
                "GET /flows/{flow_id}/history",
                self.history,
                "Who saved which version and moved which tag when, the latest first",
                FlowHistoryReply,
                scopes=("designer", "operator"),
                parameters=(
                    Parameter(
                        "limit", f"At most so many changes, {CHANGES} if not given", whole(1, CHANGES_AT_MOST)
                    ),
                ),
                problems=(404,),
            ),
            *self._reading_versions(),
            *self._writing_versions(),
        ]

    def _reading_versions(self) -> list[Endpoint]:
        return [
            for_designers(
                f"GET {_VERSIONS}",
                self.list_versions,
                "Versions of a flow, a row for every version and tag",
                list[VersionRowReply],
                scopes=("designer", "agent"),
                parameters=(Parameter("onlyTaggedVersions", "Leave untagged versions out", FLAG),),
                problems=(404,),
            ),
            for_designers(
                f"GET {_VERSIONS}/{{version_id}}",
                self.get_version,
                "A version's document as it was saved",
                _SAVED,
                problems=(404,),
            ),
            for_designers(
                f"GET {_VERSIONS}/{{version_id}}/diff/{{other_version_id}}",
                self.compare_versions,
                "What the second version changes of the first, by ids",
                VersionDifference,
                problems=(404,),
            ),
        ]

    def _writing_versions(self) -> list[Endpoint]:
        return [
            for_designers(
                f"POST {_VERSIONS}",
                self.save_version,
                "Save a new version",
                VersionSaved,
                parameters=(
                    Parameter("parentVersionId", "The version that this one was made from"),
                    Parameter("tag", "A tag to save it under"),
                ),
                body=_NEW,
                status=201,
                problems=(404, 409),
                keyed=True,
            ),
            for_designers(
                f"POST {_VERSIONS}/validate",
                self.validate_version,
                "What saving this document would say, without saving it",
                Verdict,
                body=_NEW,
                problems=(404,),
            ),
        ]


def _flow(flow: FlowRecord) -> FlowReply:
    newest = flow.versions[-1] if flow.versions else None
    return FlowReply(
        id=flow.flow_id,
        name=flow.name,
        campaignId=flow.campaign_id,
        templateId=None,
        updatedAt=utc_text(flow.updated_at),
        updatedBy=flow.updated_by,
        savedAt=None if newest is None else utc_text(newest.created_at),
        savedBy=None if newest is None else newest.created_by,
        drafts=sum(entry.draft for entry in flow.versions),
        tags=[tag_reply(entry) for entry in flow.tags],
    )
