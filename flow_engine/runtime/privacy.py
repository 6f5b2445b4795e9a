"""What is sensitive in one conversation, and how its memory, events, replies and journal are shown.

Values are stored as they are: tools and conditions need them, and so does the journal, from which replies are
made again. They are masked on their way to everybody else, by `masking`. A flow without sensitive variables
costs a look at an empty mapping.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import cast

import orjson
from msgspec import structs

from flow_engine.json_values import as_object
from flow_engine.masking import MASKS, Secrets, shown
from flow_engine.ports.dialogue import DialogueTurn, is_user_turn, message_name
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.runtime.journal import JournalEntry
from flow_engine.runtime.memory import Conflict, MemoryEntry
from flow_engine.runtime.storage import LoadedConversation
from flow_engine.values import JsonValue
from flow_engine.variables import VariableSpec

Known = tuple[VariableSpec, JsonValue]
Memory = Mapping[str, MemoryEntry]


def masked_memory(flow: CompiledFlow, memory: Memory) -> Memory:
    """The memory by variable id, as prompts show it. Descriptions of what is masked are gone."""
    hidden = flow.sensitive.keys() & memory.keys()
    if not hidden:
        return memory
    masks = {
        id: structs.replace(
            memory[id], value=shown(flow.sensitive[id], memory[id].value), description_for_llm=None
        )
        for id in hidden
    }
    return {id: masks.get(id, entry) for id, entry in memory.items()}


def masked_conflicts(flow: CompiledFlow, conflicts: Mapping[str, Conflict]) -> Mapping[str, Conflict]:
    """Conflicts by variable id, as prompts show them."""
    return {
        id: Conflict(
            *(
                structs.replace(each, value=shown(flow.sensitive.get(id), each.value))
                for each in (conflict.counts, conflict.other)
            )
        )
        for id, conflict in conflicts.items()
    }


def values_known(flow: CompiledFlow, *memories: Memory) -> Iterator[Known]:
    """The sensitive values of these memories, with what was told of them for models, in the flow's order: of
    a value that several variables have, the first one's mask is shown."""
    for memory in memories:
        for var_id, spec in flow.sensitive.items():
            entry = memory.get(var_id)
            if entry is not None:
                yield spec, entry.value
                yield spec, [part.value for part in entry.description_for_llm or ()]


def values_stored(flow: CompiledFlow, loaded: LoadedConversation) -> Iterator[Known]:
    """Those that are stored of a conversation, what was heard and then replaced among them."""
    yield from values_known(flow, loaded.mined, loaded.tools)
    for var_id, spec in flow.sensitive.items():
        if (provenance := loaded.mining.provenance.get(var_id)) is not None:
            yield spec, cast("JsonValue", provenance.superseded)


def unread_words(flow: CompiledFlow, loaded: LoadedConversation) -> Sequence[str]:
    """The names of the user's messages, loaded with the conversation, in which sensitive values may stand
    that nobody has looked for yet."""
    unread: list[str] = []
    for turn in reversed(loaded.turns if flow.hears else ()):
        if loaded.mining.mined_through in (turn.name, turn.message_id):
            break
        task = flow.task_named(turn.task_name)
        if is_user_turn(turn) and (task is None or task.id in flow.hears):
            unread.append(turn.name)
    return unread


def never_read(left: CompiledFlow, flow: CompiledFlow, loaded: LoadedConversation) -> Mapping[str, str]:
    """Masks by the names of messages in place of all their words: they were to be read for sensitive values
    when the version `left` was, and are not in `flow`."""
    lost = {*unread_words(left, loaded)} - {*unread_words(flow, loaded)}
    return dict.fromkeys(lost, MASKS[True])


def masked_turns(
    flow: CompiledFlow, loaded: LoadedConversation, turns: Sequence[DialogueTurn], secrets: Secrets
) -> Sequence[DialogueTurn]:
    """With a mask in place of all words of a message that nobody has read, or that gave a value which it does
    not quote."""
    hidden = {**dict.fromkeys(unread_words(flow, loaded), MASKS[True]), **loaded.mining.hidden}
    return [replace(turn, body=hidden.get(turn.name) or secrets.text(turn.body)) for turn in turns]


