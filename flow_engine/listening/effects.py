"""What a reading of the dialogue changes: values, checkpoints and what is watched (F18, F37, F39).

1. A later user turn replaces an earlier mined value, which is kept as superseded. One that says the same
   confirms a value that grows old; a model reads what was said before as well, so that its word counts for a
   value that is old already.
2. A checkpoint is reached once.
3. Reading along also counts: how often the agent asked in vain, and for how many turns a task could have
   been entered.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from flow_engine.documents import Checkpoint
from flow_engine.listening.mining import MiningRequest, MiningResult
from flow_engine.masking import MASKS, Secrets
from flow_engine.runtime.memory import MINER, MemoryEntry, is_stale, open_for_mining
from flow_engine.runtime.mining_state import MiningState, Provenance, ReachedCheckpoint
from flow_engine.runtime.rules import reachable_tasks
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.variables import VariableSpec

HIDDEN_KEPT = 1_000
"""Messages that are known to be shown as masks, the newest."""


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
