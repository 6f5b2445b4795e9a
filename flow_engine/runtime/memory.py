"""The rules of the memory: who may write a variable, whose value counts, how entries are stored (F17–F20).

1. Two writers, two hashes. The miner reads the dialogue along; tools write through the memory API.
2. A tool's entry that has a value wins over the miner's, unless the variable's `precedence` says otherwise.
   A tool's entry without a value, taken back or never written, hides nothing.
3. The miner never mines a variable that only tools fill, nor one without `precedence` that a tool has given
   a value.
4. Where user and tool contradict each other, both entries are kept; where they agree, the tool's counts as
   written when either of them was written last.
5. A batch of tool writes is all or nothing, and names each variable at most once, since the order of a
   batch carries no meaning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Never, TypeAlias

import msgspec
import orjson

from flow_engine import values
from flow_engine.documents.findings import listed, nearest, quoted
from flow_engine.errors import CallTheOperator, CorrectTheInput, Finding, pointer
from flow_engine.values import JsonValue
from flow_engine.variables import VariableIndex, VariableSpec

MINER = "convMiner"
_MINER = MINER.lower()
NAMES_COMPARED = 3_000
"""Names that the unknown ones of a batch are held against; telling how alike two are takes long."""


class ValueDescription(msgspec.Struct, frozen=True):
    """One property of a value, as the model shall read it. Both at most 64 KiB of UTF-8."""

    name: str
    value: str


_Json: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None
"""`JsonValue` as far down as msgspec reads a type."""


class MemoryEntry(msgspec.Struct, frozen=True, rename="camel"):
    """A variable in one of the two hashes, and its stored form (F17). `value` is canonical, None for none;
    `updated_at` is aware and in UTC; whoever took a value back is kept in `updated_by`.

    `type` is text here: during an update of the service an entry may be of a type that only the newer
    release knows, and is carried as it is."""

    type: str
    updated_by: str | None
    updated_at: datetime | None
    value: _Json
    contact_id: str
    description_for_llm: tuple[ValueDescription, ...] | None = msgspec.field(name="descriptionForLLM")

    @property
    def has_value(self) -> bool:
        return self.value is not None


def empty_entries(specs: VariableIndex, contact_id: str) -> dict[str, MemoryEntry]:
    """Every variable as it starts, by id. Those of a type share one entry, so that it is encoded once."""
    types = specs.types
    shared = {kind: MemoryEntry(kind, None, None, None, contact_id, None) for kind in {*types}}
    return dict(zip(specs.ids, map(shared.__getitem__, types), strict=True))


@dataclass(frozen=True, slots=True)
class PreviousContact:
    """An ended contact of the conversation (F20). `date` is its start, aware and in UTC."""

    date: datetime
    channel: str
    resume: str


class MemoryWrite(msgspec.Struct, frozen=True):
    """One entry of a tool's batch, as it was sent. `var` is a variable's `_id` or name. `value` is JSON."""

    var: str
    value: JsonValue
    contact_id: str
    updated_by: str
    description_for_llm: tuple[ValueDescription, ...] | None = None


def merge(mined: Mapping[str, MemoryEntry], tools: Mapping[str, MemoryEntry]) -> dict[str, MemoryEntry]:
    """The memory as everybody reads it, by variable id."""
    merged = dict(mined)
    for var_id, entry in tools.items():
        if entry.value is not None or var_id not in merged:
            merged[var_id] = entry
    return merged


class Conflict(msgspec.Struct, frozen=True):
    """What a tool has written and what the user has said instead: the entry that counts, and the other."""

    counts: MemoryEntry
    other: MemoryEntry

    @property
    def by_tool(self) -> bool:
        """Whether it is the tool's entry that counts."""
        return self.counts.updated_by != MINER


def conflicts_of(
    mined: Mapping[str, MemoryEntry],
    tools: Mapping[str, MemoryEntry],
    contested: Mapping[str, VariableSpec],
) -> dict[str, Conflict]:
    """By variable id, of those that are `contested`: by id too."""
    found: dict[str, Conflict] = {}
    for var_id, spec in contested.items():
        heard, written = mined.get(var_id), tools.get(var_id)
        if heard is None or written is None or not (heard.has_value and written.has_value):
            continue
        if not values.agree(heard.value, written.value):
            later = (heard.updated_at or _NEVER) > (written.updated_at or _NEVER)
            by_user = spec.precedence == "user" or (spec.precedence == "latest" and later)
            found[var_id] = Conflict(heard, written) if by_user else Conflict(written, heard)
    return found


