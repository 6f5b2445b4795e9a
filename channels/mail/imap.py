"""A mailbox by IMAP4rev1 (RFC 3501): one connection, one command at a time, opened anew when it breaks.

1. Every operation selects its folder itself and tells the UIDVALIDITY that it worked under; UIDs of another
   one are refused, never used (`UidsChanged`).
2. Nothing here sets `\\Seen`: bodies are read with PEEK, folders that are only read are examined.
3. Reading is repeated once on a new connection when the old one broke. Writing is not: whoever appends finds
   out by Message-ID whether the former try arrived.
4. A message is read to a bound; what lies beyond it stays on the server.

The library blocks, so each connection has a thread of its own. Its errors do not leave this module.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, TypeAlias, TypeVar, cast

import structlog
from imapclient import IMAPClient, SocketTimeout
from imapclient.exceptions import IMAPClientAbortError, IMAPClientError, LoginError

from adapters.outbound.network import public_tls
from channels.mail.logins import Login
from flow_engine.errors import CallTheOperator, RetryLater

CONNECT_WITHIN_S: Final = 10.0
ANSWER_WITHIN_S: Final = 60.0
LONGEST_SEARCHED_ID: Final = 900
IDLE_LOOK_S: Final = 0.5
"""How long a stopping process waits for its IDLE at most, in seconds."""

_NOT_SEARCHED: Final = frozenset((b"\\Trash", b"\\Junk", b"\\Drafts", b"\\Sent", b"\\All", b"\\Noselect"))

log: Any = structlog.get_logger("flow_engine.mail")
_Result = TypeVar("_Result")
_Client: TypeAlias = Any
"""IMAPClient: its annotations are narrower than what it takes and gives."""


@dataclass(frozen=True, slots=True)
class FolderState:
    """A UID stands for a message only together with `uid_validity` (RFC 3501). `uid_next` is above all
    UIDs."""

    uid_validity: int
    uid_next: int


@dataclass(frozen=True, slots=True)
class FetchedMail:
    """`raw` are the message's first bytes to the bound of the fetch, `size` is its whole length in bytes."""

    uid: int
    uid_validity: int
    raw: bytes
    size: int


class UidsChanged(Exception):
    """The folder has another UIDVALIDITY than the one the caller knows: its UIDs stand for nothing now."""


class CommandRefused(CallTheOperator):
    """The server is there, has let us in, and does not do this."""


class FolderRefused(CommandRefused):
    """The server does not open this folder; the connection stays, and other folders may be opened."""


