"""The store of runs (M1, M14): one document a mail, made before any work, and held by one process at a time.

1. A run's id is made of its mailbox, Message-ID and digest: whoever takes the same mail in again, on this
   process or another, finds the run already there.
2. A holder has a lease, written into the run, and renews it while it works. Whoever finds it expired takes
   the run over, after a pause that grows with each holder that was lost. Every write is compared with the
   serial that the holder knows, so one that has lost the run learns it at its next write (`RunTakenOver`)
   and changes nothing more.
3. With the end of a run everything goes that it needed to go on; its own fields remain.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, cast

import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from adapters.models.audit import ModelCallRecord
from channels.mail.ports import Decision, MailEvent, RunOutcome, RunProgress, RunStatus
from flow_engine.errors import CallTheOperator, RetryLater
from flow_engine.ports.clock import Clock
from flow_engine.ports.records import Record, RecordStore, position_at
from flow_engine.use_cases.agent_runs import ENDED, FORGOTTEN, OPEN
from flow_engine.values import JsonValue, utc_text

PAGE: Final = 500
"""Runs that are read at a time."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0

log: Any = structlog.get_logger("flow_engine.mail")


class Place(BaseModel):
    """Where the mail was when it was last seen."""

    model_config = ConfigDict(frozen=True)

    folder: str
    uid_validity: int
    uid: int


class RunWork(BaseModel):
    """What a holder needs. `lease_until` and `not_before` are seconds since 1970, 0 for none. `attempts`
    counts claims that came to nothing, `delays` those that a server which was away is to blame for."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    place: Place
    digest: str
    holder: str = ""
    lease_until: float = 0.0
    not_before: float = 0.0
    attempts: int = 0
    delays: int = 0
    decision: Decision | None = None
    progress: RunProgress = RunProgress()


class RunRow(BaseModel):
    """A run as it is stored: the columns of the audit, and `work` until the end. `bodies_kept`: the texts of
    the answer are still there (`limits.keep_days`)."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    mailbox: str
    message_id: str
    rule: str | None
    route: str
    profile: str | None
    job: str
    status: RunStatus = "queued"
    final_message: str | None = None
    iterations: int = 0
    tool_calls_log: tuple[dict[str, Any], ...] = ()
    error: str | None = None
    conversation_id: str | None = None
    label: str | None = None
    automatic: str | None = None
    created_at: str = ""
    ended_at: str | None = None
    bodies_kept: bool = True
    work: RunWork | None = None


