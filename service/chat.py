"""Run the chat in this process until it is stopped: its parts put together, on the stores of the engine."""

from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.responses import Response

from adapters.http_door import door_server, listen, origin
from adapters.models.audit import CallLog, LoggedCalls
from adapters.models.factory import ConnectedModel, NamedModels, build_model
from adapters.models.thoughts import WithoutThoughts
from adapters.models.tools import ToolRules, read_rules
from adapters.models.wrappers import CallBudget, ProcessCallBudget
from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from api.auth import Authenticator, authenticator_for
from channels.chat.accounts import Accounts
from channels.chat.agents import AgentLoader
from channels.chat.answering import Answering
from channels.chat.app import Probe, chat_app
from channels.chat.decisions import Orchestrator
from channels.chat.flow_agent import FlowAgents
from channels.chat.frames import MAX_FRAME_BYTES
from channels.chat.http import log
from channels.chat.routes import AgentRoutes, SessionRoutes
from channels.chat.rows import profile_rows
from channels.chat.sessions import Sessions, SessionStore
from channels.chat.settings import ChatSettings
from channels.chat.table import AgentTable
from channels.chat.tokens import Tokens
from channels.chat.tools import McpSource, ToolSources, load_tools, mcp_urls
from channels.engine_client.client import EngineClient, engine_http
from channels.engine_client.ends import ContactEnds
from channels.engine_client.mcp_tools import McpConnections
from flow_engine.errors import CallTheOperator, CorrectTheInput
from flow_engine.ports.chat import ChatBus
from flow_engine.ports.clock import Clock, SystemClock
from flow_engine.ports.models import LanguageModel
from flow_engine.ports.telemetry import Tracing, Untraced
from flow_engine.values import utc_text
from memory.call_budget import RedisCallBudget
from memory.chat_in_process import InProcessChat
from memory.chat_sessions import RedisBus, RedisChat
from service.observing import CHAT_COUNTED, CountingObserver, ObservedCalls
from service.serving import KeyDoor, announce, collect_seldom, run_until_stopped
from service.settings import Settings, read_settings
from service.stores import FlowDatabase, open_flow_database, open_memory, records_of

LLM_AT_ONCE = 256
LLM_CALLS_PER_MINUTE = 12_000
"""Bounds of a chat where the settings name none: its answers are long streams, and many at once."""


@dataclass(frozen=True, slots=True)
class ChatService:
    """A running chat. `table` and `sessions` are what its routes work on."""

    app: Starlette
    table: AgentTable
    sessions: Sessions