_NEVER = datetime.min.replace(tzinfo=UTC)


def settled(
    merged: Mapping[str, MemoryEntry],
    mined: Mapping[str, MemoryEntry],
    tools: Mapping[str, MemoryEntry],
    contested: Mapping[str, VariableSpec],
) -> Mapping[str, MemoryEntry]:
    """The merged memory by what the `contested` variables, by id, say of whose value counts."""
    conflicts = conflicts_of(mined, tools, contested)
    own = {var_id: conflict.counts for var_id, conflict in conflicts.items()}
    for var_id in contested.keys() - own.keys():
        heard, entry = mined.get(var_id), merged.get(var_id)
        if heard is None or entry is None or heard.updated_at is None or entry.updated_at is None:
            continue
        if heard.has_value and heard.updated_at > entry.updated_at:
            own[var_id] = msgspec.structs.replace(entry, updated_at=heard.updated_at)
    return {**merged, **own} if own else merged


def age_s(entry: MemoryEntry, now: datetime) -> int:
    """Whole seconds since a value was written, never below 0. `now` is aware."""
    return 0 if entry.updated_at is None else max(0, int((now - entry.updated_at).total_seconds()))


def is_stale(spec: VariableSpec, entry: MemoryEntry | None, now: datetime) -> bool:
    """Whether a value is older than its variable's `freshFor`. `now` is aware."""
    if spec.fresh_for is None or entry is None or not entry.has_value:
        return False
    return age_s(entry, now) >= spec.fresh_for


def open_for_mining(
    specs: Iterable[VariableSpec], tools: Mapping[str, MemoryEntry]
) -> tuple[VariableSpec, ...]:
    """The variables that the miner may look for now (F18), in the flow's order."""
    return tuple(
        spec
        for spec in specs
        if not spec.by_tools
        and (spec.precedence is not None or not ((entry := tools.get(spec.id)) and entry.has_value))
    )


def prepare_tool_writes(
    writes: Sequence[MemoryWrite | None],
    *,
    specs: VariableIndex,
    contacts: Collection[str],
    now: datetime,
    default_region: str | None = None,
    timezone: tzinfo | None = None,
) -> dict[str, MemoryEntry]:
    """The entries to store in the tools hash, by variable id (F19).

    A null, empty or blank value takes the tool's value back: the entry keeps who did it and when. None stands
    for an entry whose shape was wrong: the others are judged only. Raises CorrectTheInput `memory_invalid`
    with every finding, pointers being into the batch as it was sent. `now` is aware, in UTC.
    """
    findings: list[Finding] = []
    entries: dict[str, MemoryEntry] = {}
    first_at: dict[str, int] = {}
    judged_only, unknown = False, 0
    if not writes:
        findings.append(Finding("", "batch_empty", "accepted is a list of at least one entry"))
    for at, write in enumerate(writes):
        if write is None:
            judged_only = True
            continue
        if not _plainly_sound(write, contacts):
            findings.extend(_breaches_of_sender(at, write, contacts))
        spec = specs.resolve(write.var)
        if spec is None:
            unknown += 1
            message = _no_variable(write.var, specs, unknown)
            findings.append(_finding(at, "varId", "variable_unknown", message))
            continue
        if first_at.setdefault(spec.id, at) != at:
            other = f"variable {spec.name!r} is already in entry {first_at[spec.id]} of this batch"
            findings.append(_finding(at, "varId", "variable_twice", f"{other}; accepted is one entry each"))
            continue  # a value is compared with all members of an enum: once for each variable
        try:
            value = values.canonical(spec, write.value, default_region=default_region, timezone=timezone)
        except values.ValueRejected as refused:
            findings.append(_finding(at, "value", refused.code, f"{spec.name!r}: {refused.message}"))
            continue
        description = (write.description_for_llm or None) if value is not None else None
        if spec.type == "custom" and value is not None and description is None:
            needed = f"custom variable {spec.name!r} needs at least one {{name, value}} for the model to read"
            findings.append(_finding(at, "descriptionForLLM", "description_required", needed))
        entries[spec.id] = MemoryEntry(spec.type, write.updated_by, now, value, write.contact_id, description)
    if findings or judged_only:
        raise CorrectTheInput("memory_invalid", "nothing of the batch was stored", findings)
    return entries


def _no_variable(name: str, specs: VariableIndex, unknown: int) -> str:
    """`unknown`: how many names of the batch there are not, up to this one."""
    names = [spec.name for spec in specs]
    few = unknown * len(names) <= NAMES_COMPARED
    told = nearest(name, names) if few else f"accepted are {listed(names)}"
    return f"there is no variable {quoted(name)}; {told}"


