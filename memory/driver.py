"""What the stores of this package need of Redis: `Driver`. Another client is one more implementation of it.

An implementation raises the core's errors only:

    RetryLater `memory_unavailable`      no answer within its time limit (seconds), or writes are refused
    RetryLater `memory_not_replicated`   taken, but not by as many replicas as asked for
    CallTheOperator `memory_unreadable`  a key holds another type than this package writes
    CallTheOperator `memory_refused`     anything else that Redis has against the command

It never repeats a command by itself: a write that is repeated after a lost reply counts twice.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from pathlib import Path
from typing import Any, Protocol

Value = bytes | str | int
Argument = Value | Sequence[Value]

_NAMES = re.compile(r"^-- (KEYS|ARGV|OPTIONS|LISTS|WITH): (.+)$", re.MULTILINE)
_FOLDER = Path(__file__).parent
_OPTIONS = """local last = {count} + 2 * ARGV[{count}]
for i = {count} + 1, last, 2 do
  arg[ARGV[i]] = ARGV[i + 1]
end
"""
_LISTS = """while last < #ARGV do
  local first, name = last + 3, ARGV[last + 1]
  last = last + 2 + ARGV[last + 2]
  local list = {(table.unpack or unpack)(ARGV, first, math.min(last, first + 999))}
  for i = first + #list, last do
    list[i - first + 1] = ARGV[i]
  end
  arg[name] = list
