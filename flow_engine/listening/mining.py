"""ConvMiner's rules: what the dialogue is read for, and what is taken of the answers (F18, F37, F39).

1. Only the user's own words are a source. Custom variables are not asked, nor those that a tool has written,
   unless their `precedence` says whose value counts then.
2. Rules read first, a model after them, about what they left; a value that does not fit its variable's
   type is dropped and counted, the others of the same answer stay.
3. A later user turn replaces an earlier mined value, which is kept as superseded. One that says the same
   confirms a value that grows old; a model reads what was said before as well, so that its word counts for a
   value that is old already.
4. A checkpoint is reached once.
5. Reading along also counts: how often the agent asked in vain, and for how many turns a task could have
   been entered.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any, cast

from flow_engine.documents import Checkpoint
from flow_engine.json_values import as_object
from flow_engine.masking import MASKS, Secrets
from flow_engine.ports.dialogue import DialogueTurn
from flow_engine.ports.extraction import ExtractionRequest, Extractor
from flow_engine.ports.models import LLMRequest, instruction
from flow_engine.runtime.compiled import miner_settings
from flow_engine.runtime.memory import MINER, MemoryEntry, is_stale, open_for_mining
from flow_engine.runtime.mining_state import MinedBy, MiningState, Provenance, ReachedCheckpoint
from flow_engine.runtime.prompt import PromptSections, as_data
from flow_engine.runtime.rules import reachable_tasks
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.storage import LoadedConversation
from flow_engine.runtime.tables import value_text
from flow_engine.runtime.times import tenant_zone
from flow_engine.values import VALUE_KINDS, JsonValue, ValueRejected, canonical
from flow_engine.variables import VariableSpec

ANSWER_TOKENS = 1_000
STALLED_AFTER = 3
HIDDEN_KEPT = 1_000
"""Messages that are known to be shown as masks, the newest."""
EARLIEST_MOMENT = datetime(2, 1, 1, tzinfo=UTC)
LATEST_MOMENT = datetime(9998, 12, 31, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class MiningTuning:
    """What a flow may set through `aiHelpers`: an object named `convMiner` with any of these fields.
    `stalled_after`: user turns for which a task could have been entered until it counts as stalled, 0: never.
    """

    enabled: bool = True
    turns: int = 8
    model: str | None = None
    prompt: str = ""
    stalled_after: int = STALLED_AFTER


def tuning_of(runner: ConversationalFlowRunner) -> MiningTuning:
    settings = miner_settings(runner.flow.document, runner.task.document)
    fields = {"stalled_after" if name == "stalledAfter" else name: settings[name] for name in settings}
    return MiningTuning(**cast("Mapping[str, Any]", fields))


@dataclass(frozen=True, slots=True)
class MiningRequest:
    """Everything that one reading of the last user turn is about. `read_through`: the turn read before it.

    `unread` are the user's turns since then with what the agent had said before each, oldest first: a burst
    is read at once, its last turn is `turn`. `to_confirm` are old values by variable id, without sensitive
    ones.
    """

    turn: DialogueTurn
    unread: Sequence[tuple[DialogueTurn, str | None]]
    read_through: str | None
    previous_bot_turn: str | None
    turns: Sequence[DialogueTurn]
    variables: Sequence[VariableSpec]
    checkpoints: Sequence[Checkpoint]
    tuning: MiningTuning
    timezone: tzinfo
    typed: bool = False
    to_confirm: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


def mining_request_of(runner: ConversationalFlowRunner) -> MiningRequest | None:
    """What is to be read in the last user turn; None when it was read, or the flow wants no mining."""
    loaded = runner.loaded
    tuning = tuning_of(runner)
    turn = next((t for t in reversed(loaded.turns) if is_last_turn(t, loaded)), None)
    if turn is None or not tuning.enabled or was_read(turn, loaded.mining):
        return None
    variables = open_for_mining(runner.flow.variables, loaded.tools)
    before = loaded.turns[: loaded.turns.index(turn)]
    unread = _unread([*before, turn], loaded.mining.mined_through)[-tuning.turns :]
    return MiningRequest(
        turn=turn,
        unread=unread,
        read_through=loaded.mining.mined_through,
        previous_bot_turn=unread[-1][1],
        turns=[t for t in (*before, turn) if t.type == "message"][-tuning.turns :],
        variables=variables,
        checkpoints=[
            c
            for c in runner.task.document.enabled_checkpoints
            if c.id not in loaded.mining.checkpoints and runner.applies(c)
        ],
        tuning=tuning,
        timezone=tenant_zone(runner.tenant),
        typed=runner.session.latest_contact.channel != "phone",
        to_confirm={
            spec.id: runner.memory[spec.id].value
            for spec in variables
            if not spec.sensitive and is_stale(spec, runner.memory.get(spec.id), runner.now)
        },
    )


def is_last_turn(turn: DialogueTurn, loaded: LoadedConversation) -> bool:
    """Releases before told turns apart by their message id alone."""
    return loaded.last_user_turn in (turn.name, turn.message_id)


def was_read(turn: DialogueTurn, state: MiningState) -> bool:
    """As the last of all that were read."""
    return state.mined_through in (turn.name, turn.message_id)


def is_unread(runner: ConversationalFlowRunner) -> bool:
    """The last user turn is still to be read, by a reading that has not failed."""
    last, mining = runner.loaded.last_user_turn, runner.loaded.mining
    return last not in (None, mining.mined_through, mining.failed_turn) and tuning_of(runner).enabled


def _unread(turns: Sequence[DialogueTurn], read_through: str | None) -> list[tuple[DialogueTurn, str | None]]:
    """Never empty: the last of `turns` is a turn of the user that nobody has read."""
    found: list[tuple[DialogueTurn, str | None]] = []
    question: str | None = None
    for turn in turns:
        if read_through in (turn.name, turn.message_id):
            found.clear()
        elif turn.src == "user" and (turn.type == "message" or turn is turns[-1]):
            found.append((turn, question))
        if turn.src != "user" and turn.type == "message":
            question = turn.body
    return found


def extraction_requests(request: MiningRequest) -> list[tuple[str, ExtractionRequest]]:
    """One for each unread turn, with its message id."""
    return [
        (
            turn.message_id,
            ExtractionRequest(
                utterance=turn.body,
                previous_bot_turn=question,
                language=turn.language,
                said_at=_moment(turn),
                timezone=request.timezone,
                variables=request.variables,
                typed=request.typed,
            ),
        )
        for turn, question in request.unread
    ]


@dataclass(frozen=True, slots=True)
class MiningResult:
    """What was read: values by variable id with their source, checkpoints by id with the reason. `heard`
    is all that rules found, as (variable id, value, message id), in the order in which it was said, what was
    said otherwise later too. `confidence` is that of the model, from 0 to 1, by variable id."""

    values: Mapping[str, tuple[JsonValue, MinedBy]] = field(
        default_factory=dict[str, tuple[JsonValue, MinedBy]]
    )
    heard: Sequence[tuple[str, JsonValue, str]] = ()
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])
    checkpoints: Mapping[str, str] = field(default_factory=dict[str, str])
    failed: bool = False
    confidence: Mapping[str, float] = field(default_factory=dict[str, float])


def read_by_rules(extractor: Extractor, request: MiningRequest) -> MiningResult:
    """What rules find in the unread turns; what was said later counts. Some milliseconds of CPU a turn."""
    values: dict[str, tuple[JsonValue, MinedBy]] = {}
    heard: list[tuple[str, JsonValue, str]] = []
    for message_id, extraction in extraction_requests(request):
        found = extractor.extract(extraction)
        values |= {var_id: (value, "rules") for var_id, value in found.items()}
        heard += [(var_id, value, message_id) for var_id, value in found.items()]
    return MiningResult(values, heard)


def together(by_rules: MiningResult, by_model: MiningResult) -> MiningResult:
    """What rules have found stands; the model was asked for the rest."""
    values = {**by_model.values, **by_rules.values}
    return replace(by_model, values=values, heard=by_rules.heard)


def model_call(request: MiningRequest, found: Iterable[str], sections: PromptSections) -> LLMRequest | None:
    """One call about what the rules left open; None when nothing is."""
    known = set(found)
    wanted = [v for v in request.variables if v.id not in known]
    if not wanted and not request.checkpoints:
        return None
    said_at = _moment(request.turn).astimezone(request.timezone)
    system = [sections["mining_instructions"]]
    system += [
        sections["mining_variable"].format(
            name=variable.name, type=variable.type, prompt=" ".join((variable.prompt or "").split())
        )
        for variable in wanted
    ]
    system += [
        sections["mining_confirm"].format(name=v.name, value=as_data(value_text(v.type, value)))
        for v in wanted
        if (value := request.to_confirm.get(v.id)) is not None
    ]
    if wanted:
        system.append(sections["mining_confidence"])
    if request.checkpoints:
        system.append(sections["mining_checkpoints"])
        system += [f"- {c.id}: {c.name}. {c.prompt}" for c in request.checkpoints]
    system.append(sections["mining_now"].format(now=said_at.isoformat(timespec="minutes")))
    system.append(request.tuning.prompt)
    return LLMRequest(
        instruction("\n".join(part for part in system if part), dialogue_text(request.turns, sections)),
        output_schema=_answer_schema(wanted, request.checkpoints),
        model=request.tuning.model,
        max_tokens=ANSWER_TOKENS,
        temperature=0,
        purpose="mining",
    )


def dialogue_text(turns: Iterable[DialogueTurn], sections: PromptSections) -> str:
    speakers = {name: sections[f"speaker_{name}"] for name in ("user", "bot", "agent")}
    return "\n".join(f"{speakers.get(t.src, t.src)}: {' '.join(t.body.split())}" for t in turns)


def _moment(turn: DialogueTurn) -> datetime:
    """The utterance's moment, far enough from the ends of the calendar for every zone and relative date."""
    return min(max(turn.ts, EARLIEST_MOMENT), LATEST_MOMENT)


