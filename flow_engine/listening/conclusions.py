"""What an ended contact was about, what came of it, its scores and its summary: by a model, and by rules
(F30, F39)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import fsum

from flow_engine.documents import Scorecard, ScorecardCriterion
from flow_engine.documents.model import ContactResult, ReasonOfContact
from flow_engine.json_values import as_object
from flow_engine.listening.mining import dialogue_text
from flow_engine.ports.dialogue import DialogueTurn, SummaryRequest
from flow_engine.ports.models import LLMRequest, instruction
from flow_engine.ports.system_prompts import SystemPrompts
from flow_engine.runtime.commands import one_line
from flow_engine.runtime.events import system_event
from flow_engine.runtime.memory import PreviousContact
from flow_engine.runtime.mining_state import Conclusion
from flow_engine.runtime.prompt import PromptSections
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.session import Contact

CONCLUSION_TOKENS, TOKENS_A_CRITERION = 400, 20
SUMMARY_TOKENS = 400
LONGEST_SUMMARY = 1_500


def conclusion_call(
    runner: ConversationalFlowRunner, turns: Sequence[DialogueTurn], sections: PromptSections
) -> LLMRequest | None:
    """Asks for reason of contact, result and scores; None when the version declares none of them."""
    version = runner.flow.document
    choices = (
        ("reasonOfContact", "conclusion_reasons", version.reasons_of_contact),
        ("result", "conclusion_results", version.results),
    )
    return scoring_call(version.scorecards, turns, sections, choices)


def scoring_call(
    scorecards: Sequence[Scorecard],
    turns: Sequence[DialogueTurn],
    sections: PromptSections,
    choices: Sequence[tuple[str, str, Sequence[ReasonOfContact | ContactResult]]] = (),
) -> LLMRequest | None:
    """Asks for scores, and for one of each of the `choices`: a property of the answer, the name of its
    section of the prompt, and what there is. None where there is nothing to judge, or nothing to judge by."""
    asked = [each for each in choices if each[2]]
    if not turns or not (asked or scorecards):
        return None
    system = [sections["conclusion_instructions"]]
    properties: dict[str, object] = {}
    for field, heading, accepted in asked:
        system.append(sections[heading])
        system += [f"- {choice.name}: {' '.join(choice.prompt.split())}" for choice in accepted]
        properties[field] = {"enum": [*(choice.name for choice in accepted), None]}
    if scorecards:
        system.append(sections["conclusion_scores"])
        system += [
            f"- {card.name} / {criterion.name} ({card.scale.min:g} – {card.scale.max:g}): "
            + one_line(criterion.prompt)
            for card, criterion in _pairs(scorecards)
        ]
        properties["scores"] = _score_schema(scorecards)
    properties["why"] = {"type": "string"}
    return LLMRequest(
        instruction("\n".join(system), dialogue_text(turns, sections)),
        output_schema={"type": "object", "properties": properties, "required": list(properties)},
        max_tokens=CONCLUSION_TOKENS + TOKENS_A_CRITERION * len(_pairs(scorecards)),
        temperature=0,
        purpose="conclusion",
    )


def _pairs(scorecards: Sequence[Scorecard]) -> list[tuple[Scorecard, ScorecardCriterion]]:
    return [(card, criterion) for card in scorecards for criterion in card.criteria]


def _score_schema(scorecards: Sequence[Scorecard]) -> Mapping[str, object]:
    cards: dict[str, object] = {}
    for card in scorecards:
        score = {"type": ["number", "null"], "minimum": card.scale.min, "maximum": card.scale.max}
        names = [criterion.name for criterion in card.criteria]
        cards[card.name] = {"type": "object", "properties": dict.fromkeys(names, score), "required": names}
    return {"type": "object", "properties": cards, "required": list(cards)}


def read_scores(scorecards: Sequence[Scorecard], data: object) -> Mapping[str, Mapping[str, float]]:
    """Of a model's answer, what was asked for: numbers within the scale, by scorecard and criterion."""
    answer = as_object(as_object(data).get("scores"))
    found: dict[str, dict[str, float]] = {}
    for card, criterion in _pairs(scorecards):
        score = as_object(answer.get(card.name)).get(criterion.name)
        if isinstance(score, bool) or not isinstance(score, int | float):
            continue
        if card.scale.min <= score <= card.scale.max:
            found.setdefault(card.name, {})[criterion.name] = score
    return found


def total_score(card: Scorecard, scores: Mapping[str, float]) -> float:
    """The mean by weight of what was judged, in the scale of the scorecard. Raises ZeroDivisionError where
    nothing was."""
    judged = [each for each in card.criteria if each.name in scores]
    return fsum(each.weight * scores[each.name] for each in judged) / fsum(each.weight for each in judged)


