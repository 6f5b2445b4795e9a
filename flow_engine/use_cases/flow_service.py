"""The designers' use cases: flows, their versions and their tags, over the ports.

A flow's record is the unit of change. It is replaced only over the revision that was read; who was
slower runs the rules again on the fresh record, so a refusal always speaks of the state that is there.

A save writes twice, in this order: the version's document, then the flow's record, which lists the
version together with its tags. A version exists only once its flow lists it, so whatever fails between
the two leaves a document that nobody can see, and never a version without its tags (F7).

Every mutation takes `respond`, which makes the reply from the record as it will be stored, and answers
with that reply, or with the one that the same request got earlier under its idempotency key (F15). That
reply is part of the record that the mutation changes: there is no moment in which the change is made and its
reply is not known. A key is therefore scoped to one flow. Only successes are kept: a refusal changes
nothing, and may be right to ask again.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from flow_engine.errors import CallTheOperator, FlowEngineError, LookElsewhere, ReloadAndDecide
from flow_engine.idempotency import FinalReply, IdempotencyKey, KeptReply
from flow_engine.ports import flow_store
from flow_engine.ports.clock import Clock
from flow_engine.use_cases import publishing
from flow_engine.use_cases.flow_overview import VersionRowReply, supports_channel, version_rows

Respond = Callable[[flow_store.FlowRecord], FinalReply]

KEPT_FOR = timedelta(hours=24)
# A flow's record is read and written whole, and a MongoDB document ends at 16 MB. Whoever sends more
# keyed changes of one flow in a day loses the oldest replies first; the newest is always kept.
MAX_REPLIES = 500
MAX_BYTES = 1_000_000

ATTEMPTS = 20
"""How often a mutation starts again because another one was faster, before it gives up with a 409."""


class FlowService:
    """What designers may do with the flows of a tenant. Every id of another tenant is unknown here.

    Each method raises RetryLater when the store is away, and LookElsewhere (`flow_unknown`) when the tenant
    has no such flow. Mutations raise CorrectTheInput (`idempotency_key_reused`) and ReloadAndDecide
    (`flow_changed_meanwhile`) besides what is said at each. Documents are bytes of JSON.
    """

    def __init__(
        self,
        *,
        flows: flow_store.FlowStore,
        versions: flow_store.VersionStore,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._flows = flows
        self._versions = versions
        self._clock = clock
        self._new_id = new_id

    # --- questions ----------------------------------------------------------------------------

    async def list_flows(
        self, tenant_id: str, *, campaign_id: str | None = None, channel: str | None = None
    ) -> tuple[flow_store.FlowRecord, ...]:
        """Flows by name; of one campaign, and with a tagged version for `channel`, where given."""
        flows = await self._flows.list(tenant_id, campaign_id)
        kept = (flow for flow in flows if channel is None or supports_channel(flow, channel))
        return tuple(sorted(kept, key=lambda flow: (flow.name, flow.flow_id)))

    async def get_flow(self, tenant_id: str, flow_id: str) -> flow_store.FlowRecord:
        flow = await self._flows.get(tenant_id, flow_id)
        if flow is None:
            raise LookElsewhere("flow_unknown", f"there is no flow {flow_id!r}")
        return flow

    async def list_versions(
        self, tenant_id: str, flow_id: str, *, only_tagged: bool = False
    ) -> Sequence[VersionRowReply]:
        return version_rows(await self.get_flow(tenant_id, flow_id), only_tagged=only_tagged)

    async def get_version_document(self, tenant_id: str, flow_id: str, version_id: str) -> bytes:
        """The document byte for byte as saved. Raises LookElsewhere (`version_unknown`)."""
        flow = await self.get_flow(tenant_id, flow_id)
        publishing.find_entry(flow, version_id)
        version = await self._versions.get(tenant_id, version_id)
        if version is None:
            raise CallTheOperator(
                "version_document_missing",
                f"version {version_id!r} is listed, but its document is not stored",
            )
        return version.document

    async def find_version(self, tenant_id: str, version_id: str) -> flow_store.StoredVersion:
        """A version by its id alone. Raises LookElsewhere (`version_unknown`), also for an unlisted one. Its
        bytes of JSON are as they were saved."""
        return (await self.find_listed(tenant_id, version_id))[0]

    async def find_listed(
        self, tenant_id: str, version_id: str
    ) -> tuple[flow_store.StoredVersion, flow_store.FlowRecord]:
        """`find_version` with the flow that lists it. Raises the same."""
        version = await self._versions.get(tenant_id, version_id)
        flow = None if version is None else await self._flows.get(tenant_id, version.flow_id)
        if version is None or flow is None or not publishing.lists_version(flow, version_id):
            raise LookElsewhere("version_unknown", f"there is no version {version_id!r}")
        return version, flow

    # --- mutations ----------------------------------------------------------------------------

    async def create_flow(
        self,
        tenant_id: str,
        *,
        name: str,
        campaign_id: str,
        schema_version: str,
        updated_by: str,
        respond: Respond,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Create a flow without versions.

        With a key the flow's id follows from tenant and key, so that a repeated request finds the flow and
        its reply. A key may come again with a new request once its reply has expired: the id that it leads to
        is taken then, and the next one in the key's sequence is tried. The key counts for 24 hours. Raises
        ReloadAndDecide `flow_id_taken`.
        """
        for attempt in range(ATTEMPTS):
            now = self._clock.now()
            flow_id = self._new_id()
            if idempotency is not None:
                derived = json.dumps([tenant_id, idempotency.key, attempt]).encode()
                flow_id = hashlib.sha256(derived).hexdigest()[:32]
            flow = flow_store.FlowRecord(flow_id, name, campaign_id, schema_version, updated_by, now)
            reply = respond(flow)
            if await self._flows.insert(tenant_id, keep_reply(flow, idempotency, reply, now)):
                return reply
            earlier = find_reply(await self.get_flow(tenant_id, flow_id), idempotency, now)
            if earlier is not None:
                return earlier
        raise ReloadAndDecide("flow_id_taken", "no free id was found for the new flow: send it without a key")

    async def rename_flow(
        self,
        tenant_id: str,
        flow_id: str,
        *,
        name: str,
        updated_by: str,
        respond: Respond,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        change = partial(publishing.rename, name=name, updated_by=updated_by)
        return await self._commit(tenant_id, flow_id, change, respond, idempotency)

    async def save_version(
        self,
        tenant_id: str,
        flow_id: str,
        *,
        document: bytes,
        entry: flow_store.VersionEntry,
        parent_version_id: str | None,
        tag: str | None,
        respond: Respond,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Save a completed and checked document under `entry.version_id`; its tags follow from F6.

        Raises what `publishing.place_version` raises; `version_exists` also when another document was left
        under that id by a save that did not come to its end. Such a document is never written over: the save
        that left it may only be slow, and about to list it. `document` are bytes of JSON.
        """
        stored = flow_store.StoredVersion(entry.version_id, flow_id, document)
        change = partial(
            publishing.place_version, version=entry, parent_version_id=parent_version_id, tag=tag
        )
        return await self._commit(tenant_id, flow_id, change, respond, idempotency, document=stored)

    async def move_tag(
        self,
        tenant_id: str,
        flow_id: str,
        *,
        tag: str,
        version_id: str,
        moved_by: str,
        respond: Respond,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Promote or roll back. Raises what `publishing.move_tag` raises."""
        change = partial(publishing.move_tag, tag=tag, version_id=version_id, moved_by=moved_by)
        return await self._commit(tenant_id, flow_id, change, respond, idempotency)

    async def split_tag(
        self,
        tenant_id: str,
        flow_id: str,
        order: publishing.SplitOrder,
        *,
        respond: Respond,
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Share a tag's new conversations out. Raises what `publishing.split_tag` raises."""
        change = partial(publishing.split_tag, order=order, new_id=self._new_id())
        return await self._commit(tenant_id, flow_id, change, respond, idempotency)

    async def roll_back(
        self, tenant_id: str, flow_id: str, tag: str, split_id: str, rolled_back: flow_store.RolledBack
    ) -> bool:
        """End a split's sharing out for its guard. False where that was done, or the split is over. Raises
        ReloadAndDecide `flow_changed_meanwhile`. Times in UTC."""
        for _ in range(ATTEMPTS):
            flow = await self.get_flow(tenant_id, flow_id)
            changed = publishing.roll_back(flow, tag, split_id, rolled_back)
            if changed is None:
                return False
            if await self._flows.replace(tenant_id, changed, flow.revision):
                return True
        raise _changed_meanwhile(flow_id)

    # --- how a change is stored ---------------------------------------------------------------

    async def _commit(
        self,
        tenant_id: str,
        flow_id: str,
        change: Callable[[flow_store.FlowRecord, datetime], flow_store.FlowRecord],
        respond: Respond,
        idempotency: IdempotencyKey | None,
        *,
        document: flow_store.StoredVersion | None = None,
    ) -> FinalReply:
        """Apply `change` to the newest record. Nothing stays written when the rules refuse it."""
        left_behind: flow_store.StoredVersion | None = None  # stored by this call, and listed by no flow yet
        for _ in range(ATTEMPTS):
            flow = await self.get_flow(tenant_id, flow_id)
            now = self._clock.now()
            earlier = find_reply(flow, idempotency, now)
            try:
                changed = flow if earlier is not None else change(flow, now)
            except FlowEngineError:
                await self._take_back(tenant_id, flow, left_behind)
                raise
            if earlier is not None:
                await self._take_back(tenant_id, flow, left_behind)
                return earlier
            if document is not None:
                # The very same one is there where an earlier attempt has left it.
                if await self._versions.insert(tenant_id, document):
                    left_behind = document
                elif await self._versions.get(tenant_id, document.version_id) != document:
                    raise ReloadAndDecide(
                        "version_exists",
                        f"another document is stored as {document.version_id!r}: leave `_id` out, or give a "
                        "new one",
                        state={"versionId": document.version_id},
                    )
            reply = respond(changed)
            changed = keep_reply(changed, idempotency, reply, now)
            if await self._flows.replace(tenant_id, changed, flow.revision):
                return reply
        await self._take_back(tenant_id, await self.get_flow(tenant_id, flow_id), left_behind)
        raise _changed_meanwhile(flow_id)

    async def _take_back(
        self, tenant_id: str, flow: flow_store.FlowRecord, version: flow_store.StoredVersion | None
    ) -> None:
        """Free the id of a save that was refused after its document had been stored; not where another save
        of the very same document has listed it meanwhile."""
        if version is not None and not publishing.lists_version(flow, version.version_id):
            await self._versions.remove(tenant_id, version)


def _changed_meanwhile(flow_id: str) -> ReloadAndDecide:
    return ReloadAndDecide(
        "flow_changed_meanwhile",
        f"flow {flow_id!r} changed {ATTEMPTS} times before this change could be stored: send it again",
    )


def find_reply(
    flow: flow_store.FlowRecord, request: IdempotencyKey | None, now: datetime
) -> FinalReply | None:
    """The reply that this request got in the last 24 hours, or None when it is new.

    Raises CorrectTheInput (`idempotency_key_reused`) when another request came under the same key.
    """
    if request is None:
        return None
    for kept in flow.replies:
        if kept.key == request.key and now - kept.stored_at < KEPT_FOR:
            return KeptReply(kept.fingerprint, kept.status, kept.body).replay(request)
    return None


def keep_reply(
    flow: flow_store.FlowRecord, request: IdempotencyKey | None, reply: FinalReply, now: datetime
) -> flow_store.FlowRecord:
    """Forget the replies older than 24 hours, and keep this one if it came under a key; the newest that
    `MAX_BYTES` hold, at most `MAX_REPLIES`."""
    replies = [kept for kept in flow.replies if now - kept.stored_at < KEPT_FOR]
    if request is not None:
        replies = [kept for kept in replies if kept.key != request.key]
        replies.append(
            flow_store.StoredReply(request.key, request.fingerprint, reply.status, reply.body, now)
        )
    fitting: list[flow_store.StoredReply] = []
    size = 0
    for kept in reversed(replies[-MAX_REPLIES:]):
        size += len(kept.body)
        if fitting and size > MAX_BYTES:
            break
        fitting.append(kept)
    return replace(flow, replies=tuple(reversed(fitting)))
