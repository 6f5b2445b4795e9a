"""Routes of one conversation: for the agents that talk (F28–F31, F33, F34), and its memory for their tools
(F19, F32).

The stream of a core CTI (F40) ends contacts and brings utterances by the same rules: `kind` is
`contact_ended` or `utterance`, `body` the JSON that `POST /v1/handle-end-contact` and
`POST /v1/handle-utterance` take.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast, get_args

from pydantic import TypeAdapter
from starlette.responses import Response

from api import batches, bodies
from api.endpoints import Call, Endpoint, Parameter, Reply, answer_response, for_agents, one_of, whole
from flow_engine.documents.findings import quoted
from flow_engine.errors import CorrectTheInput, ReloadAndDecide
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job, NeverTryAgain
from flow_engine.ports.telemetry import IDS_LOGGED
from flow_engine.runtime import replies
from flow_engine.runtime.commands import NewContact
from flow_engine.runtime.human_part import HumanReport
from flow_engine.runtime.memory import MemoryWrite, ValueDescription
from flow_engine.use_cases.conversations import Conversations
from flow_engine.use_cases.dialogue import DialogueService
from flow_engine.use_cases.erasing import Erasures
from flow_engine.use_cases.versions_in_use import VersionChoice
from flow_engine.vocabulary import MemoryFormat

LONGEST_WAIT_MS = 10_000

_NEW_CONTACT = TypeAdapter(bodies.HandleNewContact)
_CHANGE_TASK = TypeAdapter(bodies.ChangeTask)
_END_CONTACT = TypeAdapter(bodies.HandleEndContact)
_HUMAN_TASK = TypeAdapter(bodies.HandleHumanTask)
_UTTERANCE = TypeAdapter(bodies.HandleUtterance)


_step = partial(for_agents, hot=True, problems=(404, 409), keyed=True)
"""What moves a conversation."""


class ErasureRoutes:
    def __init__(self, erasures: Erasures) -> None:
        self._erasures = erasures

    async def erase(self, call: Call) -> Response:
        conversation = call.conversation(call.path("conversation_id"))
        return answer_response(await self._erasures.erase(conversation, call.idempotency))

    def endpoints(self) -> list[Endpoint]:
        return [
            for_agents(
                "DELETE /conversations/{conversation_id:id}",
                self.erase,
                "Erase a conversation: everything that is stored of it",
                replies.ErasureReply,
                scopes=("privacy",),
                problems=(404,),
                keyed=True,
            )
        ]


class AgentRoutes:
    def __init__(self, conversations: Conversations, dialogue: DialogueService) -> None:
        self._conversations = conversations
        self._dialogue = dialogue

    async def new_contact(self, call: Call) -> Response:
        body = call.parse(_NEW_CONTACT)
        answer = await self._conversations.new_contact(
            call.conversation(body.conversation_id, body.contact_id),
            NewContact(body.contact_id, body.channel, body.tenant, body.contact, body.language),
            VersionChoice(body.conversational_flow_version_id, body.flow_id, body.tag),
            call.idempotency,
        )
        return answer_response(answer)

    async def change_task(self, call: Call) -> Response:
        body = call.parse(_CHANGE_TASK)
        conversation = call.conversation(body.conversation_id, body.contact_id)
        return answer_response(
            await self._conversations.change_task(
                conversation, body.contact_id, body.task, call.idempotency, reason=body.reason
            )
        )

    async def end_contact(self, call: Call) -> Response:
        body = call.parse(_END_CONTACT)
        conversation = call.conversation(body.conversation_id, body.contact_id)
        return answer_response(
            await self._conversations.end_contact(
                conversation, body.contact_id, body.reason, call.idempotency
            )
        )

    async def human_task(self, call: Call) -> Response:
        body = call.parse(_HUMAN_TASK)
        conversation = call.conversation(body.conversation_id, body.contact_id)
        report = HumanReport(body.outcome, body.reason, body.text, body.approval_id)
        return answer_response(
            await self._conversations.human_task(conversation, body.contact_id, report, call.idempotency)
        )

    async def utterance(self, call: Call) -> Response:
        body = call.parse(_UTTERANCE)
        return answer_response(
            await self._dialogue.utterance(
                call.conversation(body.conversation_id, body.contact_id),
                bodies.utterance_of(body),
                call.idempotency,
            )
        )

    async def prompt(self, call: Call) -> Response:
        wait_ms, memory_format = 0, None
        if call.scope["query_string"]:
            wait_ms = call.whole_number("wait_ms", at_most=LONGEST_WAIT_MS)
            memory_format = cast("MemoryFormat | None", call.choice("format", get_args(MemoryFormat)))
        conversation = call.conversation(call.path("conversation_id"))
        view = await self._dialogue.prompt(
            conversation, wait_ms / 1000, memory_format, takes_command=call.scope["method"] != "HEAD"
        )
        if not view.tells and call.has_seen(view.etag):
            return Reply(b"", 304, {"ETag": view.etag}, media_type=None)
        return Reply(view.body, headers={"ETag": view.etag})

    def endpoints(self) -> list[Endpoint]:
        return [
            _step(
                "POST /handle-new-contact",
                self.new_contact,
                "Start a conversation, or resume it with a new contact",
                replies.AgentData,
                body=_NEW_CONTACT,
                body_example=_NEW_CONTACT_EXAMPLE,
            ),
            _step(
                "POST /change-task",
                self.change_task,
                "Move to another task, or learn why not",
                replies.TaskChanged | replies.TaskRefused,
                body=_CHANGE_TASK,
                body_example={
                    "contactId": "call-1",
                    "conversationId": "conv-1",
                    "task": "booking",
                    "reason": "The caller wants a visit.",
                },
            ),
            _step(
                "POST /handle-end-contact",
                self.end_contact,
                "End a contact; the conversation closes or waits for the next one",
                replies.ContactEndReply,
                body=_END_CONTACT,
                body_example={"contactId": "call-1", "conversationId": "conv-1", "reason": "hangup"},
            ),
            _step(
                "POST /handle-human-task",
                self.human_task,
                "Report what became of a transfer, a supervision or a text that waits for a person",
                replies.AgentData | replies.HumanTaskRefused,
                body=_HUMAN_TASK,
                body_example={"contactId": "call-1", "conversationId": "conv-1", "outcome": "connected"},
            ),
            _step(
                "POST /handle-utterance",
                self.utterance,
                "Report one message of the dialogue",
                replies.UtteranceReply,
                body=_UTTERANCE,
                body_example=_UTTERANCE_EXAMPLE,
            ),
            *(self._prompt_endpoint(method) for method in ("GET", "POST")),
        ]

    def _prompt_endpoint(self, method: str) -> Endpoint:
        return for_agents(
            f"{method} /prompt/{{conversation_id:id}}",
            self.prompt,
            "The prompt as it is now",
            replies.PromptReply,
            hot=True,
            parameters=_PROMPT_PARAMETERS,
            problems=(404, 409),
        )


_PROMPT_PARAMETERS = (
    Parameter(
        "wait_ms",
        f"Wait at most this long for an extraction in flight, up to {LONGEST_WAIT_MS}",
        whole(0, LONGEST_WAIT_MS),
    ),
    Parameter("format", "How the memory is written", one_of(get_args(MemoryFormat))),
    Parameter("If-None-Match", "An ETag, or *: answers 304 when only the clock has moved", place="header"),
)
_NEW_CONTACT_EXAMPLE = {
    "contactId": "call-1",
    "conversationId": "conv-1",
    "conversationalFlowVersionId": "health-booking-v1",
    "channel": "phone",
    "contact": {"callerId": "+390612345678"},
}
_UTTERANCE_EXAMPLE = {
    "contactId": "call-1",
    "conversationId": "conv-1",
    "messageId": "m-1",
    "ts": "2026-01-15T09:30:00Z",
    "type": "message",
    "src": "user",
    "body": "Good morning",
}


class MemoryRoutes:
    def __init__(self, dialogue: DialogueService) -> None:
        self._dialogue = dialogue

    async def put(self, call: Call) -> Response:
        conversation = call.conversation(call.path("conversation_id"))
        try:
            writes = [_write(entry) for entry in bodies.memory_entries(call.body)]
        except CorrectTheInput as refused:
            sound = batches.sound_entries(call.body, refused.findings)
            if not any(sound):
                raise
            others = [entry and _write(entry) for entry in sound]
            raise await batches.with_others(
                refused, self._dialogue.put_memory(conversation, others)
            ) from None
        return answer_response(await self._dialogue.put_memory(conversation, writes, call.idempotency))

    async def get(self, call: Call) -> Response:
        conversation = call.conversation(call.path("conversation_id"))
        return Reply(await self._dialogue.memory_reply(conversation))

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "PUT /memory/{conversation_id:id}",
                self.put,
                "Store what tools have found, the whole list or nothing",
                replies.MemoryWritten,
                audience="tools",
                scopes=("tools", "agent"),
                hot=True,
                body=bodies.MemoryBatch,
                problems=(404, 409),
                keyed=True,
                body_example=_MEMORY_EXAMPLE,
            ),
            Endpoint(
                "GET /memory/{conversation_id:id}",
                self.get,
                "The whole memory of a conversation",
                replies.MemoryDump,
                audience="tools",
                scopes=("tools", "agent"),
                hot=True,
                problems=(404,),
            ),
        ]


def _write(entry: bodies.MemoryEntryBody | bodies.PlainEntry) -> MemoryWrite:
    described = entry.description_for_llm
    return MemoryWrite(
        var=entry.var_id,
        value=entry.value,
        contact_id=entry.contact_id,
        updated_by=entry.updated_by,
        description_for_llm=None
        if described is None
        else tuple([ValueDescription(part.name, part.value) for part in described]),
    )


_MEMORY_EXAMPLE = [
    {
        "updatedBy": "findService",
        "contactId": "call-1",
        "varId": "idPrestazione",
        "value": {"id": "VIS-CARD"},
        "descriptionForLLM": [{"name": "Id", "value": "VIS-CARD"}],
    }
]


LARGEST_ENTRY = 1_200_000
"""Bytes of a `body`, as a request's."""