class RunTakenOver(Exception):
    """Another process holds the run: stop, and write nothing more of it."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    id: str
    row: RunRow
    serial: int
    position: int

    @property
    def work(self) -> RunWork:
        """Raises CallTheOperator for a run that has ended."""
        if self.row.work is None:
            raise CallTheOperator("run_has_ended", f"the run {self.id!r} has ended")
        return self.row.work

    def changed(self, work: Mapping[str, object] | None, **columns: object) -> RunRow:
        """Its row with other columns, and with what changes of its work; with None the work ends."""
        kept = None if work is None else self.work.model_copy(update=work)
        return self.row.model_copy(update={**columns, "work": kept})

    def is_due(self, now: float) -> bool:
        """Whether somebody may take it at `now`, in seconds since 1970: queued, or held by a process that is
        gone. Each process that goes while it holds the run makes the pause longer: one that dies at every
        start must not use up the attempts of all that it holds."""
        work = self.work
        match self.row.status:
            case "queued":
                return work.not_before <= now
            case "running":
                return work.lease_until + pause_after(work.attempts - 1) <= now
            case _:
                return False


def pause_after(times: int) -> float:
    """Seconds until the next attempt, where as many in a row came to nothing before this one."""
    return min(FIRST_PAUSE_S * 2.0 ** min(times, 30), LONGEST_PAUSE_S)


def run_id(mailbox: str, message_id: str | None, digest: str) -> str:
    """32 characters, hexadecimal digits: the same for the same mail of the same mailbox."""
    parts = "\0".join((mailbox, message_id or "", digest))
    return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class RunTables:
    runs: RecordStore
    calls: RecordStore
    events: RecordStore


class RunStore:
    """The runs of one tenant. `holder` names this process. Every method raises RetryLater when the store is
    away, CallTheOperator for a document that this version cannot read."""

    def __init__(self, tables: RunTables, clock: Clock, *, tenant_id: str, holder: str) -> None:
        self.tables = tables
        self.tenant_id = tenant_id
        self.clock = clock
        self.holder = holder

    async def add(self, id_: str, row: RunRow) -> bool:
        """Store a new run, with the moment in UTC, one without `work` as ended; False for a mail that has its
        run already."""
        now = self.clock.now()
        at = utc_text(now)
        stored = row.model_copy(update={"created_at": at, "ended_at": None if row.work is not None else at})
        return await self.tables.runs.insert(
            self.tenant_id, Record(id_, _body(stored), _parent(row), position_at(now))
        )

    async def knows(self, id_: str) -> bool:
        return await self.tables.runs.get(self.tenant_id, id_) is not None

    async def under_way(
        self, after: StoredRun | None = None, limit: int | None = None
    ) -> Sequence[StoredRun]:
        """Queued, running and waiting; oldest first, from behind the run `after` on, at most `limit`."""
        at = None if after is None else (after.position, after.id)
        found = await self.tables.runs.list(self.tenant_id, OPEN, after=at, limit=limit)
        return [_stored(record) for record in found]

    async def forget_bodies(self, before: datetime) -> int:
        """Remove the texts of the runs that ended before that moment (UTC): of how many runs."""
        forgotten, after = 0, None
        while page := await self.tables.runs.list(self.tenant_id, ENDED, after=after, limit=PAGE):
            for run in map(_stored, page):
                row = run.row
                if row.ended_at is not None and row.ended_at < utc_text(before):
                    emptied: dict[str, Any] = {"arguments": dict[str, Any](), "result": None}
                    lines = tuple({**line, **emptied} for line in row.tool_calls_log)
                    update: dict[str, Any] = {"final_message": None, "tool_calls_log": lines}
                    with contextlib.suppress(RunTakenOver):  # another process forgets it, too
                        await self.replace(run, row.model_copy(update={**update, "bodies_kept": False}))
                        forgotten += 1
            after = (page[-1].position, page[-1].id)
            if after[0] > before.timestamp() * 1_000_000:
                break  # what was taken in later ended later
        return forgotten

    async def claim(self, run: StoredRun, lease_s: float) -> HeldRun | None:
        """Take it for `lease_s` seconds; None where another was faster."""
        work = {
            "holder": self.holder,
            "lease_until": self.clock.now().timestamp() + lease_s,
            "not_before": 0.0,
            "attempts": run.work.attempts + 1,
        }
        try:
            return HeldRun(self, await self.replace(run, run.changed(work, status="running")), lease_s)
        except RunTakenOver:
            return None

    async def replace(self, run: StoredRun, row: RunRow) -> StoredRun:
        """Raises RunTakenOver when the run was changed by another since `run` was read."""
        record = Record(run.id, _body(row), _parent(row), run.position, run.serial + 1)
        if not await self.tables.runs.replace(self.tenant_id, record, run.serial):
            raise RunTakenOver(run.id)
        return replace(run, row=row, serial=run.serial + 1)

    async def decide(self, run: StoredRun, decision: Decision) -> None:
        """The run goes on; nothing where somebody else has decided, or works on it."""
        with contextlib.suppress(RunTakenOver):
            await self.replace(run, run.changed({"decision": decision}, status="queued"))

    async def moved(self, id_: str, place: Place) -> None:
        """A run that is not held has its mail elsewhere now; nothing where it is held or has ended."""
        record = await self.tables.runs.get(self.tenant_id, id_)
        if record is None or record.parent != OPEN:
            return
        run = _stored(record)
        if run.work.place != place and run.row.status != "running":
            try:
                await self.replace(run, run.changed({"place": place}))
            except RunTakenOver:
                log.info("run_moved_while_taken", run=id_)


class HeldRun:
    """A run in this process's hands. Implements `RunJournal`. Its writes are made one after the other;
    each raises RunTakenOver once the run is another's."""

    def __init__(self, store: RunStore, run: StoredRun, lease_s: float) -> None:
        self._store = store
        self._run = run
        self._lease_s = lease_s
        self._writing = asyncio.Lock()
        self._calls: int | None = None

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def row(self) -> RunRow:
        return self._run.row

    @property
    def work(self) -> RunWork:
        return self._run.work

    async def change(self, work: Mapping[str, object] | None, **columns: object) -> None:
        """As `StoredRun.changed`."""
        async with self._writing:
            self._run = await self._store.replace(self._run, self._run.changed(work, **columns))

    async def renew(self) -> None:
        """The lease, for another `lease_s` seconds."""
        await self.change({"lease_until": self._store.clock.now().timestamp() + self._lease_s})

    async def checkpoint(self, progress: RunProgress) -> None:
        # What went well once is no reason to give the run up: attempts count anew.
        work = {"progress": progress, "decision": None, "attempts": 1, "delays": 0}
        await self.change(work, **_told(progress))

    async def give_back(self, after_s: float, *, delayed: bool = False, failed: bool = False) -> None:
        """For anybody to take, `after_s` seconds from now; only an attempt that `failed` counts as one."""
        work: dict[str, object] = {
            "holder": "",
            "lease_until": 0.0,
            "not_before": self._store.clock.now().timestamp() + after_s,
            "attempts": self.work.attempts if failed else self.work.attempts - 1,
            "delays": self.work.delays + delayed,
        }
        await self.change(work, status="queued")

    async def finish(self, outcome: RunOutcome) -> None:
        """The run ends, or waits for a person."""
        waits = {
            "holder": "",
            "lease_until": 0.0,
            "decision": None,
            "attempts": 0,
            "progress": outcome.progress,
        }
        is_waiting = outcome.status == "waiting"
        await self.change(
            waits if is_waiting else None,
            ended_at=None if is_waiting else utc_text(self._store.clock.now()),
            status=outcome.status,
            final_message=outcome.final_message,
            error=outcome.error,
            label=outcome.label,
            automatic=outcome.automatic,
            conversation_id=outcome.conversation_id or self.row.conversation_id,
            **_told(outcome.progress),
        )

    async def event(self, event: MailEvent) -> None:
        """Once for each key of the run."""
        body: dict[str, JsonValue] = {
            **event.facts,
            "mailbox": self.row.mailbox,
            "message_id": self.row.message_id,
            "rule": self.row.rule,
            "event": event.event,
            "at": utc_text(self._store.clock.now()),
        }
        name = f"{self.id}:{event.event}:{event.key}"
        record = Record(name, body, self.id, position_at(self._store.clock.now()))
        await self._store.tables.events.insert(self._store.tenant_id, record)

    async def write(self, record: ModelCallRecord) -> None:
        """A row of `llm_calls`. Never fails the call: what cannot be kept is logged."""
        tables, tenant_id = self._store.tables, self._store.tenant_id
        try:
            if self._calls is None:
                self._calls = len(await tables.calls.list(tenant_id, self.id))
            self._calls += 1
            body: dict[str, JsonValue] = {
                "run_id": self.id,
                "call_type": record.purpose,
                "iteration": self._calls,
                "model": record.model,
                "status": record.status,
                "reason": record.reason,
                "input_tokens": record.input_tokens,
                "output_tokens": record.output_tokens,
                "duration_ms": record.duration_ms,
                "at": utc_text(record.at),
            }
            position = position_at(self._store.clock.now())
            await tables.calls.insert(tenant_id, Record(record.id, body, self.id, position))
        except RetryLater as away:
            log.error("account_lost", code=away.code)


def _told(progress: RunProgress) -> dict[str, object]:
    lines = tuple(line.model_dump(mode="json") for line in progress.tool_calls)
    return {"iterations": progress.iterations, "tool_calls_log": lines}


def _parent(row: RunRow) -> str:
    return OPEN if row.work is not None else ENDED if row.bodies_kept else FORGOTTEN


def _body(row: RunRow) -> Mapping[str, JsonValue]:
    body = cast("dict[str, JsonValue]", row.model_dump(mode="json"))
    if row.work is None:
        del body["work"]
    return body


def _stored(record: Record) -> StoredRun:
    try:
        row = RunRow.model_validate(dict(record.body))
    except ValidationError as error:
        raise CallTheOperator(
            "stored_run_unreadable", f"the stored run {record.id!r} cannot be read"
        ) from error
    return StoredRun(record.id, row, record.serial, record.position)