def _finding(at: int, key: str, code: str, message: str) -> Finding:
    return Finding(pointer(at, key), code, message)


def _plainly_sound(write: MemoryWrite, contacts: Collection[str]) -> bool:
    """Whether nothing is wrong with a sender, as one look tells for nearly all of them."""
    author = write.updated_by
    if write.contact_id not in contacts or not (author.isascii() and author.isidentifier()):
        return False
    if author.lower() == _MINER or len(author) > values.MAX_TEXT_BYTES:
        return False
    described = write.description_for_llm
    if not described:
        return True
    texts = "".join([text for part in described for text in (part.name, part.value)])
    if not texts.isascii():
        texts = texts.encode(errors="replace").decode()
        if "?" in texts:  # written so, or nothing that UTF-8 can carry
            return False
    return 4 * len(texts) <= values.MAX_TEXT_BYTES


def _breaches_of_sender(at: int, write: MemoryWrite, contacts: Collection[str]) -> Iterable[Finding]:
    """What is wrong with an entry whatever its variable: its contact, its author, its texts."""
    if write.contact_id not in contacts:
        known = f"the conversation's contacts are {values.listed(sorted(contacts))}"
        yield _finding(at, "contactId", "contact_unknown", known)
    author = write.updated_by.strip()
    if not author:
        yield _finding(at, "updatedBy", "updated_by_missing", "accepted is the name of the writing tool")
    elif author.casefold() == MINER.casefold():
        own = f"{MINER!r} writes its own values; accepted is the name of the writing tool"
        yield _finding(at, "updatedBy", "updated_by_reserved", own)
    texts = [(pointer(at, "updatedBy"), write.updated_by)]
    for index, description in enumerate(write.description_for_llm or ()):
        texts.append((pointer(at, "descriptionForLLM", index, "name"), description.name))
        texts.append((pointer(at, "descriptionForLLM", index, "value"), description.value))
    for place, text in texts:
        try:
            values.check_text(text)
        except values.ValueRejected as refused:
            yield Finding(place, refused.code, refused.message)


# --- stored form ------------------------------------------------------------------------------------


def encode_entry(entry: MemoryEntry) -> bytes:
    """`{type, updatedBy, updatedAt, value, contactId, descriptionForLLM}` as JSON (F17)."""
    moment = entry.updated_at
    if moment is not None and moment.tzinfo is not UTC:
        entry = msgspec.structs.replace(entry, updated_at=moment.astimezone(UTC))
    return _write_entry(entry)


def decode_entry(data: bytes) -> MemoryEntry:
    """Reads what `encode_entry` wrote, in any order. Raises CallTheOperator `memory_unreadable` for anything
    else. `data` is a JSON text."""
    try:
        entry = _read_entry(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        _unreadable("memory entry", problem)
    if entry.updated_at is not None and entry.updated_at.tzinfo is not UTC:
        _unreadable("memory entry", ValueError("a moment not in UTC"))
    return entry


_write_entry = msgspec.json.Encoder().encode
_read_entry = msgspec.json.Decoder(MemoryEntry).decode


def encode_previous_contact(contact: PreviousContact) -> bytes:
    """`{date, channel, resume}` as JSON (F20)."""
    return orjson.dumps(
        {"date": values.utc_text(contact.date), "channel": contact.channel, "resume": contact.resume}
    )


def decode_previous_contact(data: bytes) -> PreviousContact:
    """Reads what `encode_previous_contact` wrote. Raises CallTheOperator `memory_unreadable`. `data` is a
    JSON text with its date in UTC."""
    try:
        stored = orjson.loads(data)
        return PreviousContact(_moment(stored["date"]), _text(stored["channel"]), _text(stored["resume"]))
    except (ValueError, KeyError, TypeError) as problem:
        _unreadable("previous contact", problem)


def _text(stored: Any) -> str:
    if not isinstance(stored, str):
        raise TypeError("text expected")
    return stored


def _moment(stored: Any) -> datetime:
    if not _text(stored).endswith("Z"):
        raise ValueError("a moment not in UTC")
    return datetime.fromisoformat(stored)


def _unreadable(what: str, problem: Exception) -> Never:
    # The kind of the problem only: its text may quote what a caller said.
    raise CallTheOperator(
        "memory_unreadable", f"a stored {what} cannot be read ({type(problem).__name__}); it was not changed"
    ) from problem
