"""The composition root: settings in, a running application out, on the stores of `stores`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from ipaddress import ip_address
from os import getpid
from socket import gethostname

from fastapi import FastAPI

from adapters.graphviz import Graphviz
from adapters.http_door import origin
from adapters.jobs import JobRunner
from adapters.models.audit import LoggedCalls
from adapters.models.factory import build_model
from adapters.models.prices import price
from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from adapters.telemetry import ObservedFlowStore, ObservedVersionStore, observed_memory
from api.agent_runs import AgentRunRoutes
from api.app import create_app
from api.auth import Authenticator, authenticator_for
from api.console import KeyRoutes
from api.conversations import AgentRoutes, ErasureRoutes, MemoryRoutes
from api.design_tools import DesignTools
from api.designers import DesignerRoutes
from api.editors import DiagramRoutes, HelperRoutes, SchemaRoutes
from api.endpoints import Room
from api.gateway import REQUEST_BASE_URL, Metrics
from api.history import HistoryRoutes
from api.mcp_endpoint import McpEndpoint
from api.mcp_tools import ConversationTools
from api.merging import MergeRoutes
from api.migrations import MigrationRoutes
from api.operations import OperationsRoutes
from api.playing_tools import PlayingTools
from api.programs import ProgramRoutes
from api.replays import ReplayRoutes
from api.scores import ScoreRoutes
from api.simulations import SimulationRoutes
from api.tags import TagRoutes
from api.tries import TryRoutes
from flow_engine.errors import RetryLater
from flow_engine.listening.conclusions import RuleSummariser
from flow_engine.ports.clock import Clock, SystemClock
from flow_engine.ports.jobs import DueJob
from flow_engine.ports.models import LanguageModel, NoModel
from flow_engine.ports.operations import ProcessKind
from flow_engine.ports.outbound import OutboundSender
from flow_engine.ports.system_prompts import SystemPrompts
from flow_engine.ports.telemetry import Tracing, Unobserved, Untraced
from flow_engine.runtime.platform import Platform
from flow_engine.testing.bench import InstalledFlow
from flow_engine.testing.report import ScenarioVerdict
from flow_engine.testing.simulation import Persona, Run
from flow_engine.testing.simulations import (
    Played,
    SimulationLimits,
    SimulationParts,
    Simulations,
    play_in_text,
)
from flow_engine.testing.tries import Tries, TryLimits, TryParts
from flow_engine.use_cases.archiving import KeptJournal, prune_due
from flow_engine.use_cases.chat_watch import ChatWatch
from flow_engine.use_cases.conversations import Conversations
from flow_engine.use_cases.designing import Designing
from flow_engine.use_cases.dialogue import DialogueService
from flow_engine.use_cases.erasing import Erasures
from flow_engine.use_cases.flow_service import FlowService
from flow_engine.use_cases.following import JournalStreams
from flow_engine.use_cases.forking import Forks
from flow_engine.use_cases.history import History
from flow_engine.use_cases.migrations import Migrations
from flow_engine.use_cases.model_catalog import ModelRewriter
from flow_engine.use_cases.operating import Operations, OperationsStores
from flow_engine.use_cases.previewing import Previews
from flow_engine.use_cases.recordings import Recordings
from flow_engine.use_cases.replays import Replays
from flow_engine.use_cases.rollouts import Rollouts
from flow_engine.use_cases.scoring import Scoring
from flow_engine.use_cases.submissions import Submission, Submissions
from flow_engine.use_cases.transactor import ConversationDependencies, Transactor
from flow_engine.use_cases.versions_in_use import VersionsInUse
from flows.samples import install_samples
from memory.call_budget import RedisCallBudget
from memory.connection import RedisMemory
from memory.operations import OwnProcess
from memory.schedule import RedisDeadLetters, RedisJobSchedule
from service import late
from service.background import JobDependencies, job_runners, reading_with
from service.observing import KeptCalls, ObservedCalls, PrometheusObserver, Watch, own_observer
from service.programs import voice_source
from service.settings import Settings
from service.stores import (
    FlowDatabase,
    agent_runs,
    kept_journal,
    new_id,
    open_flow_database,
    open_memory,
    records_of,
)
from system_prompts.loader import load_model_catalog, load_system_prompts

Scrape = Callable[[], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Service:
    """The application and its background work, and what has to be open while either goes on. Each source of
    jobs has its runner: the schedule first, then the CTI's stream where one is set. `end_streams` ends what
    would keep a server from stopping, within a second."""

    app: FastAPI
    opened: Callable[[], AbstractAsyncContextManager[None]]
    jobs: Sequence[JobRunner]
    metrics: Metrics
    mcp: McpEndpoint
    end_streams: Callable[[], None]


@dataclass(frozen=True, slots=True)
class ServiceDependencies:
    """What a service meets of the world: its time, its way out, its model and its two stores, not yet opened.

    A test sets the time and scripts the answers of the world by giving its own.
    """

    clock: Clock
    outbound: OutboundSender
    memory: RedisMemory
    database: FlowDatabase
    model: LanguageModel = field(default_factory=NoModel)
    observer: PrometheusObserver = field(default_factory=own_observer)
    tracing: Tracing = field(default_factory=Untraced)
    scrape: Scrape | None = None
    """Where `/metrics` answers for more than this process."""
    try_limits: TryLimits = field(default_factory=TryLimits)
    simulation_limits: SimulationLimits = field(default_factory=SimulationLimits)

    @asynccontextmanager
    async def opened(self, settings: Settings, submissions: Submissions) -> AsyncGenerator[None]:
        """The stores are open within, and the embedded default has its samples. Raises CallTheOperator
        `redis_unsafe`, RetryLater for a store that is away."""
        memory, database = self.memory, self.database
        async with AsyncExitStack() as stack:
            stack.push_async_callback(memory.close)
            await database.connection.open()
            stack.push_async_callback(database.connection.close)
            if settings.redis_url is not None and not settings.redis_unsafe:
                await memory.check_safety(settings.redis_durability)
            if settings.samples and settings.mongo_url is None:
                await install_samples(database.flows, database.versions, submissions, self.clock)
            yield


def build_service(
    settings: Settings,
    *,
    host: str,
    port: int,
    kind: ProcessKind = "serve",
    tracing: Tracing | None = None,
    scrape: Scrape | None = None,
) -> Service:
    """`scrape` gives the metrics, as Prometheus's text, where they are not those of this process alone.

    Raises CallTheOperator when the service must not start with these settings.
    """
    observer, tracing = own_observer(), tracing or Untraced()
    authenticator = authenticator_for(settings.api_keys_file, host, settings.origins)
    outbound = GuardedClient(AllowList.parse(settings.outbound_allow))
    clock, memory = SystemClock(), open_memory(settings)
    budget = RedisCallBudget(memory.driver, settings.llm_calls_per_minute)
    calls = ObservedCalls(KeptCalls(LoggedCalls(), memory.operations, observer), observer, tracing)
    model = build_model(settings, clock, budget=budget, log=calls)
    dependencies = ServiceDependencies(
        clock, outbound, memory, open_flow_database(settings), model, observer, tracing, scrape
    )
    own = OwnProcess(f"{gethostname()}:{getpid()}", kind, version("flow-engine"), clock.now())
    flows_ready = dependencies.database.connection.ready
    watch = Watch(observer, memory.operations, own, clock, ready=memory.ready, flows_ready=flows_ready)
    service = assemble(settings, dependencies, authenticator, base_url=_base_url(host, port))

    @asynccontextmanager
    async def opened() -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(outbound.aclose)
            stack.push_async_callback(model.aclose)
            await stack.enter_async_context(service.opened())
            with suppress(RetryLater):  # what was to be removed while nothing ran, or was known to nobody
                missed = prune_due(clock.now() - timedelta(hours=1)).job
                await RedisJobSchedule(memory.driver).schedule(DueJob(missed, clock.now()))
            await stack.enter_async_context(watch.running())
            yield

    return replace(service, opened=opened)


def assemble(
    settings: Settings, dependencies: ServiceDependencies, authenticator: Authenticator, base_url: str | None
) -> Service:
    """Wire the parts. `base_url` is where agents and tools reach the service unless a setting says so; None
    where only they know, by the `Host` that they name. Raises CallTheOperator `webhook_secret_missing`."""
    memory, database, observer = dependencies.memory, dependencies.database, dependencies.observer
    prompts, known_url = load_system_prompts(), settings.public_url or base_url
    designing = _designing(settings, dependencies, prompts)
    versions = VersionsInUse(designing.flows, memory.definitions)
    observer.asks("compiled_versions", lambda: versions.kept)
    observer.conversations_are_held_by(memory.conversations.holding)
    journal = kept_journal(settings, memory, database, versions, dependencies.clock)
    shared = ConversationDependencies(
        memory=observed_memory(memory.conversations, observer, dependencies.tracing),
        versions=versions,
        platform=Platform(prompts, partial(_address, known_url), settings.memory_format),
        clock=dependencies.clock,
        summariser=RuleSummariser(prompts),
        outbound=dependencies.outbound,
        observer=observer,
        quiet_bytes=settings.held_bytes,
    )
    stores = designing.flows, memory.outcomes, dependencies.clock, memory.conversations, memory.listing
    rollouts = Rollouts(*stores, RedisJobSchedule(memory.driver).schedule)
    transactor, metrics = Transactor(shared), Metrics(observer.registry)
    agents = Conversations(transactor, shared), DialogueService(transactor, shared)
    recordings = Recordings(versions, journal, memory.listing)
    watching, streams = _watching(settings, dependencies, transactor, journal, recordings)
    replays = Replays(designing, recordings, transactor.platform)
    tries = _tries(settings, dependencies, shared, designing, versions, rollouts)
    simulations = _simulations(dependencies, designing)
    designs, plays = DesignTools(designing, _played), PlayingTools(tries, simulations, replays, designing)
    rows = [tool for each in (ConversationTools(*agents), designs, plays) for tool in each.tools()]
    mcp = McpEndpoint(rows, metrics, version=version("flow-engine"))
    previews = Previews(designing, History(transactor, journal, memory.listing), transactor)
    trying, simulating = TryRoutes(tries, designing, _played, previews), SimulationRoutes(simulations)
    tags, replaying = TagRoutes(designing.flows, rollouts), ReplayRoutes(replays)
    chat = ChatWatch(records_of(database, "chat_decisions"), records_of(database, "agent_runs"))
    programs = ProgramRoutes(voice_source(settings), chat)
    erasures = ErasureRoutes(Erasures(transactor, journal))
    doors = Doors(metrics, mcp, erasures, (tags, programs, watching, replaying, trying, simulating))
    application = _application(designing, prompts, transactor, agents, dependencies, doors)
    app = application(authenticator, cors_origins=settings.origins, named_hosts=known_url is None)
    opened = partial(dependencies.opened, settings, designing.submissions)
    parts = JobDependencies(
        *(transactor, dependencies.model, memory, dependencies.outbound),
        *(dependencies.clock, observer, rollouts, journal),
    )
    jobs = job_runners(settings, parts, agents, dependencies.tracing)
    return Service(app, opened, jobs, metrics, mcp, streams.stop)


def _designing(settings: Settings, dependencies: ServiceDependencies, prompts: SystemPrompts) -> Designing:
    database, observer = dependencies.database, dependencies.observer
    flow_service = FlowService(
        flows=ObservedFlowStore(database.flows, observer),
        versions=ObservedVersionStore(database.versions, observer),
        clock=dependencies.clock,
        new_id=new_id,
    )
    allow = AllowList.parse(settings.outbound_allow)
    submissions = Submissions(prompts, settings.document_limits, new_id, allow.visible_refusal)
    return Designing(flow_service, submissions, dependencies.clock)


def _tries(
    settings: Settings,
    dependencies: ServiceDependencies,
    shared: ConversationDependencies,
    designing: Designing,
    versions: VersionsInUse,
    rollouts: Rollouts,
) -> Tries:
    """Not observed: what is tried is no conversation, and counts as none."""
    background = reading_with(settings, dependencies.model, Unobserved(), rollouts)
    store, clock = dependencies.memory.tries, dependencies.clock
    parts = TryParts(designing, versions, shared.platform, background, store, clock, new_id)
    return Tries(parts, dependencies.try_limits)


def _simulations(dependencies: ServiceDependencies, designing: Designing) -> Simulations:
    """Not observed either."""
    parts = SimulationParts(
        *(designing, _installed, play_in_text, _called),
        *(dependencies.model, dependencies.memory.tries, dependencies.clock),
    )
    return Simulations(parts, dependencies.simulation_limits)


def _watching(
    settings: Settings,
    dependencies: ServiceDependencies,
    transactor: Transactor,
    journal: KeptJournal,
    recordings: Recordings,
) -> tuple[HistoryRoutes, JournalStreams]:
    listing = dependencies.memory.listing
    history = History(transactor, journal, listing)
    streams = JournalStreams(history, transactor, journal, listing, at_once=settings.streams_at_once)
    dependencies.observer.asks("streams_open", lambda: streams.open)
    forks = Forks(history, transactor, journal, listing)
    return HistoryRoutes(listing, history, recordings, forks, streams), streams


def _address(known_url: str | None) -> str:
    """Work without a request knows loopback."""
    return (known_url or REQUEST_BASE_URL.get() or "http://127.0.0.1").rstrip("/")


def _base_url(host: str, port: int) -> str | None:
    """None for an address that stands for every one of this machine: nobody can call that one."""
    with suppress(ValueError):  # a name is no address
        if ip_address(host).is_unspecified:
            return None
    return origin(host, port)


@dataclass(frozen=True, slots=True)
class Doors:
    """Ways into the application that are wired with more than it."""

    metrics: Metrics
    mcp: McpEndpoint
    erasures: ErasureRoutes
    rooms: Sequence[Room]


def _application(
    designing: Designing,
    prompts: SystemPrompts,
    transactor: Transactor,
    agents: tuple[Conversations, DialogueService],
    dependencies: ServiceDependencies,
    doors: Doors,
) -> Callable[..., FastAPI]:
    memory, model = dependencies.memory, dependencies.model
    conversations, dialogue = agents
    release, scrape = version("flow-engine"), dependencies.scrape or doors.metrics.scrape
    probes = {"memory": memory.ready, "flows": dependencies.database.connection.ready}
    stores = OperationsStores(memory.operations, RedisDeadLetters(memory.driver), memory.listing)
    rooms = (
        doors.erasures,
        AgentRoutes(conversations, dialogue),
        MemoryRoutes(dialogue),
        DesignerRoutes(designing),
        MergeRoutes(designing),
        ScoreRoutes(designing.flows, Scoring(transactor, model)),
        MigrationRoutes(Migrations(transactor, memory.index)),
        AgentRunRoutes(agent_runs(dependencies.database, dependencies.clock)),
        DiagramRoutes(designing.flows, Graphviz()),
        HelperRoutes(load_model_catalog(), prompts, ModelRewriter(model)),
        SchemaRoutes(),
        OperationsRoutes(Operations(stores, dependencies.clock, price), probes, scrape, release),
        KeyRoutes(),
        *doors.rooms,
    )
    return partial(
        create_app,
        rooms,
        metrics=doors.metrics,
        version=release,
        unlisted=(doors.mcp.row(),),
        tracing=dependencies.tracing,
    )


async def _played(submission: Submission, flow_id: str, tests: bytes) -> ScenarioVerdict:
    return await late.scenarios.run_tests_beside(submission, flow_id, tests)


def _installed(submission: Submission, flow_id: str) -> AbstractAsyncContextManager[InstalledFlow]:
    return late.scenarios.installed_version(submission, flow_id)


async def _called(
    persona: Persona, flow: InstalledFlow, number: int, run: Run | None, model: LanguageModel
) -> Played:
    """The voice agent takes seconds to load: in a thread."""
    calls = await asyncio.to_thread(getattr, late, "simulated_calls")
    return await calls.call(persona, flow, number, run, model)