def _answer_schema(
    variables: Iterable[VariableSpec], checkpoints: Iterable[Checkpoint]
) -> Mapping[str, object]:
    values: dict[str, object] = {}
    confidence: dict[str, object] = {}
    for variable in variables:
        confidence[variable.name] = {"type": ["number", "null"]}
        if variable.type == "enum":
            values[variable.name] = {"enum": [*variable.enum_values, None]}
        else:
            values[variable.name] = {"type": [VALUE_KINDS[variable.type].asked_as, "null"]}
    reached = {
        "type": "object",
        "properties": {"id": {"enum": [c.id for c in checkpoints]}, "reason": {"type": "string"}},
        "required": ["id", "reason"],
    }
    properties: dict[str, object] = {"values": {"type": "object", "properties": values}}
    if checkpoints:
        properties["checkpoints"] = {"type": "array", "items": reached}
    required = list(properties)
    if confidence:
        properties["confidence"] = {"type": "object", "properties": confidence}
    return {"type": "object", "properties": properties, "required": required}


def read_answer(request: MiningRequest, data: object, runner: ConversationalFlowRunner) -> MiningResult:
    """Take of a model's answer what fits: an answer of any shape is read, never trusted."""
    answer = as_object(data)
    values_given = answer.get("values")
    values: dict[str, tuple[JsonValue, MinedBy]] = {}
    dropped: Counter[str] = Counter()
    if not as_object(values_given) and values_given != {}:
        dropped["answer_unusable"] += 1
    allowed = {v.id for v in request.variables}
    for name, value in as_object(values_given).items():
        spec = runner.flow.variables.resolve(name)
        if spec is None or spec.id not in allowed:
            dropped["variable_unknown"] += 1
            continue
        if value == MASKS["card"]:  # what the dialogue shows of a card, and no value of another variable
            dropped["masked"] += 1
            continue
        try:
            fitting = canonical(
                spec,
                cast("JsonValue", value),
                default_region=region_of(request.turn.language),
                timezone=request.timezone,
            )
        except ValueRejected as rejected:
            dropped[rejected.code] += 1
            continue
        if fitting is not None:
            values[spec.id] = (fitting, "model")
    confidence: dict[str, float] = {}
    for name, sure in as_object(answer.get("confidence")).items():
        spec = runner.flow.variables.resolve(name)
        if (
            spec is not None
            and spec.id in values
            and type(sure) in (int, float)
            and 0 <= cast("float", sure) <= 1
        ):
            confidence[spec.id] = cast("float", sure)
    known = {c.id for c in request.checkpoints}
    reached: dict[str, str] = {}
    listed = answer.get("checkpoints")
    for item in cast("list[object]", listed) if isinstance(listed, list) else []:
        point = as_object(item).get("id")
        if isinstance(point, str) and point in known:
            reached[point] = str(as_object(item).get("reason") or "")[:500]
    return MiningResult(values, dropped=dict(dropped), checkpoints=reached, confidence=confidence)


