"""Run the mail agent in this process until it is stopped, and look into its runs from the command line."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import cast

import httpx2
import uvloop
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapters.http_door import door_server, listen, origin
from adapters.models.factory import ConnectedModel
from adapters.outbound.policy import AllowList
from channels.engine_client.mcp_tools import McpConnections
from channels.mail import delivery, flow, imap, loading, working
from channels.mail.config import MailboxConfig, MailConfig
from channels.mail.intake import Intake
from channels.mail.logins import Logins, check_secrets
from channels.mail.metrics import MailMetrics
from channels.mail.runs import RunStore, RunTables
from channels.mail.smtp import SmtpSender
from channels.mail.state import MailboxState
from flow_engine.errors import FlowEngineError
from flow_engine.ports.clock import SystemClock
from flow_engine.ports.records import RecordStore
from flow_engine.use_cases.agent_runs import AgentRuns, Decision, Row, RunStatus
from service import logs, mail, stores
from service.serving import announce, end_in_order_at_a_hangup
from service.settings import Settings, read_settings

TENANT = "default"


@dataclass(frozen=True, slots=True)
class MailService:
    """A mail agent that is put together. `run` works until the event is set."""

    app: Starlette
    intakes: tuple[Intake, ...]
    worker: working.RunWorker
    runs: AgentRuns

    async def run(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.worker.work(stopping))
            for intake in self.intakes:
                group.create_task(intake.watch(stopping))


@asynccontextmanager
async def mail_service(
    settings: Settings,
    loaded: loading.LoadedConfig,
    *,
    since: date | None = None,
    model: ConnectedModel | None = None,
) -> AsyncGenerator[MailService]:
    """Open while the agent may work. `model` stands in for the configured one; `since`: from that day on.

    Raises CallTheOperator for settings that cannot be used, RetryLater for a store that is away.
    """
    database, clock = stores.open_flow_database(settings), SystemClock()
    config, metrics = loaded.config, MailMetrics(CollectorRegistry())
    async with AsyncExitStack() as stack:
        await database.connection.open()
        stack.push_async_callback(database.connection.close)
        connected = model or mail.mail_model(settings)
        stack.push_async_callback(connected.aclose)
        outbound = mail.mail_outbound(settings, config)
        stack.push_async_callback(outbound.aclose)
        logins = Logins(os.environ, await stack.enter_async_context(httpx2.AsyncClient(trust_env=False)))
        flows = flow.FlowConversations(os.environ, partial(_connections, settings), clock)
        stack.push_async_callback(flows.aclose)
        runs, calls = stores.records_of(database, "agent_runs"), stores.records_of(database, "llm_calls")
        events, state = stores.records_of(database, "email_events"), stores.records_of(database, "mail_state")
        for table in (runs, calls, events, state):  # made where they are missing, for whoever reads the audit
            await table.get(TENANT, "")
        holder = f"{socket.gethostname()}-{stores.new_id()}"
        store = RunStore(RunTables(runs, calls, events), clock, tenant_id=TENANT, holder=holder)

        opened = _OpenMailboxes(config, logins, stack, metrics, store, state)
        boxes = {box.name: opened.parts(box) for box in config.every_mailbox}
        answers = bool(settings.llm_model or model)
        parts = working.AgentParts(loaded, connected, answers, boxes, flows, outbound, clock)
        states = [each.state for each in boxes.values()]
        tuning = working.WorkTuning(
            lease_s=settings.job_lease_s,
            at_once=settings.jobs_at_once,
            attempts=settings.job_attempts,
            bodies_kept=timedelta(days=config.limits.keep_days),
        )
        worker = working.RunWorker(store, working.MailAgent(parts), tuning, metrics, states)
        intakes = tuple(opened.intake(box, worker, since) for box in config.every_mailbox)
        yield MailService(
            _operators(intakes, database, metrics), intakes, worker, stores.agent_runs(database, clock)
        )


@dataclass(frozen=True, slots=True)
class _OpenMailboxes:
    """The mailboxes of a config on the stores of the agent; `stack` closes their connections."""

    config: MailConfig
    logins: Logins
    stack: AsyncExitStack
    metrics: MailMetrics
    store: RunStore
    state: RecordStore

    def connection(self, box: MailboxConfig) -> imap.ImapConnection:
        connection = imap.ImapConnection(partial(self.logins.login, box.imap), self.logins.refused)
        self.stack.push_async_callback(connection.aclose)
        return connection

    def parts(self, box: MailboxConfig) -> delivery.MailboxParts:
        smtp, logins = box.smtp, self.logins
        sender = None if smtp is None else SmtpSender(partial(logins.login, smtp), logins.refused)
        remembered = MailboxState(self.state, self.store, self.config.limits, box.name)

        def observe(outcome: str) -> None:
            self.metrics.outgoing.labels(box.name, outcome).inc()

        return delivery.MailboxParts(box, self.connection(box), sender, remembered, observe=observe)

    def intake(self, box: MailboxConfig, worker: working.RunWorker, since: date | None) -> Intake:
        reads = self.connection(box)
        return Intake(self.config, box, reads, self.store, self.state, self.metrics, worker.wake, since=since)


def _connections(
    settings: Settings, engine_url: str, trusted: Mapping[str, Mapping[str, str]]
) -> McpConnections:
    """What the operator allows may be connected to, and the engine of the flow."""
    return McpConnections(AllowList.parse(settings.outbound_allow, engine_url), trusted)


def _operators(intakes: Sequence[Intake], database: stores.FlowDatabase, metrics: MailMetrics) -> Starlette:
    """Health and metrics. Ready: each mailbox is opened, where it begins is stored, and the store answers."""

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        checks = {intake.mailbox: intake.problem or "ok" for intake in intakes}
        try:
            await database.connection.ready()
            checks["store"] = "ok"
        except FlowEngineError as away:
            checks["store"] = away.detail
        is_ready = set(checks.values()) == {"ok"}
        reply = {"status": "ok" if is_ready else "unavailable", "checks": checks}
        return JSONResponse(reply, 200 if is_ready else 503, None if is_ready else {"Retry-After": "1"})

    async def scrape(request: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/metrics", scrape),
        ]
    )


def serve_until_stopped(path: Path, host: str, port: int | None, since: date | None) -> None:
    """Returns after SIGINT or SIGTERM, with what was under way finished or given back. Raises FlowEngineError
    when the config or the set-up forbids to start."""
    settings, loaded = read_settings(Settings), loading.load_config(path)
    check_secrets(loaded.config, os.environ)
    logs.configure_logging(settings.log_level)
    end_in_order_at_a_hangup()
    uvloop.run(_serve(settings, loaded, host, port, since))


async def _serve(
    settings: Settings, loaded: loading.LoadedConfig, host: str, port: int | None, since: date | None
) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    listening = None if port is None else listen(host, port)
    async with mail_service(settings, loaded, since=since) as service, asyncio.TaskGroup() as group:
        server = None
        if listening is not None:
            server = door_server(service.app, signals=False)  # they end the agent's work first
            group.create_task(server.serve(sockets=[listening]))
            at = cast("int", listening.getsockname()[1])
            announce(f"Health and metrics on {origin(host, at)}.")
        names = ", ".join(intake.mailbox for intake in service.intakes)
        announce(f"Mail agent on: {names}. Ctrl-C stops it.")
        await service.run(stopping)
        if server is not None:
            server.should_exit = True


@asynccontextmanager
async def _runs() -> AsyncGenerator[AgentRuns]:
    database = stores.open_flow_database(read_settings(Settings))
    await database.connection.open()
    try:
        yield stores.agent_runs(database, SystemClock())
    finally:
        await database.connection.close()


async def rows(status: RunStatus | None, after: str | None, limit: int | None) -> Sequence[Row]:
    """The runs of this installation's store, oldest first, from behind the run `after` on, at most `limit`.
    Raises CorrectTheInput `after_invalid`, RetryLater."""
    async with _runs() as runs:
        return await runs.rows(TENANT, status, after=after, limit=limit)


async def row(run_id: str) -> Row:
    """Raises LookElsewhere `run_unknown`, RetryLater."""
    async with _runs() as runs:
        return await runs.row(TENANT, run_id)


async def decide(run_id: str, decision: Decision) -> Row:
    """Raises LookElsewhere `run_unknown`, ReloadAndDecide `run_not_waiting`, RetryLater."""
    async with _runs() as runs:
        return await runs.decide(TENANT, run_id, decision)
