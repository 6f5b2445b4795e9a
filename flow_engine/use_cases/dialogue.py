"""The use cases around the dialogue: messages, the prompt of the moment, and the memory (F31–F33)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import cast
from weakref import ref

import msgspec
import orjson

from flow_engine.errors import CorrectTheInput
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.json_values import json_bytes
from flow_engine.listening.mining import region_of, tuning_of
from flow_engine.masking import cards_masked
from flow_engine.ports.dialogue import ConversationRef, DialogueTurn, is_user_turn
from flow_engine.runtime.agent_data import prompt_input, told_of_advance, told_of_approval
from flow_engine.runtime.events import Sender, dialogue_event, marked_unread
from flow_engine.runtime.memory import MemoryWrite, prepare_tool_writes
from flow_engine.runtime.memory_dump import known_variables
from flow_engine.runtime.prompt import Prompt, same_until
from flow_engine.runtime.replies import MemoryDump, UtteranceReply
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.storage import JournalInput, LoadedConversation, ReplyTemplate
from flow_engine.runtime.times import tenant_zone
from flow_engine.use_cases.quiet_replies import QuietReplies, QuietReply, ReadReply
from flow_engine.use_cases.transactor import ConversationDependencies, Transactor
from flow_engine.use_cases.transitions import Decision, Transition
from flow_engine.vocabulary import MemoryFormat, Source, UtteranceType

LOOK_AGAIN_S = 0.03
LOOK_AGAIN_AT_MOST_S = 0.25
MAX_UTTERANCE_BYTES = 32 * 1024


class Utterance(msgspec.Struct, frozen=True):
    """One message of the dialogue, as an agent reports it (F33). `ts` is in UTC, `language` a BCP 47 tag,
    `body` at most 32 KiB of UTF-8."""

    contact_id: str
    message_id: str
    ts: datetime
    type: UtteranceType
    src: Source
    body: str | Mapping[str, object]
    src_id: str | None = None
    src_name: str | None = None
    language: str | None = None


class DialogueService:
    """Every method answers for one tenant: another's conversation looks exactly like an unknown one. Replies
    are JSON texts as bytes."""

    def __init__(self, transactor: Transactor, dependencies: ConversationDependencies) -> None:
        self._transactor = transactor
        self._pause = dependencies.pause
        self._debounce_s = dependencies.debounce_s
        self._quiet = QuietReplies(dependencies.quiet_bytes)

    async def utterance(
        self,
        conversation: ConversationRef,
        message: Utterance,
        idempotency: IdempotencyKey | None = None,
        *,
        takes_command: bool = True,
    ) -> FinalReply:
        """Remember a message once, however often its sender repeats it. `takes_command`: the contact's agent
        reads the reply; the command waits on where it does not, or where the contact is not the active one.

        Raises CorrectTheInput `utterance_too_long`. At most 32 KiB of UTF-8.
        """
        check_utterance(message)

        async def decide(loaded: LoadedConversation) -> Transition:
            runner = await self._transactor.resume(conversation, loaded)
            runner.require_listening(message.contact_id)
            said = _masked(message) if runner.flow.masks_cards else message
            former = message.contact_id not in runner.session.own_contacts
            if message.src == "user" and message.contact_id == runner.session.latest_contact_id:
                runner.set_language(message.language)
            task_id, turn = runner.task.id, _turn(said, runner)
            mined = is_user_turn(turn) and tuning_of(runner).enabled and not former
            sender = Sender(message.src, message.src_id, message.src_name)
            details = None if isinstance(said.body, str) else said.body
            event = dialogue_event(runner.flow, runner.session, turn, sender, details)
            reads = mined and task_id in runner.flow.hears
            if event is not None:
                runner.outbox.append(marked_unread(event, turn.name, runner.now) if reads else event)
            runner.advance()
            reads_on = takes_command and message.contact_id == runner.session.active_contact_id
            return Transition(
                runner,
                _utterance_reply(runner, message, runner.take_command() if reads_on else None),
                _asked(said, mined=reads, takes_command=takes_command),
                turn=None if former else turn,  # what was said before is no part of what was started anew
                late=turn if former else None,  # but that it was said
                jobs=(runner.due("mine", after_s=self._debounce_s),) if mined else (),
                on_seen=_utterance_reply(runner, message, None, duplicate=True),
            )

        return await self._transactor.run(conversation, idempotency, decide)

    async def prompt(
        self,
        conversation: ConversationRef,
        wait_s: float = 0.0,
        memory_format: MemoryFormat | None = None,
        *,
        takes_command: bool = True,
    ) -> ReadReply:
        """The prompt as it is now, `PromptReply` as JSON: one read, nothing written unless the agent has a
        command to be told. Waits at most `wait_s` seconds. Raises ReloadAndDecide `conversation_closed`."""
        loaded = await self._transactor.memory.load(conversation)
        now = self._transactor.clock.now()
        kept = self._quiet.find(conversation, memory_format, loaded.state, now)
        if kept is not None and (kept.fresh or wait_s == 0):
            self._count(kept.fresh)
            return kept
        loaded, runner, fresh = await self._fresh(conversation, loaded, now, wait_s)
        runner.require_open()
        runner.advance()
        self._count(fresh)
        command, state = None, loaded.state
        if runner.changed or runner.session.pending_command is not None:
            state = b""
            if takes_command:
                loaded, runner, command = await self._with_command(conversation, memory_format)
        inputs = prompt_input(runner, memory_format)
        prompt = runner.platform.composer.compose(inputs)
        revisions = runner.session.revision, loaded.memory_revision
        # One before it, under the same id, counted alike. The text of a float takes four times as long.
        begun = int(runner.session.started_at.timestamp() * 1_000_000)
        known = f"{begun}-{loaded.mining_revision}-{prompt.stable.hash}-{fresh:d}-{memory_format}"
        if prompt.conditions is not None or prompt.stale:
            told = repr((prompt.conditions, prompt.suggested, prompt.stale))
            known = f"{known}-{sha256(told.encode()).hexdigest()[:16]}"
        etag = f'"{revisions[0]}-{revisions[1]}-{known}"'
        texts = _prompt_reply(
            prompt, revisions, fresh=fresh, command=command, approval=told_of_approval(runner)
        )
        if state:
            until = same_until(inputs)
            kept = QuietReply(texts, state, ref(prompt.stable), etag, fresh, runner.now, until)
            self._quiet.keep(conversation, memory_format, kept)
        return ReadReply(prompt.stable.json.join(texts), etag, fresh, command is not None)

    def _count(self, fresh: bool) -> None:
        self._transactor.observer.count("prompts", memory="fresh" if fresh else "stale")

    async def _with_command(
        self, conversation: ConversationRef, memory_format: MemoryFormat | None
    ) -> tuple[LoadedConversation, ConversationalFlowRunner, str | None]:
        """Take the command that waits: told to one reader, whoever is faster. What the clock has opened is
        entered before. Raises as `require_open`."""

        async def decide(
            loaded: LoadedConversation,
        ) -> Decision[tuple[LoadedConversation, ConversationalFlowRunner, str | None]]:
            runner = await self._transactor.resume(conversation, loaded)
            runner.require_open()
            runner.advance()
            command = runner.take_command()
            asked = JournalInput(
                "prompt" if runner.advanced is None else "advance",
                {} if memory_format is None else {"format": memory_format},
            )
            taken = Transition(runner, ReplyTemplate(b""), asked) if runner.changed else None
            return Decision((loaded, runner, command), taken)

        return (await self._transactor.apply(conversation, decide)).result

    async def _fresh(
        self, conversation: ConversationRef, loaded: LoadedConversation, now: datetime, wait_s: float
    ) -> tuple[LoadedConversation, ConversationalFlowRunner, bool]:
        """As it is `now`; load again until the last user turn has been read, or its reading failed, or the
        wait is over."""
        waited, look_again_s = 0.0, LOOK_AGAIN_S
        while True:
            runner = await self._transactor.resume(conversation, loaded, now=now)
            read = loaded.last_user_turn in (None, loaded.mining.mined_through)
            if read or not tuning_of(runner).enabled:
                return loaded, runner, True
            if waited >= wait_s or loaded.mining.failed_turn == loaded.last_user_turn:
                return loaded, runner, False
            await self._pause(look_again_s)
            waited += look_again_s
            look_again_s = min(1.5 * look_again_s, LOOK_AGAIN_AT_MOST_S)
            loaded = await self._transactor.memory.load(conversation)
            now = self._transactor.clock.now()

    async def put_memory(
        self,
        conversation: ConversationRef,
        writes: Sequence[MemoryWrite | None],
        idempotency: IdempotencyKey | None = None,
    ) -> FinalReply:
        """Store what tools have found: the whole batch or nothing (F19), None for an entry of a wrong shape.
        Values are JSON. Raises CorrectTheInput `memory_invalid`, ReloadAndDecide `conversation_closed`."""

        async def decide(loaded: LoadedConversation) -> Transition:
            runner = await self._transactor.resume(conversation, loaded)
            runner.require_open()
            entries = prepare_tool_writes(
                writes,
                specs=runner.flow.variables,
                contacts=runner.session.own_contacts.keys(),
                now=runner.now,
                default_region=region_of(runner.session.language),
                timezone=tenant_zone(runner.tenant),
            )
            runner.take_values({}, entries)
            head = b'{"revision":%d,"memoryRevision":' % runner.session.revision
            tail = b"}" if runner.advanced is None else b"," + orjson.dumps(told_of_advance(runner))[1:]
            asked = JournalInput("memory", {"writes": [_written(write) for write in writes if write]})
            return Transition(
                runner,
                ReplyTemplate(head, tail),
                asked,
                guards_memory=runner.flow.moves_by_itself or bool(runner.flow.contested),
                set_tools=entries,
            )

        return await self._transactor.run(conversation, idempotency, decide)

    async def memory_reply(self, conversation: ConversationRef) -> bytes:
        """`get_memory` as JSON."""
        loaded = await self._transactor.memory.load(conversation)
        kept = self._quiet.find(conversation, "memory", loaded.state, self._transactor.clock.now())
        if kept is not None:
            return kept.body
        dump = await self._dump(conversation, loaded)
        body = orjson.dumps(dump)
        if loaded.state and not any("ageS" in variable for variable in dump["vars"]):
            self._quiet.keep(conversation, "memory", QuietReply((body,), loaded.state))
        return body

    async def get_memory(self, conversation: ConversationRef) -> MemoryDump:
        """The whole memory, for an agent to hand to the tools that it runs (F32). JSON values, times in
        UTC."""
        return await self._dump(conversation, await self._transactor.memory.load(conversation))

    async def _dump(self, conversation: ConversationRef, loaded: LoadedConversation) -> MemoryDump:
        runner = await self._transactor.resume(conversation, loaded)
        return MemoryDump(
            tenant=loaded.tenant,
            vars=known_variables(runner, reveal=True),
            revision=loaded.revision,
            memoryRevision=loaded.memory_revision,
        )


def body_fault(type: UtteranceType | None, body: object) -> str | None:
    """What is wrong with a body beside its type, None where it may stand there or the type is not known."""
    if isinstance(body, str) or type in (None, "system"):
        return None
    return "accepted is text; an object only where 'type' is 'system'"


def check_utterance(message: Utterance) -> None:
    """Raises CorrectTheInput `utterance_too_long`, or `body_invalid` where only a text is accepted. In bytes
    of UTF-8."""
    fault = body_fault(message.type, message.body)
    if fault is not None:
        raise CorrectTheInput.breach("body_invalid", fault, at="/body")
    size = len(message.body.encode()) if isinstance(message.body, str) else json_bytes(message.body)
    if size > MAX_UTTERANCE_BYTES:
        raise CorrectTheInput.breach(
            "utterance_too_long", f"accepted are at most {MAX_UTTERANCE_BYTES} bytes of UTF-8", at="/body"
        )


def _masked(message: Utterance) -> Utterance:
    """Before anything is kept of what was said."""
    masked = cast("str | Mapping[str, object]", cards_masked(message.body))
    return message if masked == message.body else msgspec.structs.replace(message, body=masked)


def _turn(said: Utterance, runner: ConversationalFlowRunner) -> DialogueTurn:
    """In its own language, which is not the conversation's any more where the contact has been followed by
    another."""
    language = runner.session.language
    return DialogueTurn(
        message_id=said.message_id,
        ts=said.ts,
        type=said.type,
        src=said.src,
        body=said.body if isinstance(said.body, str) else orjson.dumps(said.body).decode(),
        contact_id=said.contact_id,
        task_name=runner.task.name,
        language=(said.language and runner.flow.supported_language(said.language, language)) or language,
    )


def _asked(message: Utterance, *, mined: bool, takes_command: bool) -> JournalInput:
    asked: dict[str, object] = {
        "contactId": message.contact_id,
        "messageId": message.message_id,
        "ts": message.ts,
        "type": message.type,
        "src": message.src,
        "srcId": message.src_id,
        "srcName": message.src_name,
        "body": message.body,
        "language": message.language,
    }
    asked |= {"mined": True} if mined else {}
    asked |= {} if takes_command else {"takesCommand": False}
    return JournalInput("handle-utterance", asked)


def _written(write: MemoryWrite) -> Mapping[str, object]:
    described = write.description_for_llm
    return {
        "varId": write.var,
        "value": write.value,
        "contactId": write.contact_id,
        "updatedBy": write.updated_by,
        "descriptionForLLM": None
        if described is None
        else [{"name": part.name, "value": part.value} for part in described],
    }


def _utterance_reply(
    runner: ConversationalFlowRunner, message: Utterance, command: str | None, *, duplicate: bool = False
) -> ReplyTemplate:
    """A duplicate changes nothing, so its reply tells the state as it was loaded."""
    session = runner.loaded.session if duplicate else runner.session
    session = session or runner.session
    reply = UtteranceReply(
        conversationId=session.conversation_id,
        messageId=message.message_id,
        duplicate=duplicate,
        revision=session.revision,
        language=session.language,
        command=command,
    )
    return ReplyTemplate(orjson.dumps({**reply, **({} if duplicate else told_of_advance(runner))}))


def _prompt_reply(
    prompt: Prompt,
    revisions: tuple[int, int],
    *,
    fresh: bool,
    command: str | None,
    approval: Mapping[str, object],
) -> tuple[bytes, ...]:
    """`PromptReply` as JSON, but for the prefix, which stands between each two of these texts."""
    volatile = orjson.dumps(prompt.volatile)[1:-1]
    known = volatile, *revisions, prompt.stable.hash.encode()
    return (
        b'{"prompt":"',
        b'\\n\\n%b","revision":%d,"memoryRevision":%d,"prefixHash":"%b","parts":{"prefix":"' % known,
        b"".join(
            (
                *(b'","volatile":"', volatile, b'"},"memoryFresh":', b"true" if fresh else b"false"),
                *(b',"command":', orjson.dumps(command), b',"suggestedTasks":'),
                orjson.dumps(prompt.suggested),
                b"," + orjson.dumps(approval)[1:] if approval else b"}",
            )
        ),
    )
