"""Routes on which a version is tried that nobody has published: talked to, tested, rendered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from starlette.responses import Response
from typing_extensions import TypedDict

from api.bodies import Body, Facts, HumanText, Id, Name, Reason
from api.endpoints import Call, Endpoint, answer_response, for_designers, for_watchers, json_response
from api.history import LARGEST_SEQ, REVEAL, reveals
from flow_engine.documents.findings import problems_of, reading_beside
from flow_engine.documents.scalars import LONGEST_S
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.exact_numbers import read_exactly
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.json_values import as_object
from flow_engine.testing import format
from flow_engine.testing.report import ScenarioVerdict
from flow_engine.testing.tries import Said, Tries, TryOrder
from flow_engine.testing.try_page import TryReply
from flow_engine.use_cases.designing import Designing
from flow_engine.use_cases.previewing import PreviewOrder, PreviewReply, Previews
from flow_engine.use_cases.submissions import Submission
from flow_engine.vocabulary import Channel, HumanOutcome

YAML = "application/yaml"
LONGEST_TEXT, LONGEST_TESTS = 4_000, 524_288
_TRIES = "/flows/{flow_id}/try"
_ONE = _TRIES + "/{try_id}"

_Turn = TypeVar("_Turn", bound="TurnFields")

PlayTests = Callable[[Submission, str, bytes], Awaitable[ScenarioVerdict]]
"""Plays YAML of flow tests on a checked version of the flow with that id; nothing is stored. Raises
CorrectTheInput `tests_invalid` with pointers into the YAML, `tests_too_long`."""


class TriedContact(Body):
    """Who calls, as an agent's program would send it; what is left out is as in a flow test."""

    contact_id: Id | None = None
    channel: Channel | None = None
    language: Name | None = None
    contact: Facts | None = None

    def body(self) -> format.NewContactBody:
        return format.NewContactBody(
            id=self.contact_id, channel=self.channel, language=self.language, data=self.contact
        )


def version_faults(fields: Mapping[str, object]) -> Iterator[str]:
    if fields.get("document") is not None and fields.get("versionId") is not None:
        yield "give either 'document' or 'versionId'"


class BeginTry(TriedContact):
    """Either a document, unsaved, or the id or tag of a version, a draft too; with neither the version that
    was saved last."""

    document: dict[str, object] | None = None
    version_id: Id | None = None
    tenant: Facts | None = None

    _one_version = model_validator(mode="wrap")(reading_beside(version_faults))

    def order(self) -> TryOrder:
        return TryOrder(self.document, self.version_id, self.body(), self.tenant)


class TriedEnd(Body):
    """`closes` is what the customHandler is to answer; it is not called."""

    reason: Reason | None = None
    closes: bool | None = None


def _end_of(given: object) -> object:
    """`true` is an end without more."""
    return ({} if given else None) if isinstance(given, bool) else given


class TriedHumanTask(Body):
    """`text` is the AI's with `waiting`, the person's with `edited`, else the one that is decided on."""

    outcome: HumanOutcome
    reason: Reason | None = None
    text: HumanText = None


def asked_in(fields: Mapping[str, object]) -> Sequence[str]:
    """What a turn asks for, by its names in JSON; `"hangup": false` is nothing."""
    return [name for name in TURNS if fields.get(name) is not None and fields[name] is not False]


