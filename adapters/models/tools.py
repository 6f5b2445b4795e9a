"""Tools that models may call: the registry, and everything that holds for every call of one.

1. A registry answers only for its own tools; `only` narrows it to those of a profile (M10).
2. Arguments are checked against the tool's schema before anything else happens.
3. The tool's own verdict and the policy's are asked on every call, and the stricter one holds. What is to
   be confirmed and nobody confirms is rejected.
4. Whatever a tool does, its call has an answer: a result, or `{"error": ...}` (M9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final, Literal, Protocol, cast

import orjson
import structlog
from pydantic_core import to_json

from adapters.models.argument_schemas import CannotBeChecked, problems, schema_fault
from flow_engine.ports.models import ToolCall, ToolSpec
from flow_engine.values import JsonValue

_log: Any = structlog.get_logger("flow_engine.tools")

Arguments = Mapping[str, JsonValue]
Verdict = Literal["allow", "prompt", "forbid"]

TOOL_TIMEOUT_S: Final = 30.0
USER_REJECTED: Final = "USER_REJECTED"
MOST_PROBLEMS: Final = 5
LONGEST_PROBLEM: Final = 1_000
MOST_RESULT_CHARS: Final = 50_000


def strictest(verdicts: Iterable[Verdict]) -> Verdict:
    """`allow` where there is none."""
    found = set(verdicts)
    return "forbid" if "forbid" in found else "prompt" if "prompt" in found else "allow"


def shortened(answer: JsonValue) -> JsonValue:
    """What a model gets of what a tool answers: of a long one, as text, the first `MOST_RESULT_CHARS`, and
    that there was more."""
    text = answer if isinstance(answer, str) else to_json(answer).decode()
    if len(text) <= MOST_RESULT_CHARS:
        return answer
    return f"{text[:MOST_RESULT_CHARS]}… (cut: the first {MOST_RESULT_CHARS:,} of {len(text):,} characters)"


@dataclass(frozen=True, slots=True)
class Tool:
    """`run` gets arguments that fit the schema and returns anything JSON can hold. `approval` is what the
    tool's author wants for each call; a policy may only be stricter."""

    spec: ToolSpec
    run: Callable[[Arguments], Awaitable[object]]
    timeout_s: float = TOOL_TIMEOUT_S
    approval: Verdict = "allow"


class Policy(Protocol):
    """Whether a call may run: `prompt` asks a person first, `forbid` refuses it."""

    def verdict(self, call: ToolCall) -> Verdict: ...


class Undecided(Exception):
    """The person will answer later: the call is to be made again then, with what came before it. Raised
    through the whole loop."""


class Person(Protocol):
    """Somebody who can be asked to confirm a call."""

    async def confirms(self, call: ToolCall) -> bool:
        """Raises Undecided."""
        ...


@dataclass(frozen=True, slots=True)
class ToolRule:
    """`tool` is a name, or a pattern in which `*` stands for any characters."""

    decision: Verdict
    tool: str


@dataclass(frozen=True, slots=True)
class ToolRules:
    """Implements `Policy`: the strictest of the rules that match the tool's name; without one, allowed."""

    rules: tuple[ToolRule, ...] = ()

    def verdict(self, call: ToolCall) -> Verdict:
        return strictest(rule.decision for rule in self.rules if fnmatchcase(call.name, rule.tool))


def read_rules(text: str) -> ToolRules:
    """Of `decision:tool,decision:tool`. Raises ValueError for another decision, and for a rule without a
    tool."""
    pairs = [part.strip().partition(":") for part in text.split(",") if part.strip()]
    if any(decision not in ("allow", "prompt", "forbid") or not tool for decision, _, tool in pairs):
        raise ValueError("accepted is allow|prompt|forbid:tool, after commas")
    return ToolRules(tuple(ToolRule(cast("Verdict", decision), tool) for decision, _, tool in pairs))