class ImapConnection:
    """Every method raises RetryLater `imap_unavailable` when the server is away or breaks off, and
    CallTheOperator `imap_refused` when it refuses the login, or its certificate is not valid; CommandRefused
    when it refuses a command, FolderRefused where that opens a folder. `login` is asked before each
    connection, and its errors are passed on; `refused` is told of one that the server does not take.
    """

    def __init__(
        self, login: Callable[[], Awaitable[Login]], refused: Callable[[Login], None] = lambda login: None
    ) -> None:
        self._login = login
        self._refused = refused
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="imap")
        self._client: _Client | None = None
        self._closing = False
        self.connections = 0

    async def aclose(self) -> None:
        """Cuts what goes on; the connection cannot be used after that."""
        self._closing = True
        client = self._client
        if client is not None:
            with contextlib.suppress(OSError):
                client.socket().shutdown(socket.SHUT_RDWR)  # whatever waits for an answer there ends now
        with contextlib.suppress(RuntimeError):
            await asyncio.wrap_future(self._thread.submit(self._drop))
        self._thread.shutdown(wait=False)

    async def state(self, folder: str) -> FolderState:
        return await self._read(lambda client: _selected(client, folder, readonly=True))

    async def uids(
        self, folder: str, *, start: int = 1, since: date | None = None
    ) -> tuple[FolderState, Sequence[int]]:
        """Those from `start` on, received on the day `since` or later by the server's date; ascending. Empty
        where there are none."""

        def search(client: _Client) -> tuple[FolderState, Sequence[int]]:
            state = _selected(client, folder, readonly=True)
            criteria: list[object] = ["UID", f"{start}:*"]
            if since is not None:
                criteria += ["SINCE", since]
            found = cast("list[int]", client.search(criteria))
            # `n:*` means the last message too where all are below n.
            return state, sorted(uid for uid in found if uid >= start)

        return await self._read(search)

    async def fetch(
        self, folder: str, uids: Sequence[int], *, uid_validity: int, most_bytes: int
    ) -> Sequence[FetchedMail]:
        """Those that are still there, each to `most_bytes` bytes, in the order of their UIDs. Raises
        UidsChanged."""
        part = f"BODY.PEEK[]<0.{most_bytes}>"

        def fetch(client: _Client) -> Sequence[FetchedMail]:
            found = _fetched(client, folder, uids, [part, "RFC822.SIZE"], uid_validity)
            return [
                FetchedMail(
                    uid,
                    uid_validity,
                    bytes(cast("bytes", item[b"BODY[]<0>"] or b"")),
                    cast("int", item[b"RFC822.SIZE"]),
                )
                for uid, item in sorted(found.items())
                if b"BODY[]<0>" in item
            ]

        return await self._read(fetch)

    async def sizes(self, folder: str, uids: Sequence[int], *, uid_validity: int) -> Mapping[int, int]:
        """Bytes of each that is still there. Raises UidsChanged."""

        def sizes(client: _Client) -> Mapping[int, int]:
            found = _fetched(client, folder, uids, ["RFC822.SIZE"], uid_validity)
            return {
                uid: cast("int", item[b"RFC822.SIZE"])
                for uid, item in found.items()
                if b"RFC822.SIZE" in item
            }

        return await self._read(sizes)

    async def headers(
        self, folder: str, uids: Sequence[int], names: Sequence[str], *, uid_validity: int
    ) -> Mapping[int, bytes]:
        """The fields of those names of each message that is still there, as one header block. Raises
        UidsChanged."""
        part = f"BODY.PEEK[HEADER.FIELDS ({' '.join(names)})]"

        def blocks(client: _Client) -> Mapping[int, bytes]:
            found = _fetched(client, folder, uids, [part], uid_validity)
            return {
                uid: b"".join(
                    bytes(cast("bytes", value)) for key, value in item.items() if key.startswith(b"BODY[")
                )
                for uid, item in found.items()
                if any(key.startswith(b"BODY[") for key in item)
            }

        return await self._read(blocks)

    async def find(
        self, folder: str, headers: Sequence[str], values: Iterable[str]
    ) -> tuple[FolderState, Sequence[int]]:
        """UIDs of the messages of which one of those headers contains one of the values, ascending. A value
        that no search can carry finds nothing: not ASCII, with control characters, or over
        `LONGEST_SEARCHED_ID` characters. No folder of that name: none, and its state is zero."""
        usable = [
            value
            for value in values
            if value and len(value) <= LONGEST_SEARCHED_ID and value.isascii() and value.isprintable()
        ]
        # The library leaves `(`, `)` and `{` of a list's words bare, which no atom may have.
        criteria = ""
        for header in headers:
            for value in usable:
                one = f"HEADER {header} {_quoted(value)}"
                criteria = f"OR ({one}) ({criteria})" if criteria else one
        return await self._search(folder, criteria)

    async def lacking(self, folder: str, header: str) -> tuple[FolderState, Sequence[int]]:
        """UIDs of the messages that have no such header, ascending; as `find` where there is no folder."""
        return await self._search(folder, f'NOT HEADER {header} ""')

    async def _search(self, folder: str, criteria: str) -> tuple[FolderState, Sequence[int]]:
        def search(client: _Client) -> tuple[FolderState, Sequence[int]]:
            if not client.folder_exists(folder):
                return FolderState(0, 0), ()
            state = _selected(client, folder, readonly=True)
            return state, sorted(cast("list[int]", client.search(criteria))) if criteria else ()

        return await self._read(search)

    async def folders(self) -> Sequence[str]:
        """Where a message may have been moved to: all but those for drafts, sent, junk and deleted mail."""

        def names(client: _Client) -> Sequence[str]:
            listed = cast("list[tuple[tuple[bytes, ...], bytes, str]]", client.list_folders())
            return [name for flags, _, name in listed if not _NOT_SEARCHED & set(flags)]

        return await self._read(names)

    async def append(self, folder: str, raw: bytes, flags: Sequence[str]) -> None:
        """At the folder's end; a folder that is missing is created first."""

        def append(client: _Client) -> None:
            if not client.folder_exists(folder):
                client.create_folder(folder)
            client.append(folder, raw, flags)

        await self._do(append)

    async def add_flags(self, folder: str, uid: int, flags: Sequence[str], *, uid_validity: int) -> None:
        """System flags and keywords, beside those that are set. Raises UidsChanged."""

        def add(client: _Client) -> None:
            if _selected(client, folder, readonly=False).uid_validity != uid_validity:
                raise UidsChanged(folder)
            client.add_flags([uid], flags, silent=True)

        await self._read(add)  # a flag that is set twice is set once

    async def wait(self, folder: str, known: FolderState, *, until: asyncio.Event, poll_s: float) -> None:
        """Returns when the folder is another than `known`, which IDLE tells at once; after `poll_s`, with or
        without IDLE; or when `until` is set, within `IDLE_LOOK_S` seconds."""
        if not await self._read(lambda client: client.has_capability("IDLE")):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), poll_s)
            return

        def idle(client: _Client) -> None:
            if _selected(client, folder, readonly=True) != known:
                return
            client.idle()
            waited = 0.0
            while waited < poll_s and not until.is_set() and not self._closing:
                lines = client.idle_check(timeout=IDLE_LOOK_S)
                waited += IDLE_LOOK_S
                if any(len(line) > 1 and line[1] == b"EXISTS" for line in lines):
                    break
                if any(line[:1] == (b"BYE",) for line in lines):
                    raise IMAPClientAbortError("the server ended the connection")
            client.idle_done()

        await self._do(idle)

    async def _read(self, work: Callable[[_Client], _Result]) -> _Result:
        had_connection = self._client is not None
        try:
            return await self._do(work)
        except RetryLater:
            if not had_connection or self._closing:
                raise
        return await self._do(work)

    async def _do(self, work: Callable[[_Client], _Result]) -> _Result:
        if self._closing:
            raise RetryLater("imap_unavailable", "the mailbox is being closed")
        login = await self._login() if self._client is None else None
        return await asyncio.wrap_future(self._thread.submit(self._in_thread, work, login))

    def _in_thread(self, work: Callable[[_Client], _Result], login: Login | None) -> _Result:
        """With the library's errors translated: what breaks the connection drops it."""
        try:
            if self._client is None:
                if login is None:
                    raise ConnectionResetError("another command has lost the connection")
                self._client = _connected(login)
                self.connections += 1
            return work(self._client)
        except ssl.SSLCertVerificationError as error:
            self._drop()
            raise CallTheOperator("imap_refused", f"the certificate of the IMAP server: {error}") from error
        except LoginError as error:
            self._drop()
            if login is not None:
                self._refused(login)
            raise CallTheOperator("imap_refused", "the IMAP server refuses the login") from error
        except (IMAPClientAbortError, OSError) as error:
            self._drop()
            lost = isinstance(error, IMAPClientAbortError)  # the library calls it "abort"
            trouble = "the connection was lost" if lost else type(error).__name__
            raise RetryLater("imap_unavailable", f"the IMAP server did not answer: {trouble}") from error
        except IMAPClientError as error:
            self._drop()
            raise CommandRefused("imap_refused", f"the IMAP server refused: {error}") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # what no such server answers
            self._drop()
            trouble = f"the IMAP server's answer cannot be read: {type(error).__name__}"
            raise RetryLater("imap_unavailable", trouble) from error

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(IMAPClientError, OSError):
                client.shutdown()


