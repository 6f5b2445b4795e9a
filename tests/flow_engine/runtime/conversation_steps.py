"""A conversation that takes one step after the other without a store: what each of them tells and plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import orjson

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.agent_data import agent_data_of, compose_prompt
from flow_engine.runtime.commands import NewContact
from flow_engine.runtime.compiled import compile_flow
from flow_engine.runtime.human_part import HumanReport
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.platform import Platform
from flow_engine.runtime.prompt import Prompt
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.session import Session
from flow_engine.runtime.storage import LoadedConversation
from flow_engine.vocabulary import Channel
from system_prompts.loader import FileSystemPrompts
from tests.flow_engine.documents.samples import JsonObject

NOW = datetime(2026, 1, 15, 23, 30, tzinfo=UTC)  # a Thursday
ADDRESS = "http://127.0.0.1:8080"
T = TypeVar("T")


class Conversation:
    """A runner that can be looked at again later, with other things loaded. `told` are the events and `due`
    the jobs of the last step, as (subtype, contact, details) and (kind, subject, seconds from now)."""

    def __init__(
        self,
        prompts: FileSystemPrompts,
        raw: JsonObject,
        *,
        channel: Channel = "phone",
        tenant: Mapping[str, object] | None = None,
        data: Mapping[str, object] | None = None,
        memory: Mapping[str, object] | None = None,
        memory_format: Any = "markdown",
        language: str | None = None,
    ) -> None:
        self.platform = Platform(prompts, lambda: ADDRESS, memory_format)
        self.flow = compile_flow(raw, "hash")
        self.now = NOW
        self.told: list[tuple[str, str, JsonObject]] = []
        self.due: list[tuple[str, str, float]] = []
        self.loaded = LoadedConversation()
        self.begin(NewContact("call-1", channel, tenant or {}, data or {}, language))
        self.loaded = LoadedConversation(
            session=self.session,
            tenant=tenant or {},
            mined={},
            tools=entries(memory or {}),
            memory_revision=1,
        )

    @property
    def session(self) -> Session:
        assert self.loaded.session is not None
        return self.loaded.session

    def begin(self, contact: NewContact, before: ConversationalFlowRunner | None = None) -> None:
        """Start, or start anew."""
        runner = ConversationalFlowRunner.start(
            self.flow,
            ConversationRef("t", "c"),
            "campaign",
            contact,
            self.loaded,
            self.platform,
            self.now,
            before,
        )
        self._keep(runner)

    def runner(self, now: datetime | None = None) -> ConversationalFlowRunner:
        return ConversationalFlowRunner.resume(
            self.flow, self.session, self.loaded, self.platform, now or self.now
        )

    def step(self, move: Callable[[ConversationalFlowRunner], T]) -> T:
        """One step on what is loaded, which is stored if it is not refused."""
        runner = self.runner()
        result = move(runner)
        self._keep(runner)
        return result

    def _keep(self, runner: ConversationalFlowRunner) -> None:
        self.load(session=runner.session, previous_contacts=runner.previous_contacts)
        self.flow = runner.flow
        events = [orjson.loads(event) for event in runner.outbox]
        self.told = [
            (body.pop("subtype"), event["contactId"], body) for event in events for body in [event["body"]]
        ]
        self.due = [(d.job.kind, d.job.subject, (d.due_at - self.now).total_seconds()) for d in runner.jobs]

    def load(self, **changes: Any) -> None:
        self.loaded = msgspec.structs.replace(self.loaded, **changes)

    def change(self, task: str) -> None:
        assert self.step(lambda runner: runner.change_task(task))

    def human(self, outcome: Any, reason: str | None = None, **text: Any) -> str | None:
        report = HumanReport(outcome, reason, **text)
        return self.step(lambda runner: runner.apply_human_outcome(report))

    def contact(self, contact_id: str, channel: Channel = "phone", **details: Any) -> None:
        arguments = {"tenant": {}, "data": {}, "language": None, **details}
        self.step(lambda runner: runner.resume_contact(NewContact(contact_id, channel, **arguments)))

    def end(self, reason: str | None = None, *, closes: bool = False, summary: str | None = None) -> None:
        self.step(lambda runner: runner.end_contact(reason, closes=closes, summary=summary))

    def prompt(self, now: datetime | None = None) -> Prompt:
        return compose_prompt(self.runner(now))

    def agent_data(self, command: str | None = None) -> JsonObject:
        runner = self.runner()
        contact_id = runner.session.active_contact_id or ""
        return read(agent_data_of(runner, contact_id, command))


def read(text: bytes) -> JsonObject:
    """A reply as an agent reads it."""
    return orjson.loads(text)


def entries(values: Mapping[str, Any]) -> dict[str, MemoryEntry]:
    return {k: MemoryEntry("string", "tool", NOW, value, "call-1", None) for k, value in values.items()}