def region_of(language: str) -> str | None:
    """The region of a BCP 47 tag, for phone numbers without a prefix: `IT` of `it-IT`."""
    region = language.rpartition("-")[2]
    return region.upper() if len(region) == 2 and "-" in language else None


# --- what follows from a reading ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MiningEffects:
    """What a reading changes: entries for the miner's hash, the new state, and what to tell outside."""

    entries: Mapping[str, MemoryEntry]
    state: MiningState
    checkpoints: Sequence[Checkpoint]
    stalled: Sequence[tuple[str, int]]


def mining_effects(
    runner: ConversationalFlowRunner, request: MiningRequest, result: MiningResult, now: datetime
) -> MiningEffects:
    """On the state as it is now: tools may have written since, and their variables are left alone."""
    state = runner.loaded.mining
    entries, provenance = _new_values(runner, request, result, now)
    reached = [c for c in request.checkpoints if c.id in result.checkpoints]
    counted, stalled = _watched(runner, request, entries)
    marks = {
        c.id: ReachedCheckpoint(at=now, message_id=request.turn.message_id, reason=result.checkpoints[c.id])
        for c in reached
        if c.id not in state.checkpoints
    }
    turn_id = request.turn.name
    return MiningEffects(
        entries=entries,
        state=counted.model_copy(
            update={
                "mined_through": state.mined_through if result.failed else turn_id,
                "failed_turn": turn_id if result.failed else None,
                "provenance": provenance,
                "dropped": dict(Counter(state.dropped) + Counter(result.dropped)),
                "checkpoints": {**state.checkpoints, **marks},
                "stalls": state.stalls + len(stalled),
                "hidden": _hidden(runner, request, result),
            }
        ),
        checkpoints=[c for c in reached if c.id in marks],
        stalled=stalled,
    )


