"""Routes for those who watch over conversations: which there are, what is known of one, its journal."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Annotated

from pydantic import Field, TypeAdapter
from starlette.responses import Response

from api.auth import header, require
from api.bodies import Body, Id
from api.endpoints import (
    FLAG,
    JSON,
    MOMENT,
    Call,
    Endpoint,
    Parameter,
    Reply,
    answer_response,
    for_watchers,
    json_response,
    one_of,
    whole,
    whole_number,
)
from api.streams import EVENT_STREAM, EventStream, prefers_events
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.dialogue import ConversationList
from flow_engine.runtime.journal import ENTRIES_AT_MOST
from flow_engine.use_cases.following import JournalStreams
from flow_engine.use_cases.forking import ForkOrder, Forks
from flow_engine.use_cases.history import ConversationReply, History, JournalPage, MomentReply
from flow_engine.use_cases.listing import (
    ConversationFilter,
    ConversationPage,
    decode_cursor,
    list_conversations,
)
from flow_engine.use_cases.recording_format import Recording
from flow_engine.use_cases.recordings import Recordings
from flow_engine.vocabulary import CHANNELS, PHASES

ROWS, ROWS_AT_MOST = 50, 200
ENTRIES = 100
LARGEST_SEQ = 10**12 - 1
_ONE = "/conversations/{conversation_id:id}"


class Fork(Body):
    """`atRevision` is the `seq` of the entry to begin after. `mapping` goes from tasks of the original's
    version to tasks of `versionId`, by id or by name."""

    at_revision: Annotated[int, Field(ge=1, le=LARGEST_SEQ)]
    conversation_id: Id
    version_id: Id | None = None
    mapping: Mapping[str, str] = Field(default_factory=dict[str, str])


_FORK = TypeAdapter(Fork)
_SEQ, _ENTRIES = whole(1, LARGEST_SEQ), whole(1, ENTRIES_AT_MOST - 1)
_AFTER = Parameter("after", "Only entries after this 'seq'", whole(0, LARGEST_SEQ))


class HistoryRoutes:
    def __init__(
        self,
        listing: ConversationList,
        history: History,
        recordings: Recordings,
        forks: Forks,
        streams: JournalStreams,
    ) -> None:
        self._listing = listing
        self._history = history
        self._streams = streams
        self._recordings = recordings
        self._forks = forks

    async def conversations(self, call: Call) -> Response:
        wanted = ConversationFilter(
            flow_id=call.query("flowId"),
            version_id=call.query("versionId"),
            tag=call.query("tag"),
            task=call.query("task"),
            status=call.choice("status", PHASES),
            channel=call.choice("channel", CHANNELS),
            since=call.moment("from"),
            until=call.moment("to"),
            q=call.query("q"),
        )
        limit = call.limit(ROWS, at_most=ROWS_AT_MOST)
        cursor = call.query("cursor")
        if prefers_events(header(call.scope["headers"], b"accept", "")):
            if cursor is not None:
                message = "a list that is followed begins with the newest: leave 'cursor' out"
                raise CorrectTheInput.breach("cursor_invalid", message)
            followed = self._streams.follow_list(call.tenant_id, wanted, limit=limit)
            return EventStream(followed, self._room())
        page = await list_conversations(self._listing, call.tenant_id, wanted, limit=limit, cursor=cursor)
        return json_response(page)

    async def conversation(self, call: Call) -> Response:
        conversation = call.conversation(call.path("conversation_id"))
        return json_response(await self._history.conversation(conversation, reveal=reveals(call)))

    async def journal(self, call: Call) -> Response:
        conversation = call.conversation(call.path("conversation_id"))
        after = call.whole_number("after", at_most=LARGEST_SEQ)
        limit = call.limit(ENTRIES, at_most=ENTRIES_AT_MOST - 1)
        page = await self._history.journal(conversation, after, limit=limit, reveal=reveals(call))
        return json_response(page)

    async def at(self, call: Call) -> Response:
        conversation = call.conversation(call.path("conversation_id"))
        seq = whole_number("seq", call.path("seq"), at_least=1, at_most=LARGEST_SEQ)
        return json_response(await self._history.at(conversation, seq, reveal=reveals(call)))

    async def stream(self, call: Call) -> Response:
        conversation = call.conversation(call.path("conversation_id"))
        after = call.whole_number("after", at_most=LARGEST_SEQ)
        again = header(call.scope["headers"], b"last-event-id")
        if again is not None:
            after = whole_number("last_event_id", again, at_least=0, at_most=LARGEST_SEQ)
        with self._room() as room:  # first of all: who finds none costs nothing else
            known = await self._streams.goes_on_after(conversation, after)
            if again is not None:
                if known is None:
                    return Reply(b"", 204, media_type=None)  # what an EventSource needs, to not come again
                after = known
            followed = self._streams.follow(conversation, after, reveal=reveals(call))
            return EventStream(followed, room.pop_all())

    def _room(self) -> ExitStack:
        """A place among the streams, until it is closed."""
        room = ExitStack()
        room.enter_context(self._streams.counted())
        return room

    async def recording(self, call: Call) -> Response:
        conversation = call.conversation(call.path("conversation_id"))
        recording = await self._recordings.recording(conversation)
        return Reply(recording.model_dump_json(by_alias=True).encode())

    async def fork(self, call: Call) -> Response:
        body = call.parse(_FORK)
        target = call.conversation(body.conversation_id)
        original = call.conversation(call.path("conversation_id"))
        order = ForkOrder(body.at_revision, body.version_id, body.mapping)
        return answer_response(await self._forks.fork(original, order, target, call.idempotency))

    def endpoints(self) -> list[Endpoint]:
        return [
            for_watchers(
                "GET /conversations",
                self.conversations,
                "Conversations by their start, the newest first; as server-sent events too",
                ConversationPage,
                parameters=_LIST_PARAMETERS,
                media_types=(JSON, EVENT_STREAM),
            ),
            *self._of_steps(),
            *self._of_the_whole(),
            # After all the others: an id may hold slashes.
            for_watchers(
                f"GET {_ONE}",
                self.conversation,
                "All that is known of a conversation",
                ConversationReply,
                parameters=(REVEAL,),
                problems=(404,),
            ),
        ]

    def _of_steps(self) -> list[Endpoint]:
        return [
            for_watchers(
                f"GET {_ONE}/at/{{seq}}",
                self.at,
                "A conversation as one of its commits left it, with the prompt and the reply of then",
                MomentReply,
                parameters=(
                    Parameter("seq", "That of its entry", _SEQ, place="path", required=True),
                    REVEAL,
                ),
                problems=(404,),
            ),
            for_watchers(
                f"GET {_ONE}/journal",
                self.journal,
                "Every commit of a conversation, from the first on",
                JournalPage,
                parameters=(
                    _AFTER,
                    Parameter("limit", f"Entries of a page, {ENTRIES} if not given", _ENTRIES),
                    REVEAL,
                ),
                problems=(404,),
            ),
        ]

    def _of_the_whole(self) -> list[Endpoint]:
        return [
            for_watchers(
                f"GET {_ONE}/stream",
                self.stream,
                "A conversation's journal, as server-sent events while it grows",
                str,
                parameters=(
                    _AFTER,
                    Parameter(
                        "Last-Event-ID",
                        "In place of 'after'; 204 answers where the conversation is closed and all is told",
                        _AFTER.schema,
                        place="header",
                    ),
                    REVEAL,
                ),
                media_types=(EVENT_STREAM,),
                problems=(404,),
            ),
            for_watchers(
                f"GET {_ONE}/recording",
                self.recording,
                "A conversation by itself, to be replayed elsewhere",
                Recording,
                problems=(404,),
            ),
            for_watchers(
                f"POST {_ONE}/fork",
                self.fork,
                "Begin a new conversation as this one was after one of its commits",
                ConversationReply,
                body=_FORK,
                status=201,
                problems=(404, 409),
                keyed=True,
                body_example={"atRevision": 3, "conversationId": "conv-1-again"},
            ),
        ]


def reveals(call: Call) -> bool:
    """Whether sensitive values are asked for. Raises CorrectTheInput `scope_missing`."""
    reveals = call.flag("reveal")
    if reveals:
        require(call.principal, ("privacy",))
    return reveals


REVEAL = Parameter(
    "reveal", "Show sensitive values instead of their masks; needs the scope 'privacy' as well", FLAG
)
_LIST_PARAMETERS = (
    Parameter("flowId", "Only conversations of this flow"),
    Parameter("versionId", "Only those on this version"),
    Parameter("tag", "Only those whose version was chosen by this tag"),
    Parameter("task", "Only those in this task, by its name or id"),
    Parameter("status", "Only those in this state", one_of(PHASES)),
    Parameter("channel", "Only those on this channel", one_of(CHANNELS)),
    Parameter("from", "Only those that started then or later", MOMENT),
    Parameter("to", "Only those that started then or earlier", MOMENT),
    Parameter("q", "How the id of the conversation, or of one of its contacts, begins"),
    Parameter("limit", f"Conversations of a page, {ROWS} if not given", whole(1, ROWS_AT_MOST)),
    Parameter("cursor", "The 'nextCursor' of the page before", check=decode_cursor),
)
