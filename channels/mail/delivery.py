"""The mailbox of one mail that is under way, over IMAP and SMTP (M1, M11). Implements `ports.Mailbox`.

Sending takes two steps, so that nothing goes out twice, whenever a process is killed:

1. The intent is stored under the message's Message-ID. Only who has stored it speaks SMTP.
2. What became of it is stored: sent, or left as a draft and why.

Whoever finds an intent without an end cannot know whether the message went out. If it lies in Sent it did;
else a draft is left, which a person can send. A message that was sent and is not in Sent is put there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import structlog

from channels.mail import config, message, runs, smtp
from channels.mail.imap import (
    CommandRefused,
    FetchedMail,
    FolderRefused,
    FolderState,
    ImapConnection,
    UidsChanged,
)
from channels.mail.ports import UNKNOWN, Delivery, OutgoingMail
from channels.mail.state import MailboxState, OutboxState

SMTP_PAUSES_S: Final = (0.5, 2.0)
"""Before the second and the third attempt at a server that was away or busy."""

MOST_THREAD_MAILS: Final = 50
THREAD_MAIL_BYTES: Final = 64_000
MOST_SEARCHED_IDS: Final = 20
MOST_FOLDERS: Final = 20
"""In which the thread is looked for."""

MOST_LOOKED_AT: Final = 100
"""Mails of one folder, the newest ones, that may be the one that was moved there."""

log: Any = structlog.get_logger("flow_engine.mail")


@dataclass(frozen=True, slots=True)
class MailboxParts:
    """What all mails of one mailbox share. `sender` is None without SMTP. `pause` waits that many seconds;
    `observe` is called with what became of each message."""

    box: config.MailboxConfig
    imap: ImapConnection
    sender: smtp.SmtpSender | None
    state: MailboxState
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    observe: Callable[[str], None] = lambda outcome: None


class ImapMailbox:
    """`place` is where the mail under way was seen last. It is known by `message_id` and by the `digest`;
    `most_bytes` of it are read. Every method raises RetryLater when the server is away."""

    def __init__(
        self, parts: MailboxParts, place: runs.Place, message_id: str, digest: str, most_bytes: int
    ) -> None:
        self._parts = parts
        self._place = place
        self._message_id = message_id
        self._digest = digest
        self._most_bytes = most_bytes

    # --- reading

    async def raw(self) -> tuple[bytes, int] | None:
        """The mail under way: its first bytes to the bound, and its whole size in bytes. None when it is in
        none of the folders that mails are moved to."""
        for found in await self._at(self._place):
            return found.raw, found.size
        folders = [self._parts.box.folders.inbox, *await self._parts.imap.folders()]
        for folder in dict.fromkeys(folders):
            state, uids = await self._found(folder, ["Message-ID"], [self._message_id])
            # What was moved has the highest UIDs of its folder.
            for uid in uids[: -MOST_LOOKED_AT - 1 : -1]:
                place = runs.Place(folder=folder, uid_validity=state.uid_validity, uid=uid)
                for found in await self._at(place):
                    # A Message-ID may have been used for another mail; a UID stands for one.
                    parsed = await asyncio.to_thread(
                        message.parse_mail,
                        found.raw,
                        size=found.size,
                        opened=False,
                        most_bytes=self._most_bytes,
                    )
                    if parsed.digest == self._digest:
                        self._place = place
                        return found.raw, found.size
        return None

    async def _at(self, place: runs.Place) -> Sequence[FetchedMail]:
        try:
            return await self._parts.imap.fetch(
                place.folder,
                [place.uid],
                uid_validity=place.uid_validity,
                most_bytes=message.fetched_bytes(self._most_bytes),
            )
        except (UidsChanged, CommandRefused):  # refused: the folder is gone
            return ()

    async def thread(self, message_ids: Sequence[str]) -> Sequence[bytes]:
        """At most `MOST_THREAD_MAILS` of `THREAD_MAIL_BYTES` bytes, oldest first by folder; of so many ids
        that not all can be searched for the first ones count."""
        wanted = list(dict.fromkeys(message_ids))[:MOST_SEARCHED_IDS]
        folders = self._parts.box.folders
        searched = [folders.inbox, folders.sent, *await self._parts.imap.folders()]
        mails: list[bytes] = []
        for folder in list(dict.fromkeys(searched))[:MOST_FOLDERS]:
            headers = ["Message-ID", "References", "In-Reply-To"]
            state, uids = await self._found(folder, headers, wanted)
            validity = state.uid_validity
            others = [
                uid
                for uid in uids
                if self._place != runs.Place(folder=folder, uid_validity=validity, uid=uid)
            ]
            found = await self._parts.imap.fetch(
                folder,
                others[-MOST_THREAD_MAILS:],
                uid_validity=state.uid_validity,
                most_bytes=THREAD_MAIL_BYTES,
            )
            mails += [mail.raw for mail in found]
        return mails[-MOST_THREAD_MAILS:]

    async def _found(
        self, folder: str, headers: Sequence[str], values: Sequence[str]
    ) -> tuple[FolderState, Sequence[int]]:
        """As `ImapConnection.find`, and by the digest, which stands for a Message-ID that is missing, those
        without one; nothing in a folder that is listed and cannot be opened."""
        try:
            if list(values) == [self._digest]:
                return await self._parts.imap.lacking(folder, headers[0])
            return await self._parts.imap.find(folder, headers, values)
        except FolderRefused as refused:
            log.warning("folder_refused", folder=folder, code=refused.code, detail=refused.detail)
            return FolderState(0, 0), ()

    # --- writing

    async def mark(self, flags: Collection[str]) -> None:
        """What the server refuses to set, such as keywords where it keeps none, is logged and left out; so is
        everything for a mail that is gone. Raises CallTheOperator where the mailbox cannot be opened."""
        for _ in range(2):
            place = self._place
            try:
                await self._parts.imap.add_flags(
                    place.folder, place.uid, sorted(flags), uid_validity=place.uid_validity
                )
                return
            except UidsChanged:
                await self.raw()
            except CommandRefused as refused:
                log.warning("flags_refused", mailbox=self._parts.box.name, code=refused.code)
                return
        log.warning("mail_gone", mailbox=self._parts.box.name)

    async def draft(self, mail: OutgoingMail) -> None:
        await self._append_once(self._parts.box.folders.drafts, mail, ("\\Draft",))
        self._parts.observe("draft")

    async def send(self, mail: OutgoingMail) -> Delivery:
        known = await self._parts.state.intend(mail.message_id)
        if known is None:
            sender = self._parts.sender
            if sender is None:
                return await self._drafted(mail, "the mailbox has no SMTP server")
            for pause_s in (*SMTP_PAUSES_S, None):
                try:
                    await sender.send(mail.sender, mail.recipients, mail.content)
                except smtp.DeliveryUnknown:
                    return await self._resolved(mail)
                except smtp.NotSent as refused:
                    if pause_s is None or not refused.may_pass:
                        return await self._drafted(mail, str(refused))
                    await self._parts.pause(pause_s)
                else:
                    break
            await self._parts.state.became(mail.message_id, "sent", None)
            await self._append_once(self._parts.box.folders.sent, mail, ("\\Seen",))
            self._parts.observe("sent")
            return Delivery("sent")
        state, reason = cast("OutboxState", known["state"]), cast("str | None", known.get("reason"))
        if state == "intent":
            return await self._resolved(mail)
        if state == "sent":
            await self._append_once(self._parts.box.folders.sent, mail, ("\\Seen",))
            return Delivery("sent")
        await self.draft(mail)
        return Delivery("drafted", reason)

    async def _resolved(self, mail: OutgoingMail) -> Delivery:
        """Nobody knows whether the message went out."""
        _, found = await self._parts.imap.find(
            self._parts.box.folders.sent, ["Message-ID"], [mail.message_id]
        )
        if not found:
            return await self._drafted(mail, UNKNOWN)
        await self._parts.state.became(mail.message_id, "sent", None)
        return Delivery("sent")

    async def _drafted(self, mail: OutgoingMail, reason: str) -> Delivery:
        await self.draft(mail)
        await self._parts.state.became(mail.message_id, "drafted", reason)
        log.warning("reply_left_as_draft", mailbox=self._parts.box.name, reason=reason)
        return Delivery("drafted", reason)

    async def _append_once(self, folder: str, mail: OutgoingMail, flags: Sequence[str]) -> None:
        _, found = await self._parts.imap.find(folder, ["Message-ID"], [mail.message_id])
        if not found:
            await self._parts.imap.append(folder, mail.content, flags)