def _new_values(
    runner: ConversationalFlowRunner, request: MiningRequest, result: MiningResult, now: datetime
) -> tuple[dict[str, MemoryEntry], dict[str, Provenance]]:
    """What changes the memory of what was read, and where every mined value comes from then."""
    open_ids = {v.id for v in open_for_mining(runner.flow.variables, runner.loaded.tools)}
    entries, provenance = dict[str, MemoryEntry](), dict(runner.loaded.mining.provenance)
    said_in = {var_id: message_id for var_id, _, message_id in result.heard}
    for var_id, (value, source) in result.values.items():
        earlier, spec = runner.loaded.mined.get(var_id), runner.flow.variables.resolve(var_id)
        if spec is None or var_id not in open_ids:
            continue
        superseded = None if earlier is None else earlier.value
        if superseded == value:
            old = is_stale(spec, runner.memory.get(var_id), now)
            if not old and (spec.fresh_for is None or source == "model"):
                continue
            noted = provenance.get(var_id)
            superseded = None if noted is None else noted.superseded
        entries[var_id] = MemoryEntry(spec.type, MINER, now, value, request.turn.contact_id, None)
        provenance[var_id] = Provenance(
            source=source,
            message_id=said_in.get(var_id, request.turn.message_id),
            at=now,
            superseded=superseded,
            confidence=result.confidence.get(var_id) if source == "model" else None,
        )
    return entries, provenance