def _connected(login: Login) -> _Client:
    context = public_tls()
    timeout = SocketTimeout(CONNECT_WITHIN_S, ANSWER_WITHIN_S)
    is_implicit = login.tls == "implicit"
    client: _Client = IMAPClient(
        login.host,
        login.port,
        ssl=is_implicit,
        ssl_context=context if is_implicit else None,
        timeout=cast("Any", timeout),
    )
    try:
        if login.tls == "starttls":
            client.starttls(context)
        if login.is_token:
            client.oauth2_login(login.user, login.secret)
        elif (login.user + login.secret).isascii():
            client.login(login.user, login.secret)
        else:  # LOGIN carries ASCII alone
            client.plain_login(login.user, login.secret)
    except (IMAPClientError, OSError):
        with contextlib.suppress(IMAPClientError, OSError):
            client.shutdown()
        raise
    return client


def _quoted(value: str) -> str:
    """A quoted string (RFC 3501)."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _selected(client: _Client, folder: str, *, readonly: bool) -> FolderState:
    try:
        told = cast("dict[bytes, Any]", client.select_folder(folder, readonly=readonly))
    except IMAPClientAbortError:
        raise
    except IMAPClientError as error:
        raise FolderRefused("imap_refused", f"the IMAP server does not open {folder!r}: {error}") from error
    uid_next = told.get(b"UIDNEXT")
    if uid_next is None:  # a server may leave it out
        found = cast("list[int]", client.search(["UID", "*"]))
        uid_next = max(found, default=0) + 1
    return FolderState(int(told[b"UIDVALIDITY"]), int(uid_next))


def _fetched(
    client: _Client, folder: str, uids: Sequence[int], parts: list[str], uid_validity: int
) -> dict[int, dict[bytes, object]]:
    if not uids:
        return {}
    if _selected(client, folder, readonly=True).uid_validity != uid_validity:
        raise UidsChanged(folder)
    return cast("dict[int, dict[bytes, object]]", dict(client.fetch(list(uids), parts)))
