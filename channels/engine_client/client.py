"""The one client of the channel agents to the engine's REST API.

1. Every mutation travels under an idempotency key of its own. A repetition carries the same key, so that
   it takes effect once, whatever became of the answer to the try before.
2. Repeated is what another try can mend: no connection, no answer in time, 502, 503, 504, and a 409 whose
   only remedy is the same request again. At most three tries in all, with growing pauses.
3. Everything else leaves as one of the errors of `channels/engine_client/replies.py`, never as one of httpx2.
4. The address is the operator's own configuration: loopback is as good as any other. Proxies of the
   environment are not used, redirects not followed.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

import httpx2
import orjson
import structlog
from pydantic import TypeAdapter, ValidationError

from channels.engine_client import replies
from flow_engine.json_paths import description_of
from flow_engine.values import JsonValue

log: Any = structlog.get_logger("flow_engine.agents")

PAUSES_S: Final = (0.1, 0.4)
"""Before the second and the third try."""

LONGEST_PAUSE_S: Final = 2.0
TIMEOUT_S: Final = 5.0
CONNECT_WITHIN_S: Final = 2.0
MOST_CONNECTIONS: Final = 500
MOST_IDLE: Final = 50
END_TIMEOUT_S: Final = 20.0
"""The end of a contact may ask the flow's own handler, and has a summary written."""

Channel = Literal["phone", "whatsapp", "sms", "mail", "chat"]
Decision = Literal["approved", "edited", "rejected"]
"""What a person makes of a text of the AI that waits."""

HumanOutcome = Literal["connected", "completed", "failed", "taken_over", "released", "waiting", Decision]
MessageType = Literal["tool", "system", "message"]
Source = Literal["user", "bot", "agent"]
Pause = Callable[[float], Awaitable[None]]

_Read = TypeVar("_Read")
_Notified = TypeVar("_Notified", bound=replies.Notified)
_NOT_MODIFIED: Final = 304
_CONFLICT: Final = 409
_REFUSALS: Final = {401: replies.KeyRefused, 403: replies.KeyRefused, _CONFLICT: replies.StateConflict}
_REPEATABLE_STATUS = frozenset({502, 503, 504})
_REPEATABLE_CONFLICT = "revision_conflict"

_AGENT_DATA = TypeAdapter(replies.AgentData)
_CHANGE_TASK: TypeAdapter[replies.TaskChanged | replies.TaskRefused] = TypeAdapter(replies.ChangeTaskReply)
_HUMAN_TASK: TypeAdapter[replies.AgentData | replies.TextRefused] = TypeAdapter(replies.HumanTaskReply)
_CONTACT_END = TypeAdapter(replies.ContactEndReply)
_PROMPT = TypeAdapter(replies.PromptReply)
_UTTERANCE = TypeAdapter(replies.UtteranceReply)
_MEMORY = TypeAdapter(replies.MemoryDump)
_WRITTEN = TypeAdapter(replies.MemoryWritten)


@dataclass(frozen=True, slots=True)
class FlowChoice:
    """Which version a conversation starts on: a version's id, or a flow's id and a tag."""

    version_id: str | None = None
    flow_id: str | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Contact:
    """Whose requests these are: a contact and its conversation."""

    conversation_id: str
    contact_id: str


@dataclass(frozen=True, slots=True)
class NewContact:
    """`tenant` is what the flow's templates know as `$tenant`, `facts` what they know as `$contact`."""

    contact: Contact
    choice: FlowChoice
    channel: Channel
    tenant: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    facts: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Utterance:
    """One message of the dialogue, at a moment with its zone. The engine takes a `message_id` once: a second
    one is no error."""

    message_id: str
    at: datetime
    src: Source
    body: str
    type: MessageType = "message"
    src_id: str | None = None
    src_name: str | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True)
class TaggedPrompt:
    """A prompt, and the ETag by which the next one is only sent when more than the clock has moved; None
    without one."""

    reply: replies.PromptReply
    etag: str | None


def engine_http(
    base_url: str, api_key: str | None = None, transport: httpx2.AsyncBaseTransport | None = None
) -> httpx2.AsyncClient:
    """The connections to the engine at `base_url`, an http or https URL, for as many agents and calls as
    there are in the process; `transport` takes their place. Without `api_key` requests carry none."""
    return httpx2.AsyncClient(
        base_url=base_url,
        transport=transport,
        headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
        timeout=httpx2.Timeout(TIMEOUT_S, connect=CONNECT_WITHIN_S),
        limits=httpx2.Limits(
            max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_CONNECTIONS // 4
        ),
        trust_env=False,
        follow_redirects=False,
    )