def _hidden(
    runner: ConversationalFlowRunner, request: MiningRequest, result: MiningResult
) -> Mapping[str, str]:
    """Masks by the names of messages in place of all their words, those of this reading among them: where a
    sensitive value was found that the words do not quote, or that another one has replaced at once. A model
    does not tell which message it read a value in: then it may be any unread one."""
    hidden, sensitive = dict(runner.loaded.mining.hidden), runner.flow.sensitive
    if not sensitive:
        return hidden
    by_rules = {var_id for var_id, _, _ in result.heard}
    others = ((var_id, value, None) for var_id, (value, _) in result.values.items() if var_id not in by_rules)
    for var_id, value, message_id in (*result.heard, *others):
        if var_id not in sensitive:
            continue
        said = [turn for turn, _ in request.unread if message_id in (None, turn.message_id)]
        secret, stays = Secrets([(sensitive[var_id], value)]), result.values[var_id][0] == value
        if not stays or all(secret.text(turn.body) == turn.body for turn in said):
            hidden |= {turn.name: MASKS[sensitive[var_id].sensitive] for turn in said}
    return dict(list(hidden.items())[-HIDDEN_KEPT:])


def _watched(
    runner: ConversationalFlowRunner, request: MiningRequest, entries: Mapping[str, MemoryEntry]
) -> tuple[MiningState, list[tuple[str, int]]]:
    """The watchdogs' counts; a turn is counted once, however often its reading is tried."""
    state, task_id = runner.loaded.mining, runner.task.id
    if state.failed_turn in (request.turn.name, request.turn.message_id):
        return state, []
    same_task = state.task_id == task_id
    ready = dict(state.ready_turns) if same_task else {}
    stalled: list[tuple[str, int]] = []
    suggested = list(state.stalled) if same_task else []
    for reachable in reachable_tasks(runner.flow, runner.task, runner.guard):
        if reachable.required and not reachable.missing and reachable.open:
            count = ready[reachable.task.id] = ready.get(reachable.task.id, 0) + 1
            if count == request.tuning.stalled_after:
                stalled.append((reachable.task.name, count))
                suggested.append(reachable.task.id)
    attempts = dict(state.attempts)
    for variable in asked_for(request.previous_bot_turn, request.variables):
        filled = variable.id in entries or (
            variable.id in runner.memory and runner.memory[variable.id].has_value
        )
        attempts[variable.id] = 0 if filled else attempts.get(variable.id, 0) + 1
    watched = state.model_copy(
        update={
            "task_id": task_id,
            "task_turns": state.task_turns + 1 if same_task else 1,
            "ready_turns": ready,
            "stalled": tuple(suggested),
            "attempts": {var_id: count for var_id, count in attempts.items() if count},
        }
    )
    return watched, stalled


def asked_for(bot_turn: str | None, variables: Iterable[VariableSpec]) -> list[VariableSpec]:
    """The variables that a request of the agent is about, by the words of their names and prompts."""
    if bot_turn is None or "?" not in bot_turn:
        return []
    words = _words(bot_turn)
    scored = [(len(words & _known_by(v.name, v.prompt)), v) for v in variables]
    best = max((score for score, _ in scored), default=0)
    return [variable for score, variable in scored if score == best and score > 0]


@lru_cache(maxsize=4_096)
def _known_by(name: str, prompt: str | None) -> Set[str]:
    """Kept: a flow has up to a thousand variables, which are asked about at every turn."""
    return _words(f"{name} {prompt or ''}")


def _words(text: str) -> set[str]:
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)
    plain = unicodedata.normalize("NFKD", spaced).encode("ascii", "ignore").decode().lower()
    return {word[:6] for word in re.findall(r"[a-z]{4,}", plain)}