end
"""


@dataclass(frozen=True, slots=True, eq=False)
class Naming:
    """How the keys of one script are named, in its order: first those of a conversation, which begin with its
    tag, by how they end; then those that are the same for many conversations, as they are."""

    ends: Mapping[str, str]
    others: Mapping[str, str] = field(default_factory=dict[str, str])


class KeyNames(Mapping[str, str]):
    """Names of a conversation's keys, by what a script calls them. `tag` is ASCII and has the hash tag of all
    of them; `reply` is how the key of that name ends, which stands between the others; None: it is left out.
    """

    __slots__ = ("naming", "reply", "tag")

    def __init__(self, naming: Naming, tag: str, reply: str | None = None) -> None:
        self.naming = naming
        self.tag = tag
        self.reply = reply

    def __getitem__(self, name: str) -> str:
        if name in self.naming.others:
            return self.naming.others[name]
        end = self.reply if name == "reply" else self.naming.ends[name]
        if end is None:
            raise KeyError(name)
        return self.tag + end

    def __iter__(self) -> Iterator[str]:
        yield from self.naming.ends
        if self.reply is not None:
            yield "reply"
        yield from self.naming.others

    def __len__(self) -> int:
        return len(self.naming.ends) + len(self.naming.others) + (self.reply is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """A Lua script of a file beside this module, which names what it takes in its first comment lines.

    `-- KEYS:`, `-- ARGV:`, `-- OPTIONS:` and `-- LISTS:` list names, over as many lines as needed; the script
    finds them as `key.name` and `arg.name`, a list as a table of texts. Their order is nowhere else. Keys may
    be left out from the end: they are nil then. Options and lists may be left out, and cost nothing: an
    option is nil then, a list an empty table that is not to be written to.
    `-- WITH:` names files of functions that stand before the script.
    """

    source: str
    sha: str
    keys: tuple[str, ...]
    scalars: tuple[str, ...]
    lists: Collection[str]
    options: Collection[str] = frozenset()

    @classmethod
    def read(cls, name: str) -> Script:
        text = (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
        found: dict[str, tuple[str, ...]] = {}
        for kind, names in _NAMES.findall(text):
            found[kind] = (*found.get(kind, ()), *names.split())
        keys, scalars, options, lists = (found.get(kind, ()) for kind in ("KEYS", "ARGV", "OPTIONS", "LISTS"))
        empty = [f"{name} = NONE" for name in lists]
        source = "".join(
            (
                "local KEYS, ARGV, NONE = KEYS, ARGV, {}\n",
                _table("key", _numbered("KEYS", keys)),
                _table("arg", [*_numbered("ARGV", scalars), *empty]),
                _OPTIONS.format(count=len(scalars) + 1) if options else f"local last = {len(scalars)}\n",
                _LISTS if lists else "",
                *((_FOLDER / f"{each}.lua").read_text(encoding="utf-8") for each in found.get("WITH", ())),
                text,
            )
        )
        sha = sha1(source.encode(), usedforsecurity=False).hexdigest()
        return cls(source, sha, keys, scalars, frozenset(lists), frozenset(options))

    def packed(self, keys: Mapping[str, str], args: Mapping[str, Any]) -> tuple[int, list[Value]]:
        """The number of keys, and keys and arguments in the script's order. KeyError: other names. Values go
        as UTF-8 bytes."""
        return len(keys), [*self.names(keys), *self.values(args)]

    def names(self, keys: Mapping[str, str]) -> Iterable[str]:
        """Of the keys, in the script's order. KeyError: other names."""
        return map(keys.__getitem__, self.keys[: len(keys)])

    def values(self, args: Mapping[str, Any]) -> list[Value]:
        """The arguments as the script takes them: those of each call in their order; where it has options,
        how many come, then name, value, …; the lists as name, length, values. KeyError: other names."""
        flat: list[Value] = [*map(args.__getitem__, self.scalars)]
        options: list[Value] = []
        lists: list[Value] = []
        for name, value in args.items():
            if name in self.options:
                options += (name, value)
            elif name in self.lists:
                lists += (name, len(value), *value)
            elif name not in self.scalars:
                raise KeyError(name)
        if self.options:
            flat.append(len(options) // 2)
        return [*flat, *options, *lists]


def _numbered(source: str, names: Sequence[str]) -> Sequence[str]:
    return [f"{name} = {source}[{number}]" for number, name in enumerate(names, 1)]


def _table(name: str, members: Sequence[str]) -> str:
    """With room for all of them at once: a table that grows costs Lua more than what is put into it."""
    return f"local {name} = {{{', '.join(members)}}}\n"


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server that takes writes, as it says of itself. Sizes in bytes, `memory_limit` 0 for none.

    `sync` is `appendfsync` and `syncs_while_rewriting` the contrary of `no-appendfsync-on-rewrite`; both are
    None where the server does not let its settings be read. `covers` is False on a cluster with slots that
    nobody serves.
    """

    name: str
    is_replica: bool
    eviction_policy: str
    memory_used: int
    memory_limit: int
    appends: bool
    sync: str | None
    syncs_while_rewriting: bool | None
    covers: bool = True


class Subscription(Protocol):
    """A connection of its own that hears what is published on its channels. After RetryLater it connects
    again, with every channel; what was published meanwhile is lost."""

    async def subscribe(self, channel: str) -> None: ...

    async def unsubscribe(self, channel: str) -> None: ...

    async def next(self, *, within_s: float) -> tuple[str, bytes] | None:
        """Channel and message; None when nothing comes in that many seconds."""
        ...

    async def close(self) -> None: ...


class Driver(Protocol):
    """One connected Redis, standalone, cluster or in this process. Names are texts, values bytes.

    `single_node`: one server holds every hash slot, so a script may touch the keys of different tags.
    """

    @property
    def single_node(self) -> bool: ...

    async def run(
        self, script: Script, keys: Mapping[str, str], args: Mapping[str, Any], *, confirmed: bool = False
    ) -> Any:
        """What the script returns. `confirmed`: only once as many replicas as set have taken its writes."""
        ...

    async def confirm(self, key: str) -> None:
        """Return once the replicas have everything that the server of `key` has taken; it writes `key`.
        Within a second, else raises RetryLater."""
        ...

    async def get(self, key: str) -> bytes | None: ...

    async def set(self, key: str, value: bytes, *, lifetime_s: int) -> None: ...

    async def expire(self, key: str, lifetime_s: int) -> bool:
        """False when there is no such key. In seconds from now."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """All of one hash slot."""
        ...

    async def hget(self, key: str, field: str) -> bytes | None: ...

    async def hmget(self, key: str, fields: Sequence[str]) -> Sequence[bytes | None]: ...

    async def zadd(self, key: str, scores: Mapping[str, float], *, confirmed: bool = False) -> None: ...

    async def zrange(
        self, key: str, *, at_most: int, highest_first: bool = False
    ) -> Sequence[tuple[bytes, float]]:
        """Members with their scores."""
        ...

    async def zcount(self, key: str, *, up_to: float = float("inf")) -> int: ...

    async def xrange(self, key: str, *, at_most: int) -> Sequence[tuple[str, Mapping[bytes, bytes]]]:
        """The oldest entries of a stream: id and fields. Fields are bytes."""
        ...

    async def xread(
        self, key: str, after: str, *, at_most: int, within_s: float
    ) -> Sequence[tuple[str, Mapping[bytes, bytes]]]:
        """The entries of a stream after that id, as soon as there is one; empty after `within_s` seconds, at
        most 1. It has a connection of its own meanwhile."""
        ...

    def scan(self, pattern: str) -> AsyncIterator[str]:
        """Names of keys, of the whole cluster; one may come twice. `pattern` is a glob."""
        ...

    async def publish(self, channel: str, message: bytes) -> None:
        """To whoever listens now; nobody else gets it. Bytes of any content."""
        ...

    def subscription(self) -> Subscription:
        """Connects when it is first used."""
        ...

    async def ping(self) -> None: ...

    async def servers(self, away: Callable[[str], None] | None = None) -> Sequence[ServerState]:
        """Every server that takes writes; none where Redis is inside this process. With `away` those of a
        cluster that answer, at least one: it is told the names of the others."""
        ...

    async def close(self) -> None: ...
