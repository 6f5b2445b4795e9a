"""Compiled versions by content hash, kept in this process and backed by two stores (F13).

A conversation needs the flow store only when it starts: from then on its version's document is under
its own key beside the conversations.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import msgspec

from flow_engine.documents import content_hash, parse_json
from flow_engine.errors import CallTheOperator, CorrectTheInput, LookElsewhere, RetryLater
from flow_engine.ports.flow_store import DefinitionStore
from flow_engine.runtime.compiled import CompiledFlow, compile_flow
from flow_engine.runtime.kept import Kept
from flow_engine.runtime.mining_state import Rollout
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.publishing import find_tag
from flow_engine.use_cases.splits import chosen_version

CompiledKey = tuple[str, str]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class VersionInUse:
    """A compiled version with its document, as it is put back when its key has gone. `document` are its bytes
    of JSON."""

    flow: CompiledFlow
    document: bytes


@dataclass(frozen=True, slots=True)
class StartableVersion:
    """`rollout`: the split that chose it."""

    version: VersionInUse
    campaign_id: str
    rollout: Rollout | None = None


class VersionChoice(msgspec.Struct, frozen=True):
    """Which version a new conversation runs on: by id, or by flow and tag. Ids have 1 to 512 characters."""

    version_id: str | None = None
    flow_id: str | None = None
    tag: str | None = None


class Versions(Protocol):
    """The compiled versions that steps run on. Raises as `VersionsInUse`."""

    async def to_start(
        self, tenant_id: str, choice: VersionChoice, subject: str = ""
    ) -> StartableVersion: ...

    async def pinned(self, tenant_id: str, version_id: str, wanted_hash: str) -> VersionInUse: ...

    async def keep_definition(self, tenant_id: str, version: VersionInUse) -> None: ...


class VersionsInUse:
    """Implements `Versions`. `capacity` bounds the compiled versions kept; the least recently used goes
    first."""

    def __init__(
        self, flow_service: FlowService, definitions: DefinitionStore, *, capacity: int = 256
    ) -> None:
        self._flow_service = flow_service
        self._definitions = definitions
        self._compiled = Kept[CompiledKey, VersionInUse](capacity)
        self._compiling: dict[CompiledKey, asyncio.Future[VersionInUse]] = {}
        self._opening: dict[tuple[str | bytes, ...], asyncio.Future[VersionInUse]] = {}
        self._startable = Kept[tuple[str, str], StartableVersion](capacity)

    @property
    def kept(self) -> int:
        """How many compiled versions are in memory now."""
        return len(self._compiled)

    @property
    def compiling(self) -> int:
        """How many versions are being compiled now, in threads."""
        return len(self._compiling)

    async def to_start(self, tenant_id: str, choice: VersionChoice, subject: str = "") -> StartableVersion:
        """The version to start a conversation on, named by its id or by flow and tag (F6, F28); on which side
        of a split tag, follows from the `subject`. Raises LookElsewhere `version_unknown`, `flow_unknown`,
        `tag_unknown`, ReloadAndDecide `version_is_draft`. A first start takes seconds."""
        rollout, version_id = None, choice.version_id
        if version_id is None:
            flow_record = await self._flow_service.get_flow(tenant_id, choice.flow_id or "")
            entry = find_tag(flow_record, choice.tag or "")
            version_id = chosen_version(flow_record.flow_id, entry, subject)
            rollout = None if entry.split is None else Rollout(split_id=entry.split.split_id, tag=entry.tag)
        known = self._startable.get((tenant_id, version_id))
        if known is None:
            # Each asks the flow store for itself: what has just been saved is found by who comes next.
            stored, record = await self._flow_service.find_listed(tenant_id, version_id)

            async def prepared() -> VersionInUse:
                version = await self.of_document(tenant_id, stored.document)
                await self.keep_definition(tenant_id, version)
                startable = StartableVersion(version, record.campaign_id)
                self._startable.put((tenant_id, version_id), startable)  # known before it is not under way
                return version

            known = self._startable.get((tenant_id, version_id)) or StartableVersion(
                await _once(self._opening, (tenant_id, stored.document), prepared), record.campaign_id
            )
        return known if rollout is None else replace(known, rollout=rollout)

    async def pinned(self, tenant_id: str, version_id: str, wanted_hash: str) -> VersionInUse:
        """The very version that a conversation was started on, whatever has been published since.

        Raises CallTheOperator `definition_lost` when neither store holds that content any more.
        """
        known = self._compiled.get((tenant_id, wanted_hash))
        if known is not None:
            return known
        return await _once(
            self._opening,
            (tenant_id, version_id, wanted_hash),
            lambda: self._reopen(tenant_id, version_id, wanted_hash),
        )

    async def _reopen(self, tenant_id: str, version_id: str, wanted_hash: str) -> VersionInUse:
        document = await self._definitions.get(tenant_id, wanted_hash)
        if document is not None:
            return await self._compile(tenant_id, document, wanted_hash)
        try:
            stored = await self._flow_service.find_version(tenant_id, version_id)
        except LookElsewhere as error:
            raise _definition_lost(version_id) from error
        digest, raw = await asyncio.to_thread(_parsed, stored.document)
        if digest != wanted_hash:
            raise _definition_lost(version_id)
        restored = await self._compile(tenant_id, stored.document, wanted_hash, raw)
        await self.keep_definition(tenant_id, restored)
        return restored

    async def of_document(self, tenant_id: str, document: bytes) -> VersionInUse:
        """A version that is stored nowhere, by its document: checked JSON. Kept compiled as others are.
        Raises RetryLater `version_of_newer_release`. A first compilation takes up to seconds."""
        digest, raw = await asyncio.to_thread(_parsed, document)
        return await self._compile(tenant_id, document, digest, raw)

    async def keep_definition(self, tenant_id: str, version: VersionInUse) -> None:
        await self._definitions.put(
            tenant_id, version.flow.content_hash, version.document, version.flow.lifetime_s
        )

    async def _compile(
        self, tenant_id: str, document: bytes, digest: str, raw: object = None
    ) -> VersionInUse:
        """In a thread, since a large version takes seconds, and once for all who wait for the same. `raw` is
        the document decoded, if that is at hand.

        Raises RetryLater `version_of_newer_release`, and ReloadAndDecide `version_is_draft`.
        """
        key = (tenant_id, digest)
        known = self._compiled.get(key)  # who comes a moment later finds what the others have waited for
        if known is not None:
            return known

        async def compiled() -> VersionInUse:
            version = await asyncio.to_thread(_compiled, document, digest, raw)
            self._compiled.put(key, version)
            return version

        return await _once(self._compiling, key, compiled)


async def _once(
    under_way: dict[_Key, asyncio.Future[_Value]],
    key: _Key,
    work: Callable[[], Coroutine[Any, Any, _Value]],
) -> _Value:
    """What `work` comes to, done once for all who ask while it is under way, its failure too. Who stops
    waiting does not take it from the others."""

    async def done() -> _Value:
        try:
            return await work()
        finally:
            del under_way[key]

    if key not in under_way:
        under_way[key] = asyncio.ensure_future(done())
    return await asyncio.shield(under_way[key])


def _parsed(document: bytes) -> tuple[str, object]:
    """Its content hash, and the document decoded."""
    raw = parse_json(document)
    return content_hash(raw), raw


def _compiled(document: bytes, digest: str, raw: object) -> VersionInUse:
    try:
        return VersionInUse(compile_flow(parse_json(document) if raw is None else raw, digest), document)
    except CorrectTheInput as refused:
        raise RetryLater(
            "version_of_newer_release",
            "this replica's release cannot read the version; one that is updated already can",
        ) from refused


def _definition_lost(version_id: str) -> CallTheOperator:
    return CallTheOperator(
        "definition_lost",
        f"the content of version {version_id!r} that this conversation runs on is in neither store",
    )