def read_conclusion(runner: ConversationalFlowRunner, data: object) -> Conclusion:
    """Only declared names are taken."""
    answer = as_object(data)
    version = runner.flow.document
    return Conclusion(
        reason_of_contact=_one_of(
            answer.get("reasonOfContact"), (r.name for r in version.reasons_of_contact)
        ),
        result=_one_of(answer.get("result"), (r.name for r in version.results)),
        why=str(answer.get("why") or "")[:500],
        scores=read_scores(version.scorecards, data),
    )


def _one_of(given: object, names: Iterable[str]) -> str | None:
    return next((name for name in names if name == given), None)


def summary_call(
    turns: Sequence[DialogueTurn], contact: Contact, sections: PromptSections
) -> LLMRequest | None:
    if not turns:
        return None
    tasks = " → ".join(contact.tasks)
    return LLMRequest(
        instruction(sections["summary_instructions"].format(tasks=tasks), dialogue_text(turns, sections)),
        max_tokens=SUMMARY_TOKENS,
        temperature=0,
        purpose="summary",
    )


def with_summary(
    contacts: Sequence[PreviousContact], contact: Contact, text: str
) -> tuple[PreviousContact, ...] | None:
    """The list with this contact's summary replaced; None when it has no entry."""
    summary = " ".join(text.split())[:LONGEST_SUMMARY]
    if not summary or all(c.date != contact.started_at for c in contacts):
        return None
    return tuple(
        PreviousContact(c.date, c.channel, summary) if c.date == contact.started_at else c for c in contacts
    )


def conclusion_events(
    runner: ConversationalFlowRunner, contact_id: str, conclusion: Conclusion
) -> tuple[bytes, ...]:
    found = {"reason_of_contact": conclusion.reason_of_contact, "result": conclusion.result}
    told: list[tuple[str, str, Mapping[str, object]]] = [
        (subtype, subtype, {"name": name}) for subtype, name in found.items() if name is not None
    ]
    for number, card in enumerate(runner.flow.document.scorecards):
        scores = conclusion.scores.get(card.name)
        if scores:
            details = {"name": card.name, "score": total_score(card, scores), "criteria": scores}
            told.append((f"scorecard:{number}", "scorecard", details))
    return tuple(
        system_event(
            *(runner.flow, runner.session, f"concluded:{contact_id}:{place}", contact_id, runner.now),
            subtype,
            **details,
            why=conclusion.why,
        )
        for place, subtype, details in told
    )


def missed_events(runner: ConversationalFlowRunner, contact_id: str, *, judged: bool) -> tuple[bytes, ...]:
    """Required checkpoints of the version that nobody reached, but for those whose condition is not true at
    the end. `judged` False: nobody could tell."""
    reached = runner.loaded.mining.checkpoints
    return tuple(
        system_event(
            *(runner.flow, runner.session, f"missed:{point.id}", contact_id, runner.now),
            "checkpoint_missed",
            checkpointId=point.id,
            name=point.name,
            judged=None if judged else False,
        )
        for point in runner.flow.document.checkpoints
        if point.required and point.id not in reached and runner.holds(point.when)
    )


LAST_WORDS = 3
LONGEST_WORDS = 200


class RuleSummariser:
    """Implements `Summariser` from the tasks passed, the variables known and the user's last words."""

    def __init__(self, prompts: SystemPrompts) -> None:
        self._prompts = prompts

    async def summarise(self, request: SummaryRequest) -> str:
        sections = self._prompts.prompt_sections(request.api_version, None, request.language)
        sentences = list(_sentences(request, sections.__getitem__))
        return _cut(" ".join(sentences) or sections["summary_nothing"], LONGEST_SUMMARY)


def _sentences(request: SummaryRequest, piece: Callable[[str], str]) -> Iterator[str]:
    if request.tasks_passed:
        yield piece("summary_tasks").format(tasks=" → ".join(request.tasks_passed))
    dialogue = (turn for turn in request.turns if turn.src == "user" and turn.type == "message")
    said = [turn.body for turn in dialogue if turn.body.strip()]
    if said:
        quoted = " / ".join(_cut(one_line(body)) for body in said[-LAST_WORDS:])
        yield piece("summary_said").format(text=quoted)
    if request.variables:
        known = ", ".join(f"{name} = {_cut(one_line(value))}" for name, value in request.variables)
        yield piece("summary_known").format(variables=known)
    if request.end_reason:
        yield piece("summary_end").format(reason=_cut(one_line(request.end_reason)))


def _cut(text: str, longest: int = LONGEST_WORDS) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
