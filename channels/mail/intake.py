"""Taking mails in: everything new in an inbox gets its run, once, before any work is done on it (M1).

1. Where a mailbox begins is stored at its first start: what was there before is never answered, what comes
   later always, also what came while nothing ran. `since` takes in what was received from that day on too.
2. From then on the stored UID tells what is new. It moves only after the runs of everything below it are
   stored, so a process that is killed in between looks at some mails twice: their runs are there already.
3. With another UIDVALIDITY no UID means anything. Everything in the inbox is looked at again: what has its
   run keeps it, what was there at the first start is known by the digest of its header, the rest is new.
4. The server tells of new mail by IDLE; an IDLE that is silent is not believed for longer than `poll_s`.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any, Final, cast

import structlog

from channels.mail.config import MailboxConfig, MailConfig
from channels.mail.imap import (
    CommandRefused,
    FetchedMail,
    FolderRefused,
    FolderState,
    ImapConnection,
    UidsChanged,
)
from channels.mail.message import HASHED_BYTES, fetched_bytes, parse_mail
from channels.mail.metrics import MailMetrics
from channels.mail.routing import judge
from channels.mail.runs import Place, RunRow, RunStore, RunWork, run_id
from flow_engine.errors import CallTheOperator, FlowEngineError
from flow_engine.ports.records import Record, RecordStore
from flow_engine.values import JsonValue

BATCH_BYTES: Final = 32_000_000
BATCH_MAILS: Final = 50
MOST_OLD: Final = 50_000
"""Mails of the first start that are remembered, the newest ones."""

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
HEADER: Final = ("MESSAGE-ID", "FROM", "DATE", "SUBJECT")

log: Any = structlog.get_logger("flow_engine.mail")


@dataclass(frozen=True, slots=True)
class _Begun:
    """The stored state of a mailbox. `old` are the digests of the headers of its first mails, `on` is the
    day of its first start."""

    uid_validity: int
    next_uid: int
    old: frozenset[str]
    on: date
    serial: int = 1

    def record(self, name: str) -> Record:
        old: list[JsonValue] = [*sorted(self.old)]
        body: dict[str, JsonValue] = {"uid_validity": self.uid_validity, "next_uid": self.next_uid}
        return Record(name, {**body, "old": old, "on": self.on.isoformat()}, "mailboxes", serial=self.serial)


class Intake:
    """One mailbox. `imap` is a connection for this alone, as it idles; `arrived` is called at each new run.
    `problem` is why nothing can be taken in at the moment, None while all is well; before the first success
    that is "not opened yet"."""

    def __init__(
        self,
        config: MailConfig,
        box: MailboxConfig,
        imap: ImapConnection,
        runs: RunStore,
        state: RecordStore,
        metrics: MailMetrics,
        arrived: Callable[[], None],
        *,
        since: date | None,
    ) -> None:
        self._config = config
        self._box = box
        self._imap = imap
        self._runs = runs
        self._state = state
        self._metrics = metrics
        self._arrived = arrived
        self._since = since
        # Another account under the same name begins anew: what it holds is not to be answered.
        account = "\0".join((box.imap.host.lower(), box.imap.user, box.folders.inbox))
        self._name = f"mailbox:{box.name}:{hashlib.sha256(account.encode()).hexdigest()[:16]}"
        self.problem: str | None = "not opened yet"

    @property
    def mailbox(self) -> str:
        return self._box.name

    async def watch(self, stopping: asyncio.Event) -> None:
        """Until `stopping` is set. After an error of the server it is tried again: after `FIRST_PAUSE_S`
        seconds, then ever later."""
        pause_s = FIRST_PAUSE_S
        while not stopping.is_set():
            try:
                seen = await self.look()
                pause_s = FIRST_PAUSE_S
                await self._imap.wait(
                    self._box.folders.inbox, seen, until=stopping, poll_s=self._box.imap.poll_s
                )
            except UidsChanged:
                continue
            except FlowEngineError as error:
                if stopping.is_set():
                    return
                self.problem = error.detail
                self._metrics.trouble.labels(self._box.name, error.code).inc()
                log.warning("mailbox_away", mailbox=self._box.name, code=error.code, detail=error.detail)
                try:
                    await asyncio.wait_for(stopping.wait(), pause_s)
                except TimeoutError:
                    pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def look(self) -> FolderState:
        """Take in what is new. The state of the inbox that was seen, everything below it having its run.

        Raises UidsChanged when the inbox is numbered anew meanwhile, RetryLater, CallTheOperator.
        """
        inbox = self._box.folders.inbox
        begun = await self._begun()
        self.problem = None
        state, uids = await self._imap.uids(inbox, start=begun.next_uid)
        if state.uid_validity != begun.uid_validity:
            log.warning("uids_changed", mailbox=self._box.name)
            # Where there were too many to remember all, what came before the first start is old by its day.
            day = begun.on - timedelta(days=1) if len(begun.old) >= MOST_OLD else None
            state, uids = await self._imap.uids(inbox, since=day)
            digests = await self._digests(state, uids)
            uids = [uid for uid in uids if digests.get(uid) not in begun.old]
        if self._since is not None:
            since_state, since = await self._imap.uids(inbox, since=self._since)
            if since_state.uid_validity != state.uid_validity:
                raise UidsChanged(inbox)
            uids = sorted({*uids, *since})
        async for mails in self._batches(state, uids):
            for mail in mails:
                id_, row = await self._read(mail)
                if await self._runs.add(id_, row):
                    log.info("mail_taken_in", mailbox=self._box.name, run=id_, rule=row.rule, route=row.route)
                    self._metrics.taken_in.labels(self._box.name).inc()
                    self._arrived()
                elif row.work is not None:
                    await self._runs.moved(id_, row.work.place)
        self._since = None
        seen = max([begun.next_uid - 1 if state.uid_validity == begun.uid_validity else 0, *uids])
        await self._advance(state.uid_validity, max(seen + 1, state.uid_next))
        return state

    async def _read(self, mail: FetchedMail) -> tuple[str, RunRow]:
        """The run of a mail and its id. A bug that one mail brings out ends its run alone, not the intake."""
        (found,) = await asyncio.gather(asyncio.to_thread(self.row, mail), return_exceptions=True)
        if not isinstance(found, BaseException):
            return found
        log.error("mail_not_read", mailbox=self._box.name, uid=mail.uid, exc_info=found)
        return self._unread(mail.raw[:HASHED_BYTES], f"the mail could not be read: {type(found).__name__}")

    def _unread(self, known_by: bytes, error: str) -> tuple[str, RunRow]:
        digest = hashlib.sha256(known_by).hexdigest()
        row = RunRow(
            mailbox=self._box.name,
            message_id=digest,
            rule=None,
            route="pipeline",
            profile=None,
            job="classify",
            status="error",
            error=error,
        )
        return run_id(self._box.name, None, digest), row

    async def _begun(self) -> _Begun:
        """Where the mailbox begins: as it is stored, or from now on."""
        stored = await self._stored()
        if stored is not None:
            return stored
        inbox = self._box.folders.inbox
        state, uids = await self._imap.uids(inbox)
        known = [uid for uid in uids if uid < state.uid_next][-MOST_OLD:]
        old = await self._digests(state, known)
        today = self._runs.clock.now().date()
        begun = _Begun(state.uid_validity, state.uid_next, frozenset(old.values()), today)
        if await self._state.insert(self._runs.tenant_id, begun.record(self._name)):
            log.info("mailbox_begun", mailbox=self._box.name, mails=len(known))
        return await self._stored() or begun

    async def _stored(self) -> _Begun | None:
        record = await self._state.get(self._runs.tenant_id, self._name)
        if record is None:
            return None
        body = cast("Mapping[str, Any]", record.body)
        try:
            uid_validity, next_uid = int(body["uid_validity"]), int(body["next_uid"])
            on = date.fromisoformat(body["on"])
            return _Begun(uid_validity, next_uid, frozenset(body["old"]), on, record.serial)
        except (KeyError, TypeError, ValueError) as error:
            raise CallTheOperator(
                "stored_record_unreadable", f"the state of mailbox {self._box.name!r} cannot be read"
            ) from error

    async def _advance(self, uid_validity: int, next_uid: int) -> None:
        """Store that everything below `next_uid` has its run; another process may have got further."""
        while (stored := await self._stored()) is not None:
            same = stored.uid_validity == uid_validity
            if same and stored.next_uid >= next_uid:
                return
            after = replace(stored, uid_validity=uid_validity, next_uid=next_uid, serial=stored.serial + 1)
            if await self._state.replace(self._runs.tenant_id, after.record(self._name), stored.serial):
                return

    async def _digests(self, state: FolderState, uids: Sequence[int]) -> Mapping[int, str]:
        found: dict[int, str] = {}
        for start in range(0, len(uids), 500):
            blocks = await self._imap.headers(
                self._box.folders.inbox, uids[start : start + 500], HEADER, uid_validity=state.uid_validity
            )
            for uid, block in blocks.items():
                found[uid] = hashlib.sha256(block.strip()).hexdigest()[:16]
        return found

    async def _batches(
        self, state: FolderState, uids: Sequence[int]
    ) -> AsyncGenerator[Sequence[FetchedMail]]:
        """The mails, bounded in number and in bytes at a time."""
        inbox, most = self._box.folders.inbox, fetched_bytes(self._config.limits.max_message_bytes)
        sizes: dict[int, int] = {}
        for start in range(0, len(uids), 1000):
            part = uids[start : start + 1000]
            sizes |= await self._imap.sizes(inbox, part, uid_validity=state.uid_validity)
        batch: list[int] = []
        weight = 0
        for uid in (*sorted(sizes), None):
            size = 0 if uid is None else min(sizes[uid], most)
            if batch and (uid is None or len(batch) == BATCH_MAILS or weight + size > BATCH_BYTES):
                yield await self._given_out(state, batch, most)
                batch, weight = [], 0
            if uid is not None:
                batch.append(uid)
                weight += size

    async def _given_out(
        self, state: FolderState, uids: Sequence[int], most_bytes: int
    ) -> Sequence[FetchedMail]:
        """A mail that the server refuses, such as one that is broken there, has a run that ended with the
        error, and keeps no other mail waiting. It is the mail's fault where another one is given out."""
        inbox, validity = self._box.folders.inbox, state.uid_validity
        try:
            return await self._imap.fetch(inbox, uids, uid_validity=validity, most_bytes=most_bytes)
        except FolderRefused:
            raise
        except CommandRefused as refused:
            if len(uids) > 1:
                return [mail for uid in uids for mail in await self._given_out(state, [uid], most_bytes)]
            (uid,) = uids
            _, every = await self._imap.uids(inbox)
            others = [other for other in every if other != uid][-1:]
            if not await self._imap.fetch(inbox, others, uid_validity=validity, most_bytes=1):
                raise
            log.error("mail_not_read", mailbox=self._box.name, uid=uid, detail=refused.detail)
            await self._runs.add(*self._unread(b"%d:%d" % (validity, uid), refused.detail))
            return ()

    def row(self, mail: FetchedMail) -> tuple[str, RunRow]:
        """The run of a mail and its id, as it begins. Takes seconds for a large mail; nothing is stored."""
        most = self._config.limits.max_message_bytes
        parsed = parse_mail(mail.raw, size=mail.size, opened=False, most_bytes=most)
        judgement = judge(self._config, self._box, parsed)
        place = Place(folder=self._box.folders.inbox, uid_validity=mail.uid_validity, uid=mail.uid)
        row = RunRow(
            mailbox=self._box.name,
            message_id=parsed.message_id or parsed.digest,
            rule=judgement.rule,
            route=judgement.route,
            profile=judgement.profile,
            job=judgement.job,
            work=RunWork(place=place, digest=parsed.digest),
        )
        return run_id(self._box.name, parsed.message_id, parsed.digest), row
