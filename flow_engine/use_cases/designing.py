"""A designer's document from its check to its place among a flow's versions (F2, F9, F27)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson
from pydantic_core import to_json

from flow_engine.documents import Change, MergedVersion, Side, difference, merged, nearest_version
from flow_engine.documents.parsing import check_shape
from flow_engine.errors import CorrectTheInput, Finding, ReloadAndDecide
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.json_values import as_object
from flow_engine.ports.clock import Clock
from flow_engine.ports.flow_store import FlowRecord
from flow_engine.use_cases import publishing
from flow_engine.use_cases.flow_overview import common_version
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.submissions import Submission, Submissions

MOST_MADE_FROM = 10
"""Versions among which the one that a document and another version were both made from is looked for."""


@dataclass(frozen=True, slots=True)
class Designing:
    """Documents are bytes of JSON in UTF-8; `author` is the name of the key that sends them."""

    flows: FlowService
    submissions: Submissions
    clock: Clock

    async def check(self, flow_id: str, document: bytes, *, author: str) -> Submission:
        """In a thread: a large document takes a second to check, and conversations go on meanwhile. Raises
        CorrectTheInput with every error at once."""
        return await asyncio.to_thread(
            self.submissions.check, document, flow_id=flow_id, created_by=author, now=self.clock.now()
        )

    async def check_as_version(
        self, flow_id: str, document: Mapping[str, object], *, author: str, draft: bool = False
    ) -> Submission:
        """`check` of a document, a draft's too, as the version that it would become, or as a draft. Raises as
        `check`."""
        return await self.check(flow_id, to_json({**document, "draft": draft}), author=author)

    async def document(self, tenant_id: str, flow_id: str, version_id: str) -> Mapping[str, object]:
        """A version's document as JSON values. Raises LookElsewhere `flow_unknown`, `version_unknown`."""
        return as_object(orjson.loads(await self.flows.get_version_document(tenant_id, flow_id, version_id)))

    async def named(self, tenant_id: str, flow_id: str, name: str | None) -> tuple[FlowRecord, str]:
        """A flow, and the id of its version that `name` is the id or the tag of, or that was saved last.
        Raises LookElsewhere `flow_unknown`, CorrectTheInput `version_missing` for a flow without versions."""
        flow = await self.flows.get_flow(tenant_id, flow_id)
        if name is None:
            if not flow.versions:
                message = f"flow {flow.flow_id!r} has no version yet"
                raise CorrectTheInput("version_missing", message, [Finding("", "empty", message)])
            return flow, flow.versions[-1].version_id
        by_tag = {entry.tag: entry.version_id for entry in flow.tags}
        return flow, name if publishing.lists_version(flow, name) else by_tag.get(name, name)

    async def submitted(
        self,
        tenant_id: str,
        flow_id: str,
        document: Mapping[str, object] | None,
        name: str | None,
        *,
        author: str,
        draft: bool = False,
    ) -> tuple[FlowRecord, Submission]:
        """A flow, and what is checked of it as by `check_as_version`: the document where there is one, else
        the version that `name` names as for `named`. Raises as those two, and as `document`."""
        if document is None:
            flow, version_id = await self.named(tenant_id, flow_id, name)
            document = await self.document(tenant_id, flow.flow_id, version_id)
        else:
            flow = await self.flows.get_flow(tenant_id, flow_id)
        return flow, await self.check_as_version(flow_id, document, author=author, draft=draft)

    async def merge(
        self,
        tenant_id: str,
        flow_id: str,
        document: Mapping[str, object],
        *,
        made_from: Sequence[str],
        other_id: str,
        choices: Mapping[str, Side],
    ) -> tuple[str, MergedVersion, Sequence[Change]]:
        """A document that is not saved, merged with the version `other_id`: over which version, with what,
        and what that changes of the document. `made_from` are the versions that the work on it has been, the
        latest last.

        No list tells which draft a draft was made from. So the base is the one of these, and of what the
        latest has in common with the other version, that the other one changes least. Raises LookElsewhere
        `flow_unknown`, `version_unknown`, CorrectTheInput what `check_shape` raises.
        """
        check_shape(document)
        flow = await self.flows.get_flow(tenant_id, flow_id)
        try:
            lineage = [common_version(flow, made_from[-1], other_id), *made_from]
        except ReloadAndDecide:  # `no_common_version`
            lineage = [*made_from]
        versions = {id: await self.document(tenant_id, flow_id, id) for id in lineage}
        other = await self.document(tenant_id, flow_id, other_id)

        def found() -> tuple[str, MergedVersion, Sequence[Change]]:
            base = nearest_version(other, versions)
            both = merged(versions[base], document, other, choices)
            return base, both, difference(document, both["document"])["changes"]

        return await asyncio.to_thread(found)

    async def save(
        self,
        tenant_id: str,
        flow_id: str,
        submission: Submission,
        respond: Callable[[str], FinalReply],
        *,
        parent_version_id: str | None = None,
        tag: str | None = None,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Save what was checked, under a new id where the one that it came with is taken: it was read from a
        saved version and edited. `respond` makes the reply of the version's id. Raises what
        `FlowService.save_version` raises, without `version_exists`."""

        async def saved(under: Submission) -> FinalReply:
            return await self.flows.save_version(
                tenant_id,
                flow_id,
                document=under.document,
                entry=under.entry,
                parent_version_id=parent_version_id,
                tag=tag,
                respond=lambda _: respond(under.entry.version_id),
                idempotency=idempotency,
            )

        try:
            return await saved(submission)
        except ReloadAndDecide as refused:
            # Told by the write: of several saves that bring the same id, each could see it free before.
            if refused.code != "version_exists":
                raise
        return await saved(self.submissions.renewed(submission))