class CtiIntake:
    """Handler of `cti` jobs; `fields` gives the entry that a job stands for."""

    def __init__(
        self,
        conversations: Conversations,
        dialogue: DialogueService,
        fields: Callable[[Job], Mapping[str, bytes]],
    ) -> None:
        self._conversations = conversations
        self._dialogue = dialogue
        self._fields = fields

    async def take(self, job: Job) -> None:
        """A contact that is not known yet is waited for like any failed job.

        Raises NeverTryAgain for what no repetition makes acceptable.
        """
        try:
            fields = self._fields(job)
            body = fields.get("body", b"")
            if len(body) > LARGEST_ENTRY:
                raise NeverTryAgain(f"too_large: accepted are bodies of {LARGEST_ENTRY} bytes")
            match fields.get("kind"):
                case b"contact_ended":
                    end = bodies.parse_body(body, _END_CONTACT)
                    ended = _told_of(job, end)
                    await self._conversations.end_contact(ended, end.contact_id, end.reason)
                case b"utterance":
                    said = bodies.parse_body(body, _UTTERANCE)
                    await self._dialogue.utterance(
                        _told_of(job, said), bodies.utterance_of(said), takes_command=False
                    )
                case other:
                    kind = quoted((other or b"").decode(errors="replace"))
                    raise NeverTryAgain(f"kind {kind} is unknown; accepted are contact_ended and utterance")
        except CorrectTheInput as refused:
            places = "; ".join(
                f"{finding.pointer or 'body'}: {finding.message}" for finding in refused.findings
            )
            raise NeverTryAgain(f"{refused.code}: {places or refused.detail}"[:1_000]) from refused
        except ReloadAndDecide as over:
            if over.code == "revision_conflict":
                raise
            raise NeverTryAgain(str(over)) from over


def _told_of(job: Job, entry: bodies.HandleEndContact | bodies.HandleUtterance) -> ConversationRef:
    """From here on its ids stand in every log line."""
    IDS_LOGGED.set({"conversation_id": entry.conversation_id, "contact_id": entry.contact_id})
    return ConversationRef(job.conversation.tenant_id, entry.conversation_id)
