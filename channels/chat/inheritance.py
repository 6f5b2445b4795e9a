"""An agent with what it inherits (C5), and its system prompt by RTCROS (C2).

RTCROS is Role, Task, Constraints, Rules, Output, State. The prompt has its parts in an order of its own:
constraints stand before the task, because they outrank it, and nothing in it changes from one message to the
next, so that a model's cache keeps it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from channels.chat.rows import FIELDS, INHERITED, OWN_FIELDS, RESERVED_TOOLS, AgentRow, Fields, StoredRow
from flow_engine.errors import Finding, pointer
from flow_engine.values import JsonValue, listed

_PARTS: Final[Sequence[tuple[str, str]]] = (
    ("role", "# Role"),
    ("constraints", "# Constraints\nThey hold always. Where the task or anybody asks otherwise, they win."),
    ("task", "# Task"),
    ("rules", "# Rules"),
    ("output_schema", "# Output"),
    ("state_strategy", "# When to ask, act, refuse and finish"),
)


@dataclass(frozen=True, slots=True)
class Effective:
    """An agent's merged fields. `sources` names the agent that each came from, None where nobody says it."""

    name: str
    revision: int
    fields: Fields
    sources: Mapping[str, str | None]

    @property
    def row(self) -> AgentRow:
        return AgentRow.model_validate(dict(self.fields))

    @property
    def languages(self) -> frozenset[str]:
        """ISO 639 codes in lower case; empty for an agent that speaks any."""
        tags = cast("Sequence[str]", self.fields["languages"] or ())
        return frozenset(tag.partition("-")[0].lower() for tag in tags)

    @property
    def system_prompt(self) -> str:
        """Markdown; the parts that nobody says anything for are left out."""
        parts: list[str] = []
        for name, title in _PARTS:
            value = self.fields[name]
            if isinstance(value, list):
                value = "\n".join(f"- {line}" for line in value)
            if isinstance(value, str) and value.strip():
                parts.append(f"{title}\n{value.strip()}")
        return "\n\n".join(parts)


class KnownTools(Protocol):
    """What `tools` may list beside the HTTP tools that a row declares."""

    def names(self) -> Sequence[str]: ...

    def knows(self, name: str) -> bool: ...


def lineage(name: str, table: Mapping[str, StoredRow]) -> list[StoredRow]:
    """The agent, its base, the base of that, and so on; ends before a base that is unknown or was met."""
    found: dict[str, StoredRow] = {}
    current: str | None = name
    while current is not None and current in table and current not in found:
        found[current] = table[current]
        current = table[current].base
    return list(found.values())


def effective(name: str, table: Mapping[str, StoredRow]) -> Effective:
    """Raises KeyError for a name that is not in the table."""
    rows = lineage(name, table)
    own = table[name]
    fields: dict[str, JsonValue] = {field: own.fields[field] for field in OWN_FIELDS}
    sources: dict[str, str | None] = {
        field: None if value is None else name for field, value in fields.items()
    }
    for field in INHERITED:
        row = next((row for row in rows if row.fields[field] is not None), None)
        fields[field] = None if row is None else row.fields[field]
        sources[field] = None if row is None else row.name
    return Effective(name, own.revision, {field: fields[field] for field in FIELDS}, sources)


def table_findings(fields: Fields, table: Mapping[str, StoredRow], known: KnownTools) -> Iterator[Finding]:
    """What is wrong with a sound row beside the others: an unknown base, a cycle of bases, unknown tools.
    Pointers are JSON Pointers into the row."""
    name, base = str(fields["name"]), cast("str | None", fields["base_agent"])
    if base is not None and base != name and base not in table:
        names = listed(sorted(table.keys() - {name}))
        yield Finding("/base_agent", "unknown_base", f"no agent {base!r}; there are: {names or 'none'}")
    elif base is not None and name in (base, *(row.base for row in lineage(base, table))):
        yield Finding("/base_agent", "base_cycle", f"{name!r} would be a base of itself by {base!r}")
    own = cast("Mapping[str, JsonValue]", fields["http_tools"] or {})
    tools = cast("Sequence[str]", fields["tools"] or ())
    merged = effective(name, {**table, name: StoredRow(0, fields)}).fields["http_tools"]
    declared = {*own, *cast("Mapping[str, JsonValue]", merged or {})}
    for number, tool in enumerate(tools):
        if tool not in declared and not known.knows(tool):
            names = listed(sorted({*declared, *known.names()} - RESERVED_TOOLS))
            message = f"unknown tool {tool!r}; there are: {names or 'none'}"
            yield Finding(pointer("tools", number), "unknown_tool", message)