def masked_event(event: bytes, secrets: Secrets) -> bytes:
    """An event that quotes no secret in what people, models and systems wrote. A JSON text in UTF-8."""
    whole: dict[str, object] = orjson.loads(event)
    body, data = whole.get("body"), whole.get("data")
    if isinstance(body, dict):
        members = cast("dict[str, object]", body)
        masked = as_object(secrets.json(members))
        whole["body"] = {**masked, "subtype": members["subtype"]} if "subtype" in members else masked
    elif "body" in whole:
        whole["body"] = secrets.json(body)
    if isinstance(data, dict):
        members = cast("dict[str, object]", data)
        whole["data"] = {**members, "reason": secrets.json(members.get("reason"))}
    return orjson.dumps(whole)


def masked_reply(reply: bytes, flow: CompiledFlow, secrets: "Secrets | Veil | None") -> bytes:
    """A reply as it was sent, with masks where tools are handed a sensitive value, and where an agent reads
    what people and models have written: all else that it has is masked when it is made. JSON in UTF-8."""
    if secrets is None:
        return reply
    whole = as_object(orjson.loads(reply))
    found = False
    for name in ("approval", "command", "reason"):
        masked = secrets.json(whole.get(name))
        if masked != whole.get(name):
            whole, found = {**whole, name: masked}, True
    for server in _objects(as_object(whole).get("mcpTools")):
        for tool in _objects(server.get("tools")):
            for parameter in _objects(tool.get("parameters")):
                spec = flow.variables.resolve(str(parameter.get("assignmentValue")))
                if parameter.get("assignmentStrategy") == "variable" and spec is not None and spec.sensitive:
                    parameter["value"] = shown(spec, cast("JsonValue", parameter.get("value")))
                    found = True
    return orjson.dumps(whole) if found else reply


def _objects(items: object) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", items) if isinstance(items, list) else []


# --- the journal ------------------------------------------------------------------------------


