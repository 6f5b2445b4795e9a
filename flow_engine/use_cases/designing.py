"""A designer's document from its check to its place among a flow's versions (F2, F9, F27)."""

import asyncio
from dataclasses import dataclass

from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.ports.clock import Clock
from flow_engine.use_cases.flow_service import FlowService, Respond
from flow_engine.use_cases.submissions import Submission, Submissions


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

    async def save(
        self,
        tenant_id: str,
        flow_id: str,
        submission: Submission,
        respond: Respond,
        *,
        parent_version_id: str | None = None,
        tag: str | None = None,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Save what was checked. Raises what `FlowService.save_version` raises."""
        return await self.flows.save_version(
            tenant_id,
            flow_id,
            document=submission.document,
            entry=submission.entry,
            parent_version_id=parent_version_id,
            tag=tag,
            respond=respond,
            idempotency=idempotency,
        )

    async def free_id(self, tenant_id: str, submission: Submission) -> Submission:
        """The submission, under a new id where a version of the tenant has the one that it came with: it was
        read from a saved version and edited."""
        if await self.flows.has_version(tenant_id, submission.entry.version_id):
            return self.submissions.renewed(submission)
        return submission
