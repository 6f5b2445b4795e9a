"""Which side of a split a new conversation is on.

1. A number from 0 up to 10,000, the bucket, follows from the flow, the tag and who is talking, by a hash: the
   same ids give the same bucket in every process, at any time, and nothing of it is stored.
2. Each side has buckets by its weight. What the buckets of a split are is a part of the tag.
3. New weights take buckets only from sides that have too many, and only as many: nobody else changes sides.
4. After a rollback the base has all of them, whatever the weights say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import chain, groupby, repeat
from math import fsum

from flow_engine.errors import Finding, pointer
from flow_engine.ports.flow_store import Split, SplitSide, TagEntry

BUCKETS = 10_000
MOST_SIDES = 10
SPLIT_BY = ("personId", "callerId")
"""Properties of a contact that tell who is talking; the first that is there counts, else the conversation."""


@dataclass(frozen=True, slots=True)
class ShareOrder:
    """A version and its weight, as a designer asks for them."""

    version_id: str
    weight: float


def chosen_version(flow_id: str, entry: TagEntry, subject: str) -> str:
    """The id of the version that a new conversation of `subject` runs on."""
    split = entry.split
    if split is None or split.rolled_back is not None:
        return entry.version_id
    bucket = bucket_of(flow_id, entry.tag, subject)
    return next(
        side.version_id for side in split.sides for first, end in side.buckets if first <= bucket < end
    )


def bucket_of(flow_id: str, tag: str, subject: str) -> int:
    """From 0 up to before 10,000. No flow id and no tag holds a line feed."""
    digest = sha256(f"{flow_id}\n{tag}\n{subject}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % BUCKETS


def subject_of(contact: Mapping[str, object], conversation_id: str) -> str:
    """Who is talking, by the contact's data (JSON): a text that is not empty, or a whole number."""
    for name in SPLIT_BY:
        told = contact.get(name)
        if isinstance(told, str | int) and not isinstance(told, bool) and told != "":
            return str(told)
    return conversation_id


def shared_out(orders: Sequence[ShareOrder], before: Split | None) -> tuple[SplitSide, ...]:
    """Sides with their buckets: of those before, as many as the new weights leave them."""
    # How many buckets each version has: the whole part of its share, what is left by the largest rest.
    total = fsum(order.weight for order in orders)
    exact = {order.version_id: BUCKETS * order.weight / total for order in orders}
    left = {version_id: int(share) for version_id, share in exact.items()}
    by_rest = sorted(exact, key=lambda version_id: left[version_id] - exact[version_id])
    for version_id in by_rest[: BUCKETS - sum(left.values())]:
        left[version_id] += 1
    owners: list[str | None] = [None] * BUCKETS
    for side in before.sides if before is not None else ():
        for first, end in side.buckets:
            owners[first:end] = [side.version_id] * (end - first)
    for bucket, owner in enumerate(owners):
        if owner is None or not left.get(owner):
            owners[bucket] = None
        else:
            left[owner] -= 1
    fill = chain.from_iterable(repeat(version_id, number) for version_id, number in left.items())
    runs: dict[str, list[tuple[int, int]]] = {order.version_id: [] for order in orders}
    first = 0
    for owner, run in groupby(next(fill) if owner is None else owner for owner in owners):
        end = first + len(list(run))
        runs[owner].append((first, end))
        first = end
    return tuple(SplitSide(order.version_id, order.weight, tuple(runs[order.version_id])) for order in orders)


def share_findings(orders: Sequence[ShareOrder], refused: Mapping[str, Finding]) -> tuple[Finding, ...]:
    """All that is wrong with the sides of a split. `refused` has, by version id, why it cannot be one; its
    pointer is set here."""
    found: list[Finding] = []
    total = fsum(order.weight for order in orders)
    seen: set[str] = set()
    for place, order in enumerate(orders):
        of_version = pointer("split", place, "versionId")
        if order.version_id in seen:
            message = f"version {order.version_id!r} is a side already: give each side once"
            found.append(Finding(of_version, "version_repeated", message))
        elif order.version_id in refused:
            found.append(replace(refused[order.version_id], pointer=of_version))
        seen.add(order.version_id)
        if order.weight * BUCKETS < total:
            message = f"the weights' sum is {total:g}, of which a side has at least a {BUCKETS}th"
            found.append(Finding(pointer("split", place, "weight"), "weight_too_small", message))
    return tuple(found)
