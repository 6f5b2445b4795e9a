"""ConvMiner's rules: what the dialogue is read for, and what is taken of the answers (F18, F37, F39).

1. Only the user's own words are a source. Custom variables are not asked, nor those that a tool has written,
   unless their `precedence` says whose value counts then.
2. Rules read first, a model after them, about what they left; a value that does not fit its variable's
   type is dropped and counted, the others of the same answer stay.

What a reading then changes is in `effects`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, cast

from flow_engine.documents import Checkpoint
from flow_engine.json_values import as_object
from flow_engine.masking import MASKS
from flow_engine.ports.dialogue import DialogueTurn
from flow_engine.ports.extraction import ExtractionRequest, Extractor
from flow_engine.ports.models import LLMRequest, instruction
from flow_engine.runtime.compiled import miner_settings
from flow_engine.runtime.memory import is_stale, open_for_mining
from flow_engine.runtime.mining_state import MinedBy, MiningState
from flow_engine.runtime.prompt import PromptSections, as_data
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.storage import LoadedConversation
from flow_engine.runtime.tables import value_text
from flow_engine.runtime.times import tenant_zone
from flow_engine.values import VALUE_KINDS, JsonValue, ValueRejected, canonical
from flow_engine.variables import VariableSpec

ANSWER_TOKENS = 1_000
STALLED_AFTER = 3
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