class EngineClient:
    """Every method raises the errors of `channels/engine_client/replies.py`.

    `http` is `engine_http(...)`, or any other client whose base URL is the engine's; who made it closes it.
    `pause` waits that many seconds.
    """

    def __init__(self, http: httpx2.AsyncClient, *, pause: Pause = asyncio.sleep) -> None:
        self._http = http
        base = http.base_url  # its `netloc` has no credentials
        self._shown_url = f"{base.scheme}://{base.netloc.decode()}{base.path.rstrip('/')}"
        self._pause = pause
        self._followers: dict[str, Callable[[str], None]] = {}

    def follow(self, conversation_id: str, commanded: Callable[[str], None] | None) -> None:
        """Call `commanded` with each command that a reply about the conversation brings beside what was
        asked for, such as after an advance; None ends that. The replies that bring the agent's data are
        the caller's to read. Never raises."""
        if commanded is None:
            self._followers.pop(conversation_id, None)
        else:
            self._followers[conversation_id] = commanded

    @property
    def base_url(self) -> str:
        return str(self._http.base_url).rstrip("/")

    @property
    def mcp_url(self) -> str:
        """The URL of the engine's own MCP server."""
        return f"{self.base_url}/mcp"

    async def new_contact(self, new: NewContact) -> replies.AgentData:
        """Start or resume a conversation. Repeated for the same contact, it tells the current task. Raises
        EngineError; what fails in passing is tried three times, 5 seconds each, before."""
        choice = new.choice
        body = {
            **_ids(new.contact),
            "conversationalFlowVersionId": choice.version_id,
            "flowId": choice.flow_id,
            "tag": choice.tag,
            "channel": new.channel,
            "tenant": new.tenant,
            "contact": new.facts,
            "language": new.language,
        }
        return await self._post("handle-new-contact", body, _AGENT_DATA)

    async def change_task(
        self, contact: Contact, task: str, reason: str | None = None
    ) -> replies.TaskChanged | replies.TaskRefused:
        """`reason` is the model's, for the journal: at most 2,000 characters. Raises EngineError."""
        body = {**_ids(contact), "task": task, "reason": reason}
        reply = await self._post("change-task", body, _CHANGE_TASK)
        if isinstance(reply, replies.TaskRefused) and reply.advanced is not None:
            self._tell(contact.conversation_id, reply.command)
        return reply

    async def human_task(
        self,
        contact: Contact,
        outcome: HumanOutcome,
        reason: str | None,
        *,
        text: str | None = None,
        approval_id: int | None = None,
    ) -> replies.AgentData | replies.TextRefused:
        """`text`, of at most 16,000 characters, is the AI's that is to wait, or what a person has made of it;
        `approval_id` names the one that is decided. `TextRefused` only for outcomes about a text. Raises
        EngineError."""
        about = {"outcome": outcome, "reason": reason, "text": text, "approvalId": approval_id}
        return await self._post("handle-human-task", {**_ids(contact), **about}, _HUMAN_TASK)

    async def utterance(self, contact: Contact, said: Utterance) -> replies.UtteranceReply:
        body = {
            **_ids(contact),
            "messageId": said.message_id,
            "ts": said.at.isoformat(),
            "type": said.type,
            "src": said.src,
            "srcId": said.src_id,
            "srcName": said.src_name,
            "body": said.body,
            "language": said.language,
        }
        return self._noticed(contact.conversation_id, await self._post("handle-utterance", body, _UTTERANCE))

    async def end_contact(self, contact: Contact, reason: str) -> replies.ContactEndReply:
        body = {**_ids(contact), "reason": reason}
        reply = await self._post("handle-end-contact", body, _CONTACT_END, timeout_s=END_TIMEOUT_S)
        return self._noticed(contact.conversation_id, reply)

    async def prompt(
        self, conversation_id: str, *, wait_ms: int = 0, unless: str | None = None
    ) -> TaggedPrompt | None:
        """The prompt of the moment, after at most `wait_ms` milliseconds for values that are still being
        found in the last utterance. None when nothing but the clock has changed since the ETag `unless`.
        Raises EngineError."""
        answer = await self._send(
            "GET",
            f"prompt/{_segment(conversation_id)}?wait_ms={wait_ms}",
            headers={} if unless is None else {"If-None-Match": unless},
            timeout_s=TIMEOUT_S + wait_ms / 1000,
        )
        if answer.status_code == _NOT_MODIFIED:
            return None
        reply = self._noticed(conversation_id, _read(answer, _PROMPT))
        return TaggedPrompt(reply, answer.headers.get("etag"))

    async def put_memory(
        self, contact: Contact, updated_by: str, values: Mapping[str, JsonValue], custom: Collection[str]
    ) -> replies.MemoryWritten:
        """Store what the tool `updated_by` has found, by variable id; those of `custom` are described to the
        model by their plain parts. All or nothing: raises RequestRefused for a value that its variable cannot
        hold, with pointers into the values by their number."""
        entries = [
            {
                "varId": var_id,
                "value": value,
                "contactId": contact.contact_id,
                "updatedBy": updated_by,
                "descriptionForLLM": description_of(value) if var_id in custom else None,
            }
            for var_id, value in values.items()
        ]
        route = f"memory/{_segment(contact.conversation_id)}"
        answer = await self._send("PUT", route, headers=_keyed(), content=orjson.dumps(entries))
        return _read(answer, _WRITTEN)

    async def memory(self, conversation_id: str) -> replies.MemoryDump:
        return _read(await self._send("GET", f"memory/{_segment(conversation_id)}"), _MEMORY)

    def _noticed(self, conversation_id: str, reply: _Notified) -> _Notified:
        if reply.command is not None:
            self._tell(conversation_id, reply.command)
        return reply

    def _tell(self, conversation_id: str, command: str) -> None:
        follower = self._followers.get(conversation_id)
        if follower is not None:
            follower(command)

    async def _post(
        self,
        route: str,
        body: Mapping[str, object],
        shape: TypeAdapter[_Read],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> _Read:
        given = {name: value for name, value in body.items() if value is not None}
        answer = await self._send(
            "POST",
            route,
            headers=_keyed(),
            content=orjson.dumps(given),
            timeout_s=timeout_s,
        )
        return _read(answer, shape)

    async def _send(
        self,
        method: str,
        route: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> httpx2.Response:
        """The first answer that no other try can better, by rule 2."""
        timeout = httpx2.Timeout(timeout_s, connect=CONNECT_WITHIN_S)
        name, trouble = route.partition("/")[0], ""
        now = asyncio.get_running_loop().time
        for pause_s in (*PAUSES_S, None):
            asked_s, began = 0.0, now()
            status, reason = None, "nobody waited for the reply any longer"
            try:
                answer = await self._http.request(
                    method, f"/v1/{route}", headers=headers, content=content, timeout=timeout
                )
                status, reason = answer.status_code, None
            except httpx2.RequestError as error:
                trouble = reason = type(error).__name__
            else:
                if status == _CONFLICT:
                    problem = _problem(answer)
                    repeatable = problem is not None and problem.code == _REPEATABLE_CONFLICT
                    repeatable = repeatable and pause_s is not None
                else:
                    repeatable = status in _REPEATABLE_STATUS
                if not repeatable:
                    return answer
                trouble = f"status {answer.status_code}"
                # Seconds; a date there, or nothing, asks for none.
                text = answer.headers.get("retry-after", "")
                asked_s = float(text) if text.isascii() and text.isdigit() else 0.0
            finally:
                log.info(
                    "http_call",
                    method=method,
                    url=f"{self._shown_url}/v1/{name}",
                    status=status,
                    reason=reason,
                    duration_ms=round((now() - began) * 1000),
                )
            if pause_s is not None:
                await self._pause(min(max(pause_s, asked_s), LONGEST_PAUSE_S))
        raise replies.EngineUnavailable(f"the flow engine gave no usable answer to {name!r}: {trouble}")


def _ids(contact: Contact) -> dict[str, object]:
    return {"contactId": contact.contact_id, "conversationId": contact.conversation_id}


def _keyed() -> dict[str, str]:
    return {"Idempotency-Key": secrets.token_urlsafe(), "Content-Type": "application/json"}


def _segment(text: str) -> str:
    return quote(text, safe="")


def _problem(answer: httpx2.Response) -> replies.Problem | None:
    try:
        return replies.Problem.model_validate_json(answer.content)
    except ValidationError:
        return None


def _read(answer: httpx2.Response, shape: TypeAdapter[_Read]) -> _Read:
    """The reply, or the error that the answer stands for."""
    status = answer.status_code
    if answer.is_success:
        try:
            return shape.validate_json(answer.content)
        except ValidationError as error:
            raise replies.EngineMisbehaved(f"a reply of {error.title} cannot be read") from None
    problem = _problem(answer)
    told = f"status {status}" if problem is None else f"{problem.code}: {problem.detail}"
    if problem is None or not answer.is_client_error:
        raise replies.EngineMisbehaved(told, problem)
    raise _REFUSALS.get(status, replies.RequestRefused)(told, problem)
