"""Scorecards judged again, over conversations that are stored: of another version, or by another model."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from typing_extensions import TypedDict

from flow_engine.errors import CallTheOperator, RetryLater, unknown_conversation
from flow_engine.listening.conclusions import read_scores, scoring_call, total_score
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.models import LanguageModel, ModelFailed, ask
from flow_engine.runtime.compiled import CompiledFlow
from flow_engine.runtime.storage import turns_of_contact
from flow_engine.use_cases.transactor import Transactor
from flow_engine.use_cases.versions_in_use import VersionChoice


class ScorecardScores(TypedDict):
    """`score` is the mean by weight of `criteria`, which has no criterion that could not be judged."""

    name: str
    score: float
    criteria: Mapping[str, float]


class ContactScores(TypedDict):
    """Scorecards of which nothing could be judged are left out."""

    contactId: str
    scorecards: Sequence[ScorecardScores]


class ConversationScores(TypedDict):
    """Contacts without a message are left out."""

    conversationId: str
    contacts: Sequence[ContactScores]


class Scoring:
    """Asks a model once for each contact, which sees sensitive values masked. What conversations and their
    events tell stays as it was."""

    def __init__(self, transactor: Transactor, model: LanguageModel) -> None:
        self._transactor = transactor
        self._model = model

    async def score(
        self, tenant_id: str, version_id: str, conversation_ids: Sequence[str]
    ) -> list[ConversationScores]:
        """By the scorecards of a version, which need not be the one that the conversations run on.

        Raises LookElsewhere `version_unknown`, `conversation_unknown`, ReloadAndDecide `version_is_draft`,
        CallTheOperator `model_not_configured`, RetryLater `model_unavailable`: in 5 seconds.
        """
        flow = (await self._transactor.versions.to_start(tenant_id, VersionChoice(version_id))).version.flow
        return [await self._of(flow, ConversationRef(tenant_id, each)) for each in conversation_ids]

    async def _of(self, flow: CompiledFlow, conversation: ConversationRef) -> ConversationScores:
        loaded = await self._transactor.memory.load(conversation, with_turns=True)
        if loaded.session is None:
            raise unknown_conversation(conversation.conversation_id)
        runner = await self._transactor.resume(conversation, loaded)
        cards, contacts = flow.document.scorecards, list[ContactScores]()
        for contact_id, contact in loaded.session.own_contacts.items():
            sections = self._transactor.platform.prompt_sections(flow, contact.channel)
            turns = runner.shown_turns(turns_of_contact(loaded.turns, contact_id))
            request = scoring_call(cards, turns, sections)
            if request is None:
                continue
            try:
                answer = await ask(self._model, replace(request, conversation=conversation))
            except ModelFailed as failure:
                if failure.reason == "not_configured":
                    raise CallTheOperator("model_not_configured", str(failure)) from failure
                raise RetryLater("model_unavailable", str(failure), after_seconds=5) from failure
            scores = read_scores(cards, answer.data)
            found = [
                ScorecardScores(
                    name=card.name, score=total_score(card, scores[card.name]), criteria=scores[card.name]
                )
                for card in cards
                if card.name in scores
            ]
            contacts.append(ContactScores(contactId=contact_id, scorecards=found))
        return ConversationScores(conversationId=conversation.conversation_id, contacts=contacts)
