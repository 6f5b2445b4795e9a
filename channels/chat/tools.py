"""The tools of agents (C11): Python functions by decorator, declarative HTTP tools, tools of MCP servers.

An agent has what its row lists, and nothing else. An HTTP tool is listed by being declared in the row; a tool
of an MCP server is listed as `server/tool`, and the model knows it as `server_tool`.
"""

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar, cast, overload

import structlog
from pydantic import BaseModel, ConfigDict, create_model
from pydantic.errors import PydanticUserError

from adapters.models.tools import TOOL_TIMEOUT_S, Arguments, Tool, ToolRegistry, Verdict, shortened
from channels.chat.rows import RESERVED_TOOLS, AgentRow
from channels.engine_client.mcp_tools import McpFailed, McpServers, McpTool
from channels.engine_client.tools import name_for_models
from channels.http_tools.tools import MOST_TOOL_S, CallContext, http_tool
from flow_engine.errors import CallTheOperator
from flow_engine.ports.models import ToolSpec
from flow_engine.ports.outbound import OutboundSender
from flow_engine.values import JsonValue

ENTRY_POINTS: Final = "flow_engine.tools"
LISTED_FOR_S: Final = 60.0

_MARK: Final = "__flow_engine_tool__"

Function = TypeVar("Function", bound=Callable[..., object])

log: Any = structlog.get_logger("flow_engine.chat")


@overload
def tool(function: Function) -> Function: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Verdict = "allow",
    timeout_s: float = TOOL_TIMEOUT_S,
) -> Callable[[Function], Function]: ...
def tool(
    function: Function | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    approval: Verdict = "allow",
    timeout_s: float = TOOL_TIMEOUT_S,
) -> Function | Callable[[Function], Function]:
    """Make a function, `def` or `async def`, a tool that rows may list. The model sees its name, its
    docstring and the JSON Schema of its parameters' types; it returns anything JSON can hold, within
    `timeout_s` seconds.

    Raises TypeError for parameters that cannot be given by name, or whose types have no schema.
    """

    def marked(function: Function) -> Function:
        told = description if description is not None else inspect.getdoc(function) or ""
        setattr(function, _MARK, _tool_of(function, name or function.__name__, told, approval, timeout_s))
        return function

    return marked if function is None else marked(function)


def _tool_of(
    function: Callable[..., object], name: str, description: str, approval: Verdict, timeout_s: float
) -> Tool:
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"tool {name!r}: accepted are parameters that are given by name")
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        fields[parameter.name] = (kind, ... if parameter.default is parameter.empty else parameter.default)
    try:
        model: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema()
    except PydanticUserError as error:
        raise TypeError(f"tool {name!r}: {error}") from error

    is_async = inspect.iscoroutinefunction(function)
    called: Callable[..., Awaitable[object]] = function if is_async else partial(asyncio.to_thread, function)

    async def run(arguments: Arguments) -> object:
        read = model.model_validate(dict(arguments))
        values = {field: getattr(read, field) for field in fields}
        return shortened(cast("JsonValue", await called(**values)))

    return Tool(ToolSpec(name, description, schema), run, timeout_s, approval)


