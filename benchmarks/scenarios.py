"""What agents and tools send, as ready-made requests, and the conversations that they send it to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from benchmarks import documents
from benchmarks.client import Caller, Request, build_request

CONTACT = "contact-1"
_CHANGED = b'"result":true'
_ID_WIDTH = 24
_PLACEHOLDER = "c" * _ID_WIDTH
_MIX = "N PMP PMPCP PMPMP PCP PMPMP PCP PMPMP PP E".replace(" ", "")
"""A conversation: one new contact, 20 prompts, 8 memory writes, 3 changes of task, one end."""
_KINDS = {
    "N": "new contact",
    "P": "prompt",
    "PP": "prompt again",
    "M": "memory put",
    "C": "change task",
    "E": "end contact",
}
"""By a sign of the mix, or by it and the one before."""


@dataclass(frozen=True, slots=True)
class Target:
    """A published version on a running service. `tasks` and `variables` are how many it has."""

    port: int
    version_id: str
    tasks: int
    variables: int

    def new_contact(self, conversation: str, contact: str = CONTACT) -> Request:
        body = documents.contact_body(conversation, contact, self.version_id)
        return build_request("POST", "/v1/handle-new-contact", self.port, body)

    def change_task(self, conversation: str, task: str) -> Request:
        body = _body(contactId=CONTACT, conversationId=conversation, task=task)
        return build_request("POST", "/v1/change-task", self.port, body, _CHANGED)

    def end_contact(self, conversation: str) -> Request:
        body = _body(contactId=CONTACT, conversationId=conversation, reason="hangup")
        return build_request("POST", "/v1/handle-end-contact", self.port, body)

    def prompt(self, conversation: str) -> Request:
        return build_request("GET", f"/v1/prompt/{conversation}", self.port)

    def put_memory(self, conversation: str, variables: list[int]) -> Request:
        body = documents.memory_body(variables, CONTACT)
        return build_request("PUT", f"/v1/memory/{conversation}", self.port, body)

    def utterance(self, conversation: str, number: int) -> Request:
        """Questions and answers by turns; an answer is read by rules afterwards."""
        asked = number % 2 == 0
        body = _body(
            contactId=CONTACT,
            conversationId=conversation,
            type="message",
            ts="2026-03-04T09:30:00Z",
            messageId=f"message-{number}",
            src="bot" if asked else "user",
            body="When would you like to come?"
            if asked
            else f"On the {number % 20 + 5}th of March at ten, please.",
        )
        return build_request("POST", "/v1/handle-utterance", self.port, body)

    def health(self) -> Request:
        return build_request("GET", "/health/live", self.port)


def _body(**fields: str) -> bytes:
    return orjson.dumps(fields)


async def publish(
    caller: Caller, port: int, tasks: int, *, variables: int | None = None, multi_contact: bool = False
) -> Target:
    variables = variables or documents.variable_count(tasks)
    flow = _body(name=f"Benchmark of {tasks} tasks", campaignId="benchmark", updatedBy="benchmark")
    created = orjson.loads(await caller.ask(build_request("POST", "/v1/flows", port, flow)))
    document = orjson.dumps(documents.build_version(tasks, variables=variables, multi_contact=multi_contact))
    versions = f"/v1/flows/{created['id']}/versions"
    saved = await caller.ask(build_request("POST", versions, port, document))
    return Target(port, orjson.loads(saved)["versionId"], tasks, variables)


async def fill(caller: Caller, target: Target, conversations: Sequence[str]) -> None:
    """Start each conversation and give every variable a value, so that every task can be entered."""
    everything = list(range(target.variables))
    for conversation in conversations:
        await caller.ask(target.new_contact(conversation))
        await caller.ask(target.put_memory(conversation, everything))


def shares(connections: int, each: int) -> list[list[str]]:
    """Conversation ids, `each` for every connection: none is written to by two at once."""
    return [[f"pool-{c:04}-{n:04}" for n in range(each)] for c in range(connections)]


def prompts(target: Target, conversations: Sequence[str]) -> Iterator[Request]:
    return itertools.cycle([target.prompt(conversation) for conversation in conversations])


def changes(target: Target, conversations: Sequence[str]) -> Iterator[Request]:
    steps = [[target.change_task(c, task) for c in conversations] for task in documents.walk(target.tasks)]
    return itertools.cycle([request for step in steps for request in step])


def memory_writes(target: Target, conversations: Sequence[str]) -> Iterator[Request]:
    variables = range(target.variables)
    return itertools.cycle([target.put_memory(c, [number]) for number in variables for c in conversations])


def new_contacts(target: Target, connection: int) -> Iterator[Request]:
    template = target.new_contact(_PLACEHOLDER)
    for conversation in _fresh_ids("new", connection):
        yield _about(template, conversation)


def whole_conversations(target: Target, connection: int) -> Iterator[Request]:
    templates = _conversation(target)
    for conversation in _fresh_ids("mix", connection):
        for template in templates:
            yield _about(template, conversation)


def life(target: Target, conversation: str) -> Iterator[Request]:
    """A conversation from its first contact to its end: the mix, and 12 utterances after its changes of
    task. An id has 24 characters."""
    numbers = itertools.count()
    for kind, request in one_conversation(target, conversation):
        yield request
        if kind == "change task":
            for _ in range(4):
                yield target.utterance(conversation, next(numbers))


def one_conversation(target: Target, conversation: str) -> list[tuple[str, Request]]:
    """The mix in order, each request with its kind. An id has 24 characters."""
    kinds = [_KINDS.get(before + sign) or _KINDS[sign] for before, sign in itertools.pairwise(f" {_MIX}")]
    requests = [_about(template, conversation.encode()) for template in _conversation(target)]
    return list(zip(kinds, requests, strict=True))


def _conversation(target: Target) -> list[Request]:
    """The mix in order. The first writes are what the tasks to come require, the rest other variables."""
    tasks = documents.walk(target.tasks)[:3]
    required = [documents.required_by(task, target.variables) for task in tasks]
    others = [n for n in range(target.variables) if n not in required]
    entered, written = iter(tasks), itertools.chain(required, others)
    requests: list[Request] = []
    for kind in _MIX:
        match kind:
            case "N":
                requests.append(target.new_contact(_PLACEHOLDER))
            case "P":
                requests.append(target.prompt(_PLACEHOLDER))
            case "M":
                requests.append(target.put_memory(_PLACEHOLDER, [next(written)]))
            case "C":
                requests.append(target.change_task(_PLACEHOLDER, next(entered)))
            case _:
                requests.append(target.end_contact(_PLACEHOLDER))
    return requests


def _fresh_ids(kind: str, connection: int) -> Iterator[bytes]:
    for number in itertools.count():
        yield f"{kind}-{connection:04}-{number:015}".encode()


def _about(template: Request, conversation: bytes) -> Request:
    return Request(template.wire.replace(_PLACEHOLDER.encode(), conversation), template.expected)