@asynccontextmanager
async def chat_service(
    settings: Settings,
    chat: ChatSettings,
    authenticator: Authenticator,
    *,
    model: ConnectedModel | None = None,
    shared: tuple[SessionStore, ChatBus] | None = None,
    tracing: Tracing | None = None,
) -> AsyncGenerator[ChatService]:
    """While this is open the chat works. `model` stands in for the configured one, `shared` for the sessions
    that Redis or this process keeps. Without `llm_model` the orchestrator asks no model. Raises
    CallTheOperator for settings that cannot be used, RetryLater for a store that is away."""
    clock, database = SystemClock(), open_flow_database(settings)
    observer, tracing = CountingObserver(CollectorRegistry(), CHAT_COUNTED), tracing or Untraced()
    async with AsyncExitStack() as stack:
        await database.connection.open()
        stack.push_async_callback(database.connection.close)
        stores = await _stores(settings, stack)
        store, bus = shared or (stores.sessions, stores.bus)
        model = model or _chat_model(settings, stores.budget, ObservedCalls(LoggedCalls(), observer, tracing))
        stack.push_async_callback(model.aclose)
        outbound = GuardedClient(AllowList.parse(settings.outbound_allow))
        stack.push_async_callback(outbound.aclose)
        sources = _tool_sources(settings, chat, outbound, stack)
        profiles = [] if chat.chat_mail_config is None else profile_rows(chat.chat_mail_config)
        table = AgentTable(records_of(database, "ai_agents"), clock, sources, profiles=profiles)
        accounts = accounts_of(database, clock, observer)
        stack.push_async_callback(accounts.aclose)
        policy, plain = _tool_rules(chat.chat_tool_rules), WithoutThoughts(model)
        served = _tenants_of_flows(authenticator, chat)
        flows = _flow_agents(settings, chat, plain, accounts, policy, served, stack)
        orchestrator = Orchestrator(chat, plain if settings.llm_model else None)
        answering = Answering(
            AgentLoader(table, plain), orchestrator, sources, accounts, flows, policy, chat.chat_confirm_s
        )
        sessions = Sessions(
            store, bus, answering, flows, idle_s=chat.chat_idle_s, observer=observer, tracing=tracing
        )
        tokens = partial(_tokens, store, clock)
        of_sessions = SessionRoutes(sessions, answering, accounts, tokens, flows.people)
        endpoints = [*AgentRoutes(table).endpoints(), *of_sessions.endpoints()]
        probes = {"memory": stores.ready, "flows": database.connection.ready}
        scrape = partial(metrics_of, observer)
        app = chat_app(endpoints, sessions, tokens, KeyDoor(authenticator), probes, scrape, tracing)
        for tenant_id in authenticator.tenants():
            await table.rows(tenant_id)
        await stack.enter_async_context(accounts.forgetting(authenticator.tenants(), chat.chat_keep_days))
        await stack.enter_async_context(sessions.running())
        yield ChatService(app, table, sessions)


async def _tokens(store: SessionStore, clock: Clock) -> Tokens:
    """By the secret of now: in a Redis that was replaced there is another one."""
    return Tokens(await store.secret(), clock)


def accounts_of(database: FlowDatabase, clock: Clock, observer: CountingObserver) -> Accounts:
    """Runs, model calls and decisions of a chat in the tables of the database."""
    return Accounts(
        records_of(database, "agent_runs"),
        records_of(database, "llm_calls"),
        records_of(database, "chat_decisions"),
        clock,
        observer,
    )


def metrics_of(observer: CountingObserver) -> Response:
    """What `/metrics` answers: Prometheus' text format in UTF-8."""
    return Response(generate_latest(observer.registry), media_type=CONTENT_TYPE_LATEST)


def chat_server(app: Starlette) -> uvicorn.Server:
    """To be served on a socket that is bound already."""
    return door_server(
        app,
        ws="websockets-sansio",
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,  # frames are short; each connection would hold its compressor
    )


def serve_until_stopped(host: str, port: int) -> None:
    """Returns after SIGINT or SIGTERM. Raises FlowEngineError when the set-up forbids to start. Prints its
    URL on standard error."""
    settings, chat = read_settings(Settings), read_settings(ChatSettings)
    authenticator = authenticator_for(settings.api_keys_file, host)
    run_until_stopped(settings, partial(_serve, settings, chat, authenticator, host, port))


async def _serve(
    settings: Settings,
    chat: ChatSettings,
    authenticator: Authenticator,
    host: str,
    port: int,
    tracing: Tracing,
) -> None:
    listening = listen(host, port)
    async with chat_service(settings, chat, authenticator, tracing=tracing) as service:
        collect_seldom(after=10_000)
        at = cast("int", listening.getsockname()[1])
        announce(f"Chat on {origin(host, at)} (WebSocket: /v1/chat/ws). Ctrl-C stops it.")
        await chat_server(service.app).serve(sockets=[listening])


@dataclass(frozen=True, slots=True)
class _Stores:
    """What replicas share, and what tells whether it can be written to."""

    sessions: SessionStore
    bus: ChatBus
    budget: CallBudget
    ready: Probe


