"""The conversations that this process read or wrote last, decoded: what is unchanged is not read again (F15).

Nothing here is believed: a read asks Redis whether the state is still the stored one, a commit is taken on
that state alone. So replicas share nothing, and a process without memory of anything is only slower.
"""

from collections import OrderedDict

import msgspec

from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.storage import Changes, LoadedConversation

HELD_BYTES = 64 * 1024 * 1024
"""Of stored bytes, over all conversations; decoded they take about 2.1 times as much (`benchmarks.held`)."""
GROWTH_BEFORE_READ = 2
GROWTH_BYTES = 16 * 1024
"""A conversation that has grown so many times, and these bytes, by what was written is weighed anew by
reading it: what a write replaces is not weighed."""

_NOT_STORED = LoadedConversation()


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
            held = Held(_NOT_STORED, session_bytes, 0, rest_bytes)
        elif held is None or held.loaded.state != state_before:
            self.forget(conversation)
            return
        rest_bytes += held.rest_bytes
        if not state or rest_bytes > GROWTH_BEFORE_READ * held.rest_read + GROWTH_BYTES:
            self.forget(conversation)
            return
        session_bytes = session_bytes or held.session_bytes
        after = held.loaded.after(
            changes, memory_revision=memory_revision, state=state, stored_bytes=session_bytes + rest_bytes
        )
        if after.turns:
            after = msgspec.structs.replace(after, turns=())
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
