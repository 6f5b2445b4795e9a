"""How conversations of a version begin: what they share is made once.

The first task, its texts and most of the reply to the first contact follow from version, channel and
language, and from what templates read of tenant and contact. They are taken from the first conversation that
begins like that, and kept by just that.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.commands import NewContact
from flow_engine.runtime.session import Session

BEGINNING_BYTES = 8 * 1024 * 1024
"""Of beginnings that a process keeps."""


class Beginning(Struct, frozen=True):
    """`session` is without ids and caller data, its moments are those of the conversation that it was taken
    from. `known_by`: by what the prefix of the prompt is known; `table`: the memory as the prompt shows it,
    None where that is made each time. `rest` are the members of the reply that follow the prompt, bytes of
    JSON."""

    session: Session
    known_by: tuple[object, ...]
    table: str | None
    rest: bytes

    @classmethod
    def of(cls, session: Session, known_by: tuple[object, ...], table: str | None, rest: bytes) -> Beginning:
        contact = replace(session.latest_contact, data={})
        bare = replace(
            session, conversation_id="", tenant_id="", contacts={"": contact}, active_contact_id=""
        )
        return cls(bare, known_by, table, rest)

    def session_of(self, conversation: ConversationRef, contact: NewContact, now: datetime) -> Session:
        """As it is once that contact has begun the conversation (UTC)."""
        like = self.session
        admitted = replace(like.latest_contact, started_at=now, data=contact.data)
        return replace(
            like,
            conversation_id=conversation.conversation_id,
            tenant_id=conversation.tenant_id,
            contacts={contact.contact_id: admitted},
            active_contact_id=contact.contact_id,
            started_at=now,
            task=replace(like.task, entered_at=now),
            deadline=None if like.deadline is None else now + (like.deadline - like.started_at),
        )

    @property
    def weight(self) -> int:
        """In bytes; texts take up to four a character."""
        task = self.session.task
        texts = (task.global_prompt, task.prompt, *task.descriptions.values(), self.table or "")
        return len(self.rest) + 4 * sum(map(len, texts))