class TurnFields(Body):
    """Exactly one of these, `language` only beside `text`. `wait` lets so many seconds pass."""

    text: Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)] | None = Field(
        default=None, description="What the user says; or /task NAME, /set VARIABLE VALUE, /hangup."
    )
    language: Name | None = Field(default=None, description="The BCP 47 tag of the text's language.")
    change_task: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="The task that the agent asks for, by name or id."
    )
    memory: Facts | None = Field(
        default=None, description="What a tool writes: values by the ids or names of variables."
    )
    hangup: Annotated[
        TriedEnd | None, BeforeValidator(_end_of, json_schema_input_type=TriedEnd | bool | None)
    ] = Field(
        default=None, description="The contact ends; `closes` is what the closure handler is to answer."
    )
    new_contact: TriedContact | None = Field(default=None, description="The user comes back.")
    human_task: TriedHumanTask | None = Field(
        default=None,
        description="What became of a transfer, of a person who follows, or of a text that waits for one.",
    )
    wait: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = Field(
        default=None, description="So many seconds pass."
    )

    @property
    def asked(self) -> Mapping[str, object]:
        """What is asked for, by its name in JSON. More or less than one is a mistake."""
        given = {name: getattr(self, attribute) for name, attribute in TURNS.items()}
        return {name: value for name, value in given.items() if value is not None}

    def step(self) -> Said | format.Action:
        """Raises CorrectTheInput `body_invalid` for values that no step takes."""
        [(name, value)] = self.asked.items()
        try:
            match value:
                case str() if name == "text":
                    return Said(value, self.language)
                case str():
                    return format.ChangeTask(change_task=value)
                case TriedContact():
                    return format.OpenContact(contact=value.body())
                case TriedHumanTask():
                    body = format.HumanTaskBody(outcome=value.outcome, reason=value.reason, text=value.text)
                    return format.HumanTask(human_task=body)
                case TriedEnd():
                    end = format.EndContactBody(reason=value.reason, closes=value.closes)
                    return format.EndContact(end_contact=end)
                case float():
                    return format.Wait(wait=value)
                case _:
                    return format.Remember.model_validate({"memory": value})
        except ValidationError as error:
            findings = [Finding(pointer(*p.place), p.kind, p.message) for p in problems_of(error)]
            raise CorrectTheInput("body_invalid", "this cannot be done in a turn", findings) from None


TURNS = {to_camel(name): name for name in TurnFields.model_fields if name != "language"}
"""What a turn can ask for, by its name in JSON."""


def _turn_faults(fields: Mapping[str, object]) -> Iterator[str]:
    if len(asked_in(fields)) != 1:
        yield f"give exactly one of: {', '.join(TURNS)}"
    if fields.get("language") is not None and fields.get("text") is None:
        yield "'language' is that of a 'text'"


class Turn(TurnFields):
    _one_thing = model_validator(mode="wrap")(reading_beside(_turn_faults))


class PlayTestsBody(Body):
    tests: Annotated[str, Field(min_length=1, max_length=LONGEST_TESTS)]


class RenderBody(Body):
    """Either a document, unsaved, or the id or tag of a version, a draft too; with neither the version that
    was saved last. `task` is an id or a name. `atRevision` is the `seq` of an entry of the journal."""

    conversation_id: Id
    task: Annotated[str, Field(min_length=1, max_length=512)]
    document: dict[str, object] | None = None
    version_id: Id | None = None
    at_revision: Annotated[int, Field(ge=1, le=LARGEST_SEQ)] | None = None

    _one_version = model_validator(mode="wrap")(reading_beside(version_faults))


class TryEnded(TypedDict):
    tryId: str


_BEGIN, _TURN, _TESTS = TypeAdapter(BeginTry), TypeAdapter(Turn), TypeAdapter(PlayTestsBody)
_RENDER = TypeAdapter(RenderBody)


