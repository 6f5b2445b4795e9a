"""Tools that models may call: the registry, and everything that holds for every call of one.

1. A registry answers only for its own tools; `only` narrows it to those of a profile (M10).
2. Arguments are checked against the tool's schema before anything else happens.
3. The policy is asked on every call; what it wants confirmed and nobody confirms is rejected.
4. Whatever a tool does, its call has an answer: a result, or `{"error": ...}` (M9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal, Protocol, cast

import orjson
import structlog
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

from adapters.models.chat import ToolCall, ToolSpec
from flow_engine.values import JsonValue

_log: Any = structlog.get_logger("flow_engine.tools")

Arguments = Mapping[str, JsonValue]
Verdict = Literal["allow", "prompt", "forbid"]

TOOL_TIMEOUT_S: Final = 30.0
USER_REJECTED: Final = "USER_REJECTED"
MOST_PROBLEMS: Final = 5
LONGEST_PROBLEM: Final = 1_000


@dataclass(frozen=True, slots=True)
class Tool:
    """`run` gets arguments that fit the schema and returns anything JSON can hold."""

    spec: ToolSpec
    run: Callable[[Arguments], Awaitable[object]]
    timeout_s: float = TOOL_TIMEOUT_S


class Policy(Protocol):
    """Whether a call may run: `prompt` asks a person first."""

    def verdict(self, tool: str, arguments: Arguments) -> Verdict: ...


class Person(Protocol):
    """Somebody who can be asked to confirm a call."""

    async def confirms(self, tool: str, arguments: Arguments) -> bool: ...


class AllowAll:
    """Implements `Policy` where listing a tool is the permission to call it."""

    def verdict(self, tool: str, arguments: Arguments) -> Verdict:
        return "allow"


@dataclass(frozen=True, slots=True)
class Approval:
    """Who decides on calls. With nobody to ask, what would be asked is rejected."""

    policy: Policy
    person: Person | None = None

    async def refusal(self, tool: str, arguments: Arguments) -> dict[str, JsonValue] | None:
        verdict = self.policy.verdict(tool, arguments)
        if verdict == "forbid":
            return {"error": f"the policy forbids this call of {tool!r}"}
        if verdict == "allow" or (self.person and await self.person.confirms(tool, arguments)):
            return None
        message = f"{tool!r} was not confirmed" if self.person else f"nobody is there to confirm {tool!r}"
        return {"success": False, "error": USER_REJECTED, "message": message}


@dataclass(frozen=True, slots=True)
class _Registered:
    tool: Tool
    validator: Draft202012Validator


class ToolRegistry:
    """Tools by name."""

    def __init__(self, approval: Approval | None = None) -> None:
        self._approval = approval or Approval(AllowAll())
        self._tools: dict[str, _Registered] = {}

    def register(self, tool: Tool) -> None:
        """Raises ValueError for a name twice, or a schema that is none."""
        if tool.spec.name in self._tools:
            raise ValueError(f"a tool {tool.spec.name!r} is registered already")
        self._tools[tool.spec.name] = _Registered(tool, _validator(tool.spec))

    def only(self, names: Iterable[str], approval: Approval | None = None) -> ToolRegistry:
        """A registry of these tools alone. Raises ValueError for a name that is not registered."""
        wanted = list(dict.fromkeys(names))
        if unknown := [name for name in wanted if name not in self._tools]:
            raise ValueError(f"no tools {unknown}; registered: {sorted(self._tools)}")
        narrowed = ToolRegistry(approval or self._approval)
        narrowed._tools = {name: self._tools[name] for name in wanted}
        return narrowed

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(registered.tool.spec for registered in self._tools.values())

    async def execute(self, call: ToolCall) -> JsonValue:
        """The tool's result, or an object with `error`. Never raises for what a tool or a model does."""
        registered = self._tools.get(call.name)
        if registered is None:
            return {"error": f"no tool {call.name!r}; there are: {', '.join(self._tools) or 'none'}"}
        problem = _problem(registered.validator, call.arguments)
        if problem is not None:
            return {"error": problem}
        refusal = await self._approval.refusal(call.name, call.arguments)
        return refusal if refusal is not None else await _ran(registered.tool, call.arguments)


def _validator(spec: ToolSpec) -> Draft202012Validator:
    schema = dict(spec.parameters)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"the parameters of tool {spec.name!r}: {error.message}") from error
    # An empty registry: without one, a `$ref` to an address is fetched.
    nothing_remote: Registry[Any] = Registry()
    return Draft202012Validator(schema, registry=nothing_remote)


def _problem(validator: Draft202012Validator, arguments: Arguments) -> str | None:
    try:
        errors = list(islice(validator.iter_errors(dict(arguments)), MOST_PROBLEMS))
    except (Unresolvable, RecursionError) as error:
        return f"the arguments cannot be checked: {type(error).__name__}"
    problems = [f"arguments{error.json_path.removeprefix('$')}: {error.message}" for error in errors]
    return "; ".join(problems)[:LONGEST_PROBLEM] or None


async def _ran(tool: Tool, arguments: Arguments) -> JsonValue:
    deadline = asyncio.timeout(tool.timeout_s)
    try:
        async with deadline:
            result = await tool.run(arguments)
        return cast("JsonValue", orjson.loads(orjson.dumps(result)))
    # Tools are anybody's code, and the model is the one to be told that one failed (M9).
    except Exception as error:  # noqa: BLE001
        if isinstance(error, TimeoutError) and deadline.expired():
            return {"error": f"no result within {tool.timeout_s:g} s"}
        _log.warning("tool_failed", tool=tool.spec.name, exception=type(error).__name__)
        return {"error": str(error) or type(error).__name__}
