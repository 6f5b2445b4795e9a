"""Calls of scripts as they are sent to Redis: what calls of one form share is worked out once (RESP 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

import hiredis

from memory.driver import KeyNames, Naming, Script

pack = cast("Callable[[tuple[Any, ...]], bytes]", hiredis.pack_command)
"""Any command, of its parts."""


class _Heads(dict[int, bytes]):
    """What stands before a part of a command, by its size in bytes: the end of the part before it, and the
    size."""

    def __missing__(self, size: int) -> bytes:
        return b"\r\n$%d\r\n" % size


_HEADS = _Heads({size: b"\r\n$%d\r\n" % size for size in range(4_096)})


class _Form(NamedTuple):
    """What the calls of a script that have the same arguments have in common. `plain` are those that are no
    lists, in the order in which they are sent; `before`, `after`, `lists`: what is sent before the head of
    each of them, after the last one, and before the length of each list. `parts` of a call that has neither
    keys nor lists with values."""

    parts: int
    plain: tuple[str, ...]
    before: tuple[bytes, ...]
    after: bytes
    lists: tuple[tuple[str, bytes], ...]


@lru_cache(maxsize=1_024)
def _form(script: Script, names: tuple[str, ...]) -> _Form:
    """KeyError: names that the script has not, or lacks."""
    options = tuple(name for name in names if name in script.options)
    lists = tuple(name for name in names if name in script.lists)
    for name in {*names}.symmetric_difference((*script.scalars, *options, *lists)):
        raise KeyError(name)
    given = _parts((b"%d" % len(options),)) if script.options else b""
    sent = {name: _parts((name.encode(),)) for name in (*options, *lists)}
    if options:
        sent[options[0]], given = given + sent[options[0]], b""
    return _Form(
        parts=3 + len(script.scalars) + bool(script.options) + 2 * len(options) + 2 * len(lists),
        plain=(*script.scalars, *options),
        before=(*[b"" for _ in script.scalars], *[sent[name] for name in options]),
        after=given,
        lists=tuple((name, sent[name]) for name in lists),
    )


def evaluation(
    command: str, named: str, script: Script, keys: Mapping[str, str], args: Mapping[str, Any]
) -> bytes:
    """A call of a script as it is sent: `EVALSHA` with its SHA-1, or `EVAL` with its source; the arguments
    are those of `Script.values`. Where all are bytes, in two thirds of the time of hiredis. KeyError: names
    that the script has not."""
    count, plain, before, after, lists = _form(script, (*args,))
    told: list[bytes] = []
    try:
        for name, sent in zip(plain, before, strict=True):
            value = args[name]
            told += (sent, _HEADS[len(value)], value)
        told.append(after)
        for name, sent in lists:
            values = args[name]
            number = b"%d" % len(values)
            told += (sent, _HEADS[len(number)], number)
            told += [_HEADS[len(value)] + value for value in values]
            count += len(values)
        text = b"".join(told)
    except TypeError:  # not all are bytes
        return pack((command, named, len(keys), *script.names(keys), *script.values(args)))
    number_of_keys = len(keys)
    called = _called(command, named, number_of_keys)
    return b"*%d%b%b%b\r\n" % (count + number_of_keys, called, _keys_sent(script, keys), text)


@lru_cache(maxsize=256)
def _called(command: str, named: str, number_of_keys: int) -> bytes:
    return _parts((command.encode(), named.encode(), b"%d" % number_of_keys))


def _keys_sent(script: Script, keys: Mapping[str, str]) -> bytes:
    if not isinstance(keys, KeyNames):
        return _parts([name.encode() for name in script.names(keys)])
    tag = keys.tag.encode()
    between, others = _named(keys.naming, len(tag))
    if keys.reply is None:
        return tag.join(between) + others
    end = keys.reply.encode()
    return b"%b%b%b%b%b" % (tag.join(between), _HEADS[len(tag) + len(end)], tag, end, others)


@lru_cache(maxsize=1_024)
def _named(naming: Naming, tag_bytes: int) -> tuple[Sequence[bytes], bytes]:
    """What is sent between tags of so many bytes, and the keys without a tag."""
    ends = [end.encode() for end in naming.ends.values()]
    heads = [_HEADS[tag_bytes + len(end)] for end in ends]
    between = [before + head for before, head in zip([b"", *ends], [*heads, b""], strict=True)]
    return between, _parts([name.encode() for name in naming.others.values()])


def _parts(values: Sequence[Any]) -> bytes:
    """TypeError: they are not all bytes."""
    return b"".join([_HEADS[len(value)] + value for value in values])
