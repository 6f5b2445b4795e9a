"""The conversations that this process read or wrote last, decoded: what is unchanged is not read again (F15).

Nothing here is believed: a read asks Redis whether the state is still the stored one, a commit is taken on
that state alone. So replicas share nothing, and a process without memory of anything is only slower.
"""

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from flow_engine.ports.dialogue import ConversationRef, is_user_turn
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.mining_state import NOTHING_MINED
from flow_engine.runtime.storage import Changes, Composed, LoadedConversation

HELD_BYTES = 64 * 1024 * 1024
"""Of stored bytes, over all conversations; decoded they take about 2.1 times as much (`benchmarks.held`)."""
GROWTH_BEFORE_READ = 2
GROWTH_BYTES = 16 * 1024
"""A conversation that has grown so many times, and these bytes, by what was written is weighed anew by
reading it: what a write replaces is not weighed."""


class Held(msgspec.Struct, frozen=True):
    """Weights in stored bytes: of the session, of the rest, and of the rest when it was read last. Those of
    session and rest together are the conversation's `stored_bytes`."""

    loaded: LoadedConversation
    session_bytes: int
    rest_bytes: int
    rest_read: int


class HeldConversations:
    """The least recently used give way. Sizes in bytes. `reads` counts those that were read, as they were not
    held."""

    def __init__(self, most_bytes: int = HELD_BYTES) -> None:
        self.reads = 0
        self._most_bytes = most_bytes
        self._bytes = 0
        self._held: OrderedDict[ConversationRef, Held] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, conversation: ConversationRef) -> LoadedConversation | None:
        held = self._held.get(conversation)
        if held is None:
            return None
        self._held.move_to_end(conversation)
        return held.loaded

    def read(
        self, conversation: ConversationRef, loaded: LoadedConversation, session_bytes: int, rest_bytes: int
    ) -> None:
        """Hold what was read. It has no messages, former conversations and reply. In stored bytes."""
        self.reads += 1
        self._put(conversation, Held(loaded, session_bytes, rest_bytes, rest_bytes))

    def written(
        self,
        conversation: ConversationRef,
        changes: Changes,
        *,
        session_bytes: int,
        rest_bytes: int,
        memory_revision: int,
        state_before: bytes,
        state: bytes,
    ) -> None:
        """Hold what a commit has made of the state that is held; forget it where it was another one.

        `session_bytes` and `rest_bytes` are what was written, in stored bytes.
        """
        held = self._held.get(conversation)
        if changes.session is not None and changes.session.closed:
            self.forget(conversation)  # hardly anybody asks again
            return
        if changes.new_memory is not None:
            begun = LoadedConversation(composed=changes.composed or Composed())
            held = Held(begun, session_bytes, 0, rest_bytes)
        elif held is None or held.loaded.state != state_before:
            self.forget(conversation)
            return
        rest_bytes += held.rest_bytes
        if not state or rest_bytes > GROWTH_BEFORE_READ * held.rest_read + GROWTH_BYTES:
            self.forget(conversation)
            return
        session_bytes = session_bytes or held.session_bytes
        after = _after(held.loaded, changes, memory_revision, state, session_bytes + rest_bytes)
        self._put(conversation, Held(after, session_bytes, rest_bytes, held.rest_read))

    def forget(self, conversation: ConversationRef) -> None:
        held = self._held.pop(conversation, None)
        if held is not None:
            self._bytes -= held.loaded.stored_bytes

    def _put(self, conversation: ConversationRef, held: Held) -> None:
        self.forget(conversation)
        weight = held.loaded.stored_bytes
        if weight > self._most_bytes:
            return
        self._held[conversation] = held
        self._bytes += weight
        while self._bytes > self._most_bytes:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= oldest.loaded.stored_bytes


def _after(
    before: LoadedConversation, changes: Changes, memory_revision: int, state: bytes, stored_bytes: int
) -> LoadedConversation:
    """What commit.lua makes of `before`."""
    new = changes.new_memory
    mined = before.mined if new is None else new.variables
    tools = before.tools if new is None else new.variables
    previous = () if changes.rewrite_previous_contacts else before.previous_contacts
    turn = changes.turn
    added, set_mined, set_tools = changes.added_variables, changes.set_mined, changes.set_tools
    after = LoadedConversation(
        session=changes.session or before.session,
        memory_revision=memory_revision,
        memory_updated_at=changes.now if set_tools or set_mined else before.memory_updated_at,
        mined=_hash(mined, added, set_mined) if added or set_mined else mined,
        tools=_hash(tools, added, set_tools) if added or set_tools else tools,
        tenant=before.tenant if new is None else new.tenant,
        previous_contacts=previous + changes.previous_contacts,
        last_user_turn=turn.name if turn is not None and is_user_turn(turn) else before.last_user_turn,
        mining=(before.mining if new is None else NOTHING_MINED)
        if changes.mining is None
        else changes.mining,
        mining_revision=before.mining_revision + (changes.mining is not None),
        state=state,
        stored_bytes=stored_bytes,
        composed=before.composed,
    )
    if new is None and not added:
        after.merge_after(before, (*set_tools, *set_mined))
    return after


def _hash(
    stored: Mapping[str, MemoryEntry],
    added: Mapping[str, MemoryEntry],
    put: Mapping[str, MemoryEntry],
) -> Mapping[str, MemoryEntry]:
    fresh = {id: entry for id, entry in added.items() if id not in stored} if added else added
    return {**stored, **fresh, **put}