class TryRoutes:
    """`play` runs flow tests."""

    def __init__(self, tries: Tries, designing: Designing, play: PlayTests, previews: Previews) -> None:
        self._tries = tries
        self._previews = previews
        self._designing = designing
        self._play = play

    async def begin(self, call: Call) -> Response:
        order, author = call.parse(_BEGIN).order(), call.principal.name
        begun = await self._tries.start(
            call.tenant_id, call.path("flow_id"), order, author=author, idempotency=call.idempotency
        )
        return answer_response(begun)

    async def turn(self, call: Call) -> Response:
        turn = with_exact_values(call.parse(_TURN), read_exactly(call.body))
        return answer_response(await gone_on(self._tries, _named(call), turn, call.idempotency))

    async def look(self, call: Call) -> Response:
        return json_response(await self._tries.look(*_named(call)))

    async def test(self, call: Call) -> Response:
        return Response((await self._tries.test(*_named(call))).encode(), media_type=YAML)

    async def end(self, call: Call) -> Response:
        await self._tries.end(*_named(call))
        return json_response(TryEnded(tryId=call.path("try_id")))

    async def play_tests(self, call: Call) -> Response:
        body, flow_id = call.parse(_TESTS), call.path("flow_id")
        document = await self._designing.document(call.tenant_id, flow_id, call.path("version_id"))
        checked = await self._designing.check_as_version(flow_id, document, author=call.principal.name)
        return json_response(await self._play(checked, flow_id, body.tests.encode()))

    async def render(self, call: Call) -> Response:
        reveal, body = reveals(call), call.parse(_RENDER)
        order = PreviewOrder(body.task, body.document, body.version_id, body.at_revision)
        conversation = call.conversation(body.conversation_id)
        flow_id, author = call.path("flow_id"), call.principal.name
        return json_response(
            await self._previews.render(conversation, flow_id, order, author=author, reveal=reveal)
        )

    def endpoints(self) -> list[Endpoint]:
        return [
            for_watchers(
                "POST /flows/{flow_id}/render",
                self.render,
                "A task's texts, of a document or a version, rendered for a stored conversation",
                PreviewReply,
                parameters=(REVEAL,),
                body=_RENDER,
                problems=(404,),
                body_example={"conversationId": "conv-1", "task": "welcome", "versionId": "claim-v1"},
            ),
            for_designers(
                f"POST {_TRIES}",
                self.begin,
                "Talk to a document or a draft without publishing it: open a contact in memory",
                TryReply,
                body=_BEGIN,
                status=201,
                problems=(404, 409),
                keyed=True,
                body_example={"versionId": "claim-v1", "channel": "phone"},
            ),
            *self._of_one(),
            for_designers(
                "POST /flows/{flow_id}/versions/{version_id}/tests",
                self.play_tests,
                "Play flow tests on a version, a draft too, and tell what they reach",
                ScenarioVerdict,
                body=_TESTS,
                problems=(404,),
                body_example={
                    "tests": "scenarios:\n- name: it begins\n  steps:\n  - expect: {conversation: active}\n"
                },
            ),
        ]

    def _of_one(self) -> list[Endpoint]:
        return [
            for_designers(
                f"POST {_ONE}",
                self.turn,
                "One turn of a try: say something, change the task, write values, hang up, come back",
                TryReply,
                body=_TURN,
                problems=(404, 409),
                keyed=True,
                body_example={"text": "I would like to book a visit"},
            ),
            for_designers(f"GET {_ONE}", self.look, "A try as it stands", TryReply, problems=(404,)),
            for_designers(
                f"GET {_ONE}/test",
                self.test,
                "A flow test of what was done in a try",
                str,
                media_types=(YAML,),
                problems=(404,),
            ),
            for_designers(f"DELETE {_ONE}", self.end, "End a try", TryEnded, problems=(404,)),
        ]


def with_exact_values(turn: _Turn, sent: object | None) -> _Turn:
    """A turn whose `memory` is that of the body as `read_exactly` gives it."""
    if turn.memory is None or sent is None:
        return turn
    return turn.model_copy(update={"memory": as_object(sent)["memory"]})


async def gone_on(
    tries: Tries,
    named: tuple[str, str, str],
    turn: TurnFields,
    idempotency: IdempotencyKey | None = None,
) -> FinalReply:
    """A turn of the try that is named by tenant, flow and id; the reply is a `TryReply`. Raises as
    `Tries.turn`, with pointers into `turn`."""
    try:
        return await tries.turn(*named, turn.step(), idempotency)
    except CorrectTheInput as refused:
        findings = [Finding(_place(f.pointer, turn), f.code, f.message) for f in refused.findings]
        raise CorrectTheInput(refused.code, refused.detail, findings) from None


def _place(pointed: str, turn: TurnFields) -> str:
    """Where in a turn that is which the request of a conversation has at that pointer."""
    if turn.text is not None:
        return "/text"
    if turn.new_contact is not None:
        return f"/newContact{pointed}"
    number = pointed.split("/")[1] if turn.memory is not None else ""
    return pointer("memory", [*turn.memory][int(number)]) if turn.memory and number.isdecimal() else pointed


def _named(call: Call) -> tuple[str, str, str]:
    return call.tenant_id, call.path("flow_id"), call.path("try_id")
