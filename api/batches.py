"""Batches for the memory of which an entry has a wrong shape: the others are judged besides, so that every
error is told at once (F19)."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence

import msgspec

from api import bodies
from flow_engine.errors import CorrectTheInput, Finding, LookElsewhere, ReloadAndDecide, RetryLater

_PIECES = msgspec.json.Decoder(list[msgspec.Raw])


def sound_entries(
    body: bytes, breaches: Sequence[Finding]
) -> Sequence[bodies.MemoryEntryBody | bodies.PlainEntry | None]:
    """Of a batch that `memory_entries` refuses, with None for the entries that the breaches are in. Empty
    where they are those of no list of entries."""
    if any(breach.pointer == "" for breach in breaches):  # no JSON, or JSON that is no list
        return ()
    try:
        pieces = _PIECES.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
    sound = places_without(breaches, "", len(pieces))
    return [
        bodies.memory_entries(b"[%b]" % pieces[at])[0] if at in sound else None for at in range(len(pieces))
    ]


def places_without(breaches: Sequence[Finding], batch: str, count: int) -> Collection[int]:
    """Which entries of a batch at that pointer no breach is in: none where it is a breach itself, or where
    not all breaches are described."""
    if len(breaches) >= bodies.MOST_FINDINGS or any(breach.pointer == batch for breach in breaches):
        return ()
    within = [each.pointer.removeprefix(batch) for each in breaches if each.pointer.startswith(f"{batch}/")]
    wrong = {place.split("/")[1] for place in within}
    return {at for at in range(count) if str(at) not in wrong}


async def with_others(refused: CorrectTheInput, judging: Awaitable[object]) -> CorrectTheInput:
    """The refusal of a batch for its shape, with what is wrong with its other entries besides, where that can
    be known."""
    try:
        await judging
    except CorrectTheInput as judged:
        return CorrectTheInput(refused.code, judged.detail, [*refused.findings, *judged.findings])
    except (LookElsewhere, ReloadAndDecide, RetryLater):
        pass
    return refused
