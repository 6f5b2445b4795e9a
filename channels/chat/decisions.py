"""The orchestrator's decisions (C6, C8): which agent a message goes to, or a question, or a refusal.

1. The router proposes candidates with scores; the orchestrator's model names one with a confidence. To accept
   takes both: the confidence and the score of the agent that was named.
2. Enough confidence for a question, or a score that is too low: clarify. Less: refuse.
3. An answer that is no JSON, or names a stranger, a disabled agent or the orchestrator: confidence 0.
4. Without a model the scores decide: the best is accepted when it leads by the margin.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import orjson

from adapters.models.thoughts import without_thoughts
from channels.chat.agents import Agents, ModelUse, use_of
from channels.chat.router import DIGITS, Candidate
from channels.chat.settings import ChatSettings
from flow_engine.json_values import as_object
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.models import LanguageModel, LLMRequest, Message, ModelFailed, ask
from flow_engine.values import JsonValue

Action = Literal["accept", "clarify", "refuse", "continue"]

MOST_CONTEXT: Final = 10
LEAST_WORDS: Final = 2
"""Words that must speak for another agent before a user is taken away from the one that has asked."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`agent` is None on `refuse`; `confidence`, from 0 to 1, is None where no model was asked. `offered` are
    the agents that a question names."""

    candidates: Sequence[Candidate]
    agent: str | None
    confidence: float | None
    action: Action
    reason: str
    decided_by: Literal["model", "scores"]
    offered: Sequence[str] = ()

    def reply(self) -> dict[str, JsonValue]:
        return {
            "candidates": [{"agent": each.agent, "score": each.score} for each in self.candidates],
            "agent": self.agent,
            "confidence": self.confidence,
            "action": self.action,
            "reason": self.reason,
            "decided_by": self.decided_by,
        }


@dataclass(frozen=True, slots=True)
class Context:
    """What the orchestrator knows beside the message. `turns` are the dialogue, oldest first; `uses` gets
    the calls of its model, the failed ones too."""

    conversation: ConversationRef
    turns: Sequence[Message] = ()
    active_agent: str | None = None
    last_intent: str | None = None
    language: str | None = None
    uses: list[ModelUse] = field(default_factory=list[ModelUse])


class Orchestrator:
    """`model` is None where none is configured."""

    def __init__(self, settings: ChatSettings, model: LanguageModel | None) -> None:
        self._settings = settings
        self._model = model

    def candidates(self, agents: Agents, text: str) -> Sequence[Candidate]:
        """The router's, the best first, with scores from 0 to 1."""
        return agents.router.candidates(text, self._settings.chat_candidates)

    async def decide(self, agents: Agents, text: str, context: Context) -> Decision:
        """Confidence and scores are from 0 to 1. Raises ModelFailed."""
        scores = agents.router.scores(text)
        ranked = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
        candidates = [Candidate(*pair) for pair in ranked[: self._settings.chat_candidates]]
        if self._model is None or agents.orchestrator is None:
            return self.by_scores(candidates)
        request = self._request(agents, candidates, text, context)
        began = time.monotonic()
        try:
            answer = await ask(self._model, request)
        except ModelFailed:
            context.uses.append(use_of(None, request.model, began))
            raise
        context.uses.append(use_of(answer, request.model, began))
        named, confidence = _named(answer.text)
        if named not in scores:
            reason = "the orchestrator named no agent that can be talked to"
            return Decision(candidates, None, 0.0, "refuse", reason, "model")
        settings = self._settings
        sure, fits = confidence >= settings.chat_min_confidence, scores[named] >= settings.chat_min_score
        if sure and fits:
            reason = "confidence and score are high enough"
            return Decision(candidates, named, confidence, "accept", reason, "model")
        if sure or confidence >= settings.chat_clarify_confidence:
            reason = "the score is too low" if sure else "the confidence is middling"
            others = [each.agent for each in candidates if each.agent != named and each.score > 0]
            return Decision(candidates, named, confidence, "clarify", reason, "model", [named, *others[:2]])
        reason = f"the confidence is below {settings.chat_clarify_confidence:g}"
        return Decision(candidates, None, confidence, "refuse", reason, "model")

    def breaks_out(self, agents: Agents, asking: str, text: str) -> str | None:
        """The agent that a message fits clearly better than the one that has asked; None where none does."""
        scores = agents.router.scores(text)
        own = scores.get(asking, 0.0)
        best, score = max(scores.items(), key=lambda pair: (pair[1], pair[0]), default=(asking, 0.0))
        settings = self._settings
        if best == asking or score < settings.chat_min_score or _lead(score, own) < settings.chat_margin:
            return None
        return best if agents.router.words_for(best, text) >= LEAST_WORDS else None

    def by_scores(self, candidates: Sequence[Candidate]) -> Decision:
        settings = self._settings
        able = [each for each in candidates if each.score > 0 and each.score >= settings.chat_min_score]
        if not able:
            reason = f"no agent scores {settings.chat_min_score:g}; no model is configured"
            return Decision(candidates, None, None, "refuse", reason, "scores")
        best, *others = able
        near = [best.agent, *(o.agent for o in others if _lead(best.score, o.score) < settings.chat_margin)]
        if len(near) > 1:
            reason = f"{len(near)} agents are within {settings.chat_margin:g}; no model is configured"
            return Decision(candidates, near[0], None, "clarify", reason, "scores", near)
        second = candidates[1].score if len(candidates) > 1 else 0.0
        lead = (
            f"ahead by {settings.chat_margin:g}"
            if _lead(best.score, second) >= settings.chat_margin
            else f"and the only one of {settings.chat_min_score:g}"
        )
        reason = f"the best score, {lead}; no model is configured"
        return Decision(candidates, near[0], None, "accept", reason, "scores")

    def _request(
        self, agents: Agents, candidates: Sequence[Candidate], text: str, context: Context
    ) -> LLMRequest:
        orchestrator = agents.orchestrator
        row = None if orchestrator is None else orchestrator.row
        prompt = "" if orchestrator is None else orchestrator.system_prompt
        described = [
            {
                "agent": each.agent,
                "score": each.score,
                "description": agents.effective[each.agent].fields["description"],
            }
            for each in candidates
        ]
        material: dict[str, object] = {
            "candidates": described,
            "conversation": [
                {"role": turn.role, "content": turn.content} for turn in context.turns[-MOST_CONTEXT:]
            ],
            "active_agent": context.active_agent,
            "last_intent": context.last_intent,
            "language": context.language,
            "message": text,
        }
        return LLMRequest(
            messages=(Message("system", prompt), Message("user", orjson.dumps(material).decode())),
            model=None if row is None else row.model,
            max_tokens=1024,
            temperature=0.0 if row is None or row.temperature is None else row.temperature,
            top_p=None if row is None else row.top_p,
            num_ctx=None if row is None else row.num_ctx,
            purpose="routing",
            conversation=context.conversation,
        )


def _lead(score: float, other: float) -> float:
    """Exact where both have the router's digits, so that a lead of the margin itself is one."""
    return round(score - other, DIGITS)


def _named(text: str) -> tuple[str | None, float]:
    """Agent and confidence of an answer; (None, 0) for one that cannot be read as meant. A thought or a code
    fence around the object does no harm."""
    told = without_thoughts(text)
    try:
        answer: object = orjson.loads(told[max(told.find("{"), 0) : told.rfind("}") + 1])
    except orjson.JSONDecodeError:
        answer = None
    fields = as_object(answer)
    agent, confidence = fields.get("agent"), fields.get("confidence")
    if not isinstance(agent, str) or isinstance(confidence, bool) or not isinstance(confidence, int | float):
        return None, 0.0
    return agent, min(max(float(confidence), 0.0), 1.0)
