"""The values that templates and conditions see, and how a dotted path finds one of them (V8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from flow_engine.conditions.lexing import Path
from flow_engine.json_values import walk
from flow_engine.values import JsonValue

Values: TypeAlias = Mapping[str, JsonValue]

NAMESPACES: Final = frozenset({"pre", "args", "ctx", "session", "agent"})
SPECIALS: Final = frozenset(
    {
        "now_iso",
        "caller_phone",
        "call_duration_sec",
        "outcome",
        "transcript",
        "transcript_summary",
        "error",
    }
)


@dataclass(frozen=True, slots=True)
class Scope:
    """What one rendering sees. A name is looked for in the order of the fields; the first that has it
    answers, whatever it holds.

    `specials` are the variables that the engine keeps (`now_iso`, `caller_phone`, ...), only those that
    apply at the moment. `root` are the config's own values, such as `base_url`.
    """

    specials: Values = field(default_factory=dict[str, JsonValue])
    pre: Values = field(default_factory=dict[str, JsonValue])
    args: Values = field(default_factory=dict[str, JsonValue])
    ctx: Values = field(default_factory=dict[str, JsonValue])
    session: JsonValue = None
    agent: Values = field(default_factory=dict[str, JsonValue])
    root: Values = field(default_factory=dict[str, JsonValue])

    def lookup(self, path: Path) -> JsonValue:
        """The JSON value at `path`, None where there is nothing. Never raises."""
        head, rest = path[0], path[1:]
        if head in self.specials:
            return walk(self.specials[head], rest)
        match head:
            case "pre":
                return _walk_values(self.pre, rest)
            case "args":
                return _walk_values(self.args, rest)
            case "ctx":
                return _walk_values(self.ctx, rest)
            case "session":
                return walk(self.session, rest)
            case "agent":
                return _walk_values(self.agent, rest)
            case _:
                return walk(self.root.get(head), rest)

    def is_of_config(self, path: Path) -> bool:
        """Whether what stands at `path` is a value that the config itself holds."""
        return path[0] not in self.specials and (path[0] == "agent" or path[0] in self.root)

    def with_pre(self, pre: Values) -> Scope:
        """With these values beside the ones that earlier steps extracted."""
        return replace(self, pre={**self.pre, **pre})


def _walk_values(values: Values, path: Path) -> JsonValue:
    return walk(values.get(path[0]), path[1:]) if path else dict(values)
