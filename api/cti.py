"""What a core CTI tells of itself: ends of contacts and utterances, through the agents' use cases (F40).

`kind` is `contact_ended` or `utterance`, `body` the JSON that `POST /v1/handle-end-contact` and
`POST /v1/handle-utterance` take, judged by the same rules.
"""

from collections.abc import Callable, Mapping

from pydantic import TypeAdapter

from api.bodies import HandleEndContact, HandleUtterance, parse_body, utterance_of
from flow_engine.errors import CorrectTheInput, ReloadAndDecide
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job, NeverTryAgain
from flow_engine.use_cases.conversations import Conversations
from flow_engine.use_cases.dialogue import DialogueService

LARGEST_ENTRY = 1_200_000
"""Bytes of a `body`, as a request's."""
_END_CONTACT, _UTTERANCE = TypeAdapter(HandleEndContact), TypeAdapter(HandleUtterance)


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
            await self._take(job.conversation.tenant_id, self._fields(job))
        except CorrectTheInput as refused:
            places = "; ".join(
                f"{finding.pointer or 'body'}: {finding.message}" for finding in refused.findings
            )
            raise NeverTryAgain(f"{refused.code}: {places or refused.detail}"[:1_000]) from refused
        except ReloadAndDecide as over:
            if over.code == "revision_conflict":
                raise
            raise NeverTryAgain(str(over)) from over

    async def _take(self, tenant_id: str, fields: Mapping[str, bytes]) -> None:
        body = fields.get("body", b"")
        if len(body) > LARGEST_ENTRY:
            raise NeverTryAgain(f"too_large: accepted are bodies of {LARGEST_ENTRY} bytes")
        match fields.get("kind"):
            case b"contact_ended":
                end = parse_body(body, _END_CONTACT)
                ended = ConversationRef(tenant_id, end.conversation_id)
                await self._conversations.end_contact(ended, end.contact_id, end.reason)
            case b"utterance":
                said = parse_body(body, _UTTERANCE)
                conversation = ConversationRef(tenant_id, said.conversation_id)
                await self._dialogue.utterance(conversation, utterance_of(said))
            case other:
                raise NeverTryAgain(f"kind {other!r} is unknown; accepted are contact_ended and utterance")
