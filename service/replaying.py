"""`flow-engine flow replay`: recordings of a file, or of the stores that the settings name, on a document."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import orjson

from flow_engine.documents import parse_json
from flow_engine.errors import CallTheOperator, CorrectTheInput, FlowEngineError, LookElsewhere
from flow_engine.json_values import as_object
from flow_engine.ports.clock import SystemClock
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.flow_store import FlowStore
from flow_engine.runtime.compiled import CompiledFlow, compile_flow
from flow_engine.runtime.platform import Platform
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.recording_format import Recording, read_recording
from flow_engine.use_cases.recordings import Recordings
from flow_engine.use_cases.replays import Replay
from flow_engine.use_cases.submissions import Submissions
from flow_engine.use_cases.versions_in_use import VersionsInUse
from flows.samples import UNNAMED_FLOW, unwrapped
from service.settings import Settings
from service.stores import kept_journal, new_id, open_flow_database, open_memory
from system_prompts.loader import load_system_prompts

ADDRESS = "http://127.0.0.1:8080"
MOST_MISTAKES = 100
"""Of a file of recordings, told at once."""
_ACCEPTED = {"json_invalid": "; accepted is one whole recording on each line"}


class Unreadable(Exception):
    """Something that was named cannot be used. Lines for standard error."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclass(frozen=True, slots=True)
class Source:
    """Where conversations come from: a `file` of recordings, a JSON object a line, or the stores of the
    settings. Of these the `last` ones of a tag."""

    settings: Settings
    file: Path | None = None
    tag: str | None = None
    last: int = 0
    tenant_id: str = "default"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document that conversations are replayed on. `flow_id` is None where its file names no flow."""

    flow: CompiledFlow
    flow_id: str | None


def candidate(path: Path, settings: Settings) -> Candidate:
    """The version of a file, a draft as if it were saved. Raises Unreadable with all that a save would
    refuse."""
    limits, shown, place = settings.document_limits, str(path), ""
    submissions = Submissions(load_system_prompts(), limits, lambda: "version")
    try:
        text = path.read_bytes()
        file = unwrapped(parse_json(text, limits), text)
        raw, place = as_object(file.version), file.place
        body = orjson.dumps({**raw, "draft": False} if raw else file.version)
        now = datetime.now(UTC)
        submission = submissions.check(
            body, flow_id=file.flow_id, created_by="replay", now=now, changed=file.changed
        )
        flow = compile_flow(orjson.loads(submission.document), submission.entry.content_hash)
    except OSError as error:
        raise Unreadable(f"{shown}: {error.strerror or 'it cannot be read'}") from None
    except CorrectTheInput as refused:
        findings = [f"{shown}:{place + f.pointer or '/'}: {f.code} {f.message}" for f in refused.findings]
        raise Unreadable(*(findings or [f"{shown}: {refused.detail}"])) from None
    return Candidate(flow, None if file.flow_id == UNNAMED_FLOW else file.flow_id)


def platform() -> Platform:
    """An installation without a service."""
    return Platform(load_system_prompts(), lambda: ADDRESS, "markdown")


def replay_on(target: Candidate, source: Source) -> Replay:
    """Every recording of the source. Raises Unreadable for one that cannot be stepped, and where there is
    none; CallTheOperator `redis_needed`, RetryLater."""
    replay = Replay(target.flow, platform())

    async def run() -> None:
        async with aclosing(_chosen(source, target.flow_id)) as recordings:
            async for place, recording in recordings:
                try:
                    await replay.add(recording)
                except FlowEngineError as problem:
                    raise Unreadable(f"{place}: {problem.code}: {problem.detail}") from problem

    asyncio.run(run())
    if not replay.rows:
        where = f"tag {source.tag!r}" if source.file is None else str(source.file)
        raise Unreadable(f"{where}: there is no conversation to replay")
    return replay


def recording_of(source: Source, conversation_id: str) -> Recording:
    """One recording of the source. Raises Unreadable where it is not there; CallTheOperator `redis_needed`,
    RetryLater."""

    async def run() -> Recording | None:
        if source.file is None:
            async with _opened(source.settings) as (recordings, _):
                return await recordings.recording(ConversationRef(source.tenant_id, conversation_id))
        found = (each for _, each in _of_file(source.file) if each.conversation_id == conversation_id)
        return next(found, None)

    try:
        found = asyncio.run(run())
    except LookElsewhere as unknown:
        raise Unreadable(unknown.detail) from None
    if found is None:
        raise Unreadable(f"{source.file}: there is no recording of {conversation_id!r}")
    return found


async def _chosen(source: Source, flow_id: str | None) -> AsyncGenerator[tuple[str, Recording]]:
    """With the place of each, for messages."""
    if source.file is not None:
        for found in _of_file(source.file):
            yield found
        return
    async with _opened(source.settings) as (recordings, flows):
        # A document may name a flow that this installation does not have: then every flow's tag is meant.
        known = flow_id is not None and await flows.get(source.tenant_id, flow_id) is not None
        for conversation in await recordings.newest(
            source.tenant_id,
            flow_id=flow_id if known else None,
            tag=source.tag or "",
            at_most=source.last,
        ):
            found = await recordings.recording(conversation, in_clear=True)  # nothing of it is shown
            yield conversation.conversation_id, found


def _of_file(file: Path) -> Iterator[tuple[str, Recording]]:
    """One after the other: a file may be larger than what there is of memory. None is given after a line with
    a mistake. Raises Unreadable with the first `MOST_MISTAKES` of all lines."""
    mistakes: list[str] = []
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if len(mistakes) >= MOST_MISTAKES:
                    break
                if not line.strip():
                    continue
                place = f"{file}:{number}"
                try:
                    recording = read_recording(line)
                except CorrectTheInput as refused:
                    found = (
                        f"{place}: {f.pointer or '/'} {f.code}: {f.message}{_ACCEPTED.get(f.code, '')}"
                        for f in refused.findings
                    )
                    mistakes += islice(found, MOST_MISTAKES - len(mistakes))
                    continue
                if not mistakes:
                    yield place, recording
    except OSError as error:
        mistakes.append(f"{file}: {error.strerror or 'it cannot be read'}")
    if mistakes:
        raise Unreadable(*mistakes)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[tuple[Recordings, FlowStore]]:
    """Raises CallTheOperator `redis_needed`, RetryLater."""
    if settings.redis_url is None:
        raise CallTheOperator(
            "redis_needed",
            "set FLOW_ENGINE_REDIS_URL; without it conversations are kept inside `serve`: get recordings by "
            "GET /v1/conversations/{id}/recording, or POST /v1/flows/{id}/versions/{vid}/replays",
        )
    memory, database, clock = open_memory(settings), open_flow_database(settings), SystemClock()
    try:
        await database.connection.open()
        flow_service = FlowService(
            flows=database.flows, versions=database.versions, clock=clock, new_id=new_id
        )
        versions = VersionsInUse(flow_service, memory.definitions)
        journal = kept_journal(settings, memory, database, versions, clock)
        yield Recordings(versions, journal, memory.listing), database.flows
    finally:
        await database.connection.close()
        await memory.close()