async def _stores(settings: Settings, stack: AsyncExitStack) -> _Stores:
    if settings.redis_url is None:
        here = InProcessChat()
        return _Stores(here, here, ProcessCallBudget(_bounded(settings).llm_calls_per_minute), here.secret)
    memory = open_memory(settings)
    stack.push_async_callback(memory.close)
    if not settings.redis_unsafe:
        await memory.check_safety(settings.redis_durability)
    bus = RedisBus(memory.driver)
    stack.push_async_callback(bus.aclose)
    # A bound that an operator names is one for the engine and the chat; their own differ, and are apart.
    name = "model-calls" if "llm_calls_per_minute" in settings.model_fields_set else "chat-model-calls"
    budget = RedisCallBudget(memory.driver, _bounded(settings).llm_calls_per_minute, name=name)
    return _Stores(RedisChat(memory.driver), bus, budget, memory.ready)


def _bounded(settings: Settings) -> Settings:
    """With the chat's bounds where the settings name none."""
    bounds = {"llm_at_once": LLM_AT_ONCE, "llm_calls_per_minute": LLM_CALLS_PER_MINUTE}
    unset = {name: bound for name, bound in bounds.items() if name not in settings.model_fields_set}
    return settings.model_copy(update=unset)


def _chat_model(settings: Settings, budget: CallBudget, log: CallLog) -> ConnectedModel:
    bounded = _bounded(settings)

    def built(name: str | None = None) -> ConnectedModel:
        return build_model(
            bounded, SystemClock(), named=name, budget=budget, log=log, retries=1, retry_unusable=True
        )

    return built() if bounded.llm_model else NamedModels(built)


def _tool_sources(
    settings: Settings, chat: ChatSettings, outbound: GuardedClient, stack: AsyncExitStack
) -> ToolSources:
    mcp = None
    if urls := mcp_urls(chat.chat_mcp_servers):
        mcp = McpSource(urls, McpConnections(AllowList.parse(settings.outbound_allow), {}))
        stack.push_async_callback(mcp.aclose)
    modules = [name.strip() for name in chat.tool_modules.split(",") if name.strip()]
    clock = SystemClock()
    return ToolSources(
        load_tools(modules), outbound, mcp, specials=lambda: {"now_iso": utc_text(clock.now())}
    )


def _tool_rules(text: str) -> ToolRules:
    """Raises CallTheOperator `tool_rules_invalid`."""
    try:
        return read_rules(text)
    except ValueError as error:
        raise CallTheOperator("tool_rules_invalid", f"FLOW_ENGINE_CHAT_TOOL_RULES: {error}") from None


def _tenants_of_flows(authenticator: Authenticator, chat: ChatSettings) -> frozenset[str]:
    """Those whose flows the engine's key runs. The chat of one tenant may have any key; of several, none
    reaches another's flows: only the one counts that the file of keys gives the engine's key to."""
    tenants = authenticator.tenants()
    if len(tenants) <= 1:
        return tenants
    key = "" if chat.api_key is None else chat.api_key.get_secret_value()
    served: frozenset[str] = frozenset()
    with suppress(CorrectTheInput):
        owner = authenticator.authenticate([(b"authorization", f"Bearer {key}".encode())])
        served = frozenset((owner.tenant_id,))
    if key:
        log.warning("flows_of_one_tenant", tenant=next(iter(served), None), others=len(tenants - served))
    return served


def _flow_agents(
    settings: Settings,
    chat: ChatSettings,
    model: LanguageModel,
    accounts: Accounts,
    policy: ToolRules,
    tenants: Collection[str],
    stack: AsyncExitStack,
) -> FlowAgents:
    key = None if chat.api_key is None else chat.api_key.get_secret_value()
    http = engine_http(chat.engine_url, key)
    stack.push_async_callback(http.aclose)
    engine = EngineClient(http)
    ends = ContactEnds(engine)
    stack.push_async_callback(ends.aclose)
    allow = AllowList.parse(settings.outbound_allow)
    trusted = {engine.mcp_url: {"Authorization": f"Bearer {key}"} if key else {}}
    return FlowAgents(
        engine,
        ends,
        lambda: McpConnections(allow, trusted),
        model,
        accounts,
        SystemClock(),
        policy,
        confirm_s=chat.chat_confirm_s,
        tenants=tenants,
    )