class Veil:
    """Masks the entries of one conversation's journal. It knows the secrets of the entries that it has been
    shown, and those that it was made with. `flow` is that of the conversation now; where entries ran on
    another version, of a conversation before it under its id too, `ran_on` tells it. A variable is sensitive
    in an entry where any version up to there says so, or the present one. `instead` gives what a variable's
    own value is shown as. `learned` is the number of the last entry that it knows."""

    def __init__(
        self,
        flow: CompiledFlow,
        known: Iterable[Known] = (),
        *,
        instead: Callable[[VariableSpec | None, JsonValue], JsonValue] = shown,
    ) -> None:
        self.flow = flow
        self._ran_on: list[tuple[int, CompiledFlow]] = []
        self._secrets = Secrets(known)
        self._instead = instead
        self._hidden: dict[str, str] = {}
        self._unread: list[str] = []
        self._never_read: set[str] = set()
        self.learned = 0

    def json(self, value: object) -> object:
        """JSON with masks where it quotes a secret."""
        return self._secrets.json(value)

    def ran_on(self, seq: int, flow: CompiledFlow) -> None:
        """From the entry `seq` on it was this version; told in their order, each before its entry is
        learned."""
        self._ran_on.append((seq, flow))

    def _flows(self, seq: int) -> list[CompiledFlow]:
        """The version of an entry, those before it, and the present one."""
        return [*(flow for since, flow in reversed(self._ran_on) if since <= seq), self.flow]

    def _sensitive(self, seq: int, name: str) -> VariableSpec | None:
        """The variable of an entry, by id or name; None for one that is not sensitive. Hidden is what no
        version has."""
        found = [spec for flow in self._flows(seq) if (spec := _named(flow, name)) is not None]
        found = found or [VariableSpec(name, name, "string", sensitive=True)]
        return next((spec for spec in found if spec.sensitive), None)

    def learn(self, entry: JournalEntry) -> None:
        """Take up the sensitive values that an entry wrote, and those of its base; and which messages have
        been read by then. Entries come in their order, and may come again."""
        if entry.seq > self.learned:
            self.learned = entry.seq
            self._follow(entry)
        for each in self._values_of(entry):
            self._secrets.add(*each)
        if entry.base is not None:
            for flow in self._flows(entry.seq - 1):
                for each in values_stored(flow, entry.base):
                    self._secrets.add(*each)

    def _follow(self, entry: JournalEntry) -> None:
        if entry.base is not None:
            self._hidden |= entry.base.mining.hidden
        if "tenant" in entry.delta:  # started anew: what nobody has read by now stays unread
            self._never_read |= {*self._unread}
            self._unread.clear()
        if entry.input.get("mined") is True:
            self._unread.append(_name_of(entry))
        mining = as_object(entry.delta.get("mining"))
        self._hidden |= cast("Mapping[str, str]", as_object(mining.get("hidden")))
        if mining.get("minedThrough") in self._unread:
            del self._unread[: self._unread.index(str(mining["minedThrough"])) + 1]

    def waits(self, entry: JournalEntry) -> bool:
        """Whether it is a message in which values may stand that nobody has looked for yet."""
        name = _name_of(entry) if entry.input.get("mined") is True else None
        return name in self._unread or name in self._never_read

    def _values_of(self, entry: JournalEntry) -> Iterator[Known]:
        stored = (as_object(entry.delta.get(name)).items() for name in _WRITTEN)
        asked = ((str(write.get("varId")), write) for write in _objects(entry.input.get("writes")))
        for var_id, each in chain(*stored, asked):
            spec = self._sensitive(entry.seq, var_id)
            if spec is not None:
                yield from _values_in(spec, as_object(each))
        for var_id, heard in as_object(as_object(entry.delta.get("mining")).get("provenance")).items():
            spec = self._sensitive(entry.seq, var_id)
            if spec is not None:
                yield spec, _of(heard, "superseded")

    def masked(self, entry: JournalEntry) -> JournalEntry:
        """The entry as everybody may see it, without its base."""
        self.learn(entry)
        asked = {**as_object(self.json(entry.input)), "op": entry.input["op"]}
        delta = {**as_object(self.json(entry.delta))}
        if "writes" in asked:
            writes = zip(_objects(entry.input["writes"]), _objects(asked["writes"]), strict=True)
            asked["writes"] = [
                self._entry(self._sensitive(entry.seq, str(write.get("varId"))), write, masked)
                for write, masked in writes
            ]
        if asked["op"] == "handle-utterance":
            hidden_as = MASKS[True] if self.waits(entry) else self._hidden.get(_name_of(entry))
            asked["body"] = hidden_as or asked["body"]
        for name in _WRITTEN:
            if name in delta:
                stored, masked = as_object(entry.delta[name]), as_object(delta[name])
                delta[name] = {
                    id: self._entry(self._sensitive(entry.seq, id), as_object(each), as_object(masked[id]))
                    for id, each in stored.items()
                }
        mining = as_object(entry.delta.get("mining"))
        if "provenance" in mining:
            provenance = {**as_object(as_object(delta["mining"])["provenance"])}
            for id, each in as_object(mining["provenance"]).items():
                spec = self._sensitive(entry.seq, id)
                if spec is not None and "superseded" in as_object(each):
                    instead = self._instead(spec, _of(each, "superseded"))
                    provenance[id] = {**as_object(provenance[id]), "superseded": instead}
            delta["mining"] = {**as_object(delta["mining"]), "provenance": provenance}
        return replace(
            entry,
            input=asked,
            outcome=as_object(self.json(entry.outcome)),
            delta=delta,
            rationale=cast("str | None", self.json(entry.rationale)),
            base=None,
        )

    def _entry(
        self, spec: VariableSpec | None, stored: Mapping[str, object], masked: Mapping[str, object]
    ) -> Mapping[str, object]:
        """A stored or written entry of the memory, whose texts are `masked` already: what stands for its
        value is not masked again. One description keeps a custom value writable."""
        if spec is None:
            return masked
        described = [{"name": spec.name, "value": shown(spec, True)}]
        return {
            **masked,
            "value": self._instead(spec, _of(stored, "value")),
            "descriptionForLLM": described if stored.get("descriptionForLLM") else None,
        }


def _named(flow: CompiledFlow, name: str) -> VariableSpec | None:
    return flow.variables.resolve(name) or flow.sensitive.get(name)


def _name_of(entry: JournalEntry) -> str:
    """What the message of an entry is known by."""
    return message_name(str(entry.input["contactId"]), str(entry.input["messageId"]))


_WRITTEN = ("variables", "added", "tools", "mined")
"""Where a delta has entries of the memory."""


def _of(stored: object, name: str) -> JsonValue:
    return cast("JsonValue", as_object(stored).get(name))


def _values_in(spec: VariableSpec, stored: Mapping[str, object]) -> Iterator[Known]:
    """Of a stored or written entry: its value, and what was told of it for models."""
    yield spec, _of(stored, "value")
    yield spec, [_of(part, "value") for part in _objects(stored.get("descriptionForLLM"))]