@dataclass(frozen=True, slots=True)
class Approval:
    """Who decides on calls. With nobody to ask, what would be asked is rejected."""

    policy: Policy = ToolRules()
    person: Person | None = None

    async def refusal(self, call: ToolCall, own: Verdict = "allow") -> dict[str, JsonValue] | None:
        """What the model gets instead of a result, an object for JSON; None for a call that may run. `own` is
        the tool's. Raises Undecided."""
        verdict = strictest((own, self.policy.verdict(call)))
        if verdict == "forbid":
            return {"error": f"the policy forbids this call of {call.name!r}"}
        if verdict == "allow" or (self.person and await self.person.confirms(call)):
            return None
        reason = "was not confirmed" if self.person else "needs a confirmation, and nobody is there to ask"
        return {"success": False, "error": USER_REJECTED, "message": f"{call.name!r} {reason}"}


class ToolRegistry:
    """Tools by name. Each call has an answer within the tool's `timeout_s` seconds, a failed one `{"error":
    …}`."""

    def __init__(self, approval: Approval | None = None) -> None:
        self._approval = approval or Approval()
        self._tools: dict[str, Tool] = {}

    def register(self, tool: Tool) -> None:
        """Raises ValueError for a name twice, or parameters that are no JSON Schema."""
        if tool.spec.name in self._tools:
            raise ValueError(f"a tool {tool.spec.name!r} is registered already")
        if fault := schema_fault(tool.spec.parameters):
            raise ValueError(f"the parameters of tool {tool.spec.name!r}: {fault}")
        self._tools[tool.spec.name] = tool

    def only(self, names: Iterable[str], approval: Approval | None = None) -> ToolRegistry:
        """A registry of these tools alone. Raises ValueError for a name that is not registered."""
        wanted = list(dict.fromkeys(names))
        if unknown := [name for name in wanted if name not in self._tools]:
            raise ValueError(f"no tools {unknown}; registered: {sorted(self._tools)}")
        narrowed = ToolRegistry(approval or self._approval)
        narrowed._tools = {name: self._tools[name] for name in wanted}
        return narrowed

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    async def execute(self, call: ToolCall) -> JsonValue:
        """The tool's result as JSON holds it, or an object with `error`. Never raises for what a tool or a
        model does; raises Undecided."""
        refusal = await self.refusal(call)
        return await self.run(call) if refusal is None else refusal

    async def refusal(self, call: ToolCall) -> dict[str, JsonValue] | None:
        """An object with `error` for a call of an unknown tool, with arguments that do not fit its JSON
        Schema, or that may not run; None for any other. May wait for a person. Raises Undecided."""
        tool = self._tools.get(call.name)
        if tool is None:
            return {"error": f"no tool {call.name!r}; there are: {', '.join(self._tools) or 'none'}"}
        try:
            found = list(islice(problems(tool.spec.parameters, call.arguments), MOST_PROBLEMS))
        except (CannotBeChecked, RecursionError) as error:
            told = str(error) if isinstance(error, CannotBeChecked) else "they are nested too deeply"
            return {"error": f"the arguments cannot be checked: {told}"}
        if found:
            return {"error": "; ".join(found)[:LONGEST_PROBLEM]}
        return await self._approval.refusal(call, tool.approval)

    async def run(self, call: ToolCall) -> JsonValue:
        """The result of a call that was not refused, as JSON holds it, or an object with `error`: after
        `timeout_s` seconds, and for whatever the tool raises. Raises KeyError for a name that is not
        registered."""
        tool = self._tools[call.name]
        deadline = asyncio.timeout(tool.timeout_s)
        try:
            async with deadline:
                result = await tool.run(call.arguments)
            return cast("JsonValue", orjson.loads(orjson.dumps(result)))
        # Tools are anybody's code, and the model is the one to learn that one failed (M9).
        except Exception as error:  # noqa: BLE001
            if isinstance(error, TimeoutError) and deadline.expired():
                return {"error": f"no result within {tool.timeout_s:g} s"}
            _log.warning("tool_failed", tool=tool.spec.name, exception=type(error).__name__)
            return {"error": shortened(str(error)) or type(error).__name__}