def load_tools(modules: Iterable[str]) -> dict[str, Tool]:
    """The tools of these modules and of the entry points `flow_engine.tools`, by name. The working directory
    is importable.

    Raises CallTheOperator `tools_not_loaded`: a module that cannot be imported, a name twice, the name of a
    function that every agent has.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    named = {f"FLOW_ENGINE_TOOL_MODULES: {name!r}": partial(import_module, name) for name in modules}
    installed = {f"{ENTRY_POINTS}: {each.value!r}": each.load for each in entry_points(group=ENTRY_POINTS)}
    found: dict[str, Tool] = {}
    for place, load in {**named, **installed}.items():
        source = _loaded(place, load)
        members: Iterable[object] = vars(source).values() if isinstance(source, ModuleType) else (source,)
        for member in members:
            each = getattr(member, _MARK, None) if callable(member) else None
            if not isinstance(each, Tool):
                continue
            name = each.spec.name
            if name in RESERVED_TOOLS:
                raise CallTheOperator("tools_not_loaded", f"{place}: every agent has a function {name!r}")
            if found.setdefault(name, each) is not each:
                raise CallTheOperator("tools_not_loaded", f"{place}: two tools are named {name!r}")
    return found


def _loaded(place: str, load: Callable[[], object]) -> object:
    try:
        return load()
    except Exception as error:  # the operator's code runs, and fails as it likes
        reason = f"{place}: {type(error).__name__}: {error}"
        raise CallTheOperator("tools_not_loaded", reason) from error


class McpSource:
    """Tools of the MCP servers that the operator names; `urls` maps the names that rows use to http or https
    URLs."""

    def __init__(self, urls: Mapping[str, str], servers: McpServers) -> None:
        self._urls = urls
        self._servers = servers
        self._listed: dict[str, tuple[float, tuple[McpTool, ...]]] = {}

    def knows(self, name: str) -> bool:
        """Whether `server/tool` names a server that is configured; what it offers may change meanwhile. False
        for a name without a slash."""
        server, slash, tool = name.partition("/")
        return bool(slash and tool) and server in self._urls

    async def tool(self, name: str) -> Tool | None:
        """The tool of a server; None while the server is away, where it does not offer it, or where the model
        would know it under the name of a function that every agent has."""
        server, _, tool_name = name.partition("/")
        url = self._urls[server]
        listed = next((each for each in await self._list(server, url) if each.name == tool_name), None)
        own_name = name_for_models(f"{server}_{tool_name}")
        if listed is None or own_name in RESERVED_TOOLS:
            log.warning("mcp_tool_left_out", server=server, tool=tool_name)
            return None

        async def run(arguments: Arguments) -> object:
            try:
                return shortened(await self._servers.call(url, tool_name, arguments, {}))
            except McpFailed as failure:
                return {"error": str(failure)}

        spec = ToolSpec(own_name, listed.description, listed.parameters)
        return Tool(spec, run, MOST_TOOL_S)

    async def aclose(self) -> None:
        await self._servers.aclose()

    async def _list(self, server: str, url: str) -> tuple[McpTool, ...]:
        now = asyncio.get_running_loop().time()
        until, tools = self._listed.get(server, (0.0, ()))
        if now >= until:
            try:
                tools = await self._servers.tools(url)
            except McpFailed as failure:
                log.warning("mcp_server_away", server=server, reason=str(failure))
            self._listed[server] = (now + LISTED_FOR_S, tools)
        return tools


@dataclass(frozen=True, slots=True)
class ToolSources:
    """Where the tools of all agents come from. `specials` are what templates of HTTP tools see beside the
    arguments, such as `now_iso`."""

    functions: Mapping[str, Tool]
    outbound: OutboundSender
    mcp: McpSource | None = None
    specials: Callable[[], Mapping[str, JsonValue]] = field(default=dict)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.functions))

    def knows(self, name: str) -> bool:
        return name in self.functions or (self.mcp is not None and self.mcp.knows(name))

    async def register(self, row: AgentRow, registry: ToolRegistry, log_fields: Mapping[str, str]) -> None:
        """The tools that the row lists, and those that it declares, which come before others of their name.
        One that is gone is left out, and so is a server's that cannot stand beside the rest."""
        declared, listed = row.http_tools or {}, dict.fromkeys(row.tools or ())
        for name in listed:
            if name in self.functions and name not in declared:
                registry.register(self.functions[name])
        context = CallContext(ctx={}, specials=self.specials)
        for name, tool in declared.items():
            registry.register(
                http_tool(
                    name, tool, tool.parameters, self.outbound, context, log_fields, approval=tool.approval
                )
            )
        for name in listed:
            if self.mcp is not None and self.mcp.knows(name) and (offered := await self.mcp.tool(name)):
                try:
                    registry.register(offered)
                except ValueError as error:
                    log.warning("mcp_tool_left_out", tool=name, reason=str(error))


def mcp_urls(text: str) -> dict[str, str]:
    """The URL by name of `name=url,name=url`. Raises CallTheOperator `mcp_servers_invalid`."""
    pairs: Sequence[tuple[str, str, str]] = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not name.strip().isidentifier() or not url.strip() for name, _, url in pairs):
        raise CallTheOperator("mcp_servers_invalid", "accepted is name=url, several after commas")
    return {name.strip(): url.strip() for name, _, url in pairs}
