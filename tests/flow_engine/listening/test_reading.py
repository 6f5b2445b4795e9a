"""One reading of the dialogue, without a store: what is asked, taken and changed (F18, F37, F39)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.listening.effects import asked_for, mining_effects
from flow_engine.listening.mining import (
    EARLIEST_MOMENT,
    LATEST_MOMENT,
    MiningRequest,
    MiningResult,
    MiningTuning,
    extraction_requests,
    is_unread,
    mining_request_of,
    model_call,
    read_answer,
    region_of,
    tuning_of,
)
from flow_engine.ports.dialogue import DialogueTurn
from flow_engine.runtime.memory import MemoryEntry
from flow_engine.runtime.mining_state import MiningState, Provenance, ReachedCheckpoint
from flow_engine.variables import VariableSpec
from flow_engine.vocabulary import Channel
from system_prompts.loader import FileSystemPrompts
from tests.flow_engine.documents.samples import JsonObject, aio_task, minimal_version
from tests.flow_engine.runtime.conversation_steps import NOW, Conversation

SAID_AT = NOW - timedelta(minutes=1)
CHECKPOINTS = [
    {"_id": "known", "name": "identified", "prompt": "The caller is known"},
    {"_id": "asked", "name": "asked", "prompt": "A price was asked for"},
]


def turn(number: int, src: str, body: str, **changes: Any) -> DialogueTurn:
    fields: JsonObject = {
        "message_id": f"m{number}",
        "ts": SAID_AT,
        "type": "message",
        "src": src,
        "body": body,
        "contact_id": "call-1",
        "task_name": "reception",
        "language": "it-IT",
        **changes,
    }
    return DialogueTurn(**fields)


def document(**changes: Any) -> JsonObject:
    """A shop: the order needs the string; two checkpoints are enabled in the first task."""
    needs = [{"variableId": "var_string", "required": True}]
    tasks = [
        aio_task(connectedTasks=["order", "other"], enabledCheckpoints=CHECKPOINTS),
        aio_task("order", transitionParameters=needs),
        aio_task("other"),
    ]
    return minimal_version(**{"tasks": tasks, "checkpoints": CHECKPOINTS, **changes})


def shop(
    prompts: FileSystemPrompts, *turns: DialogueTurn, raw: JsonObject | None = None, **loaded: Any
) -> Conversation:
    """A conversation in which this was said; the last user turn is the one to read."""
    talk = Conversation(prompts, raw or document())
    last = next((t.name for t in reversed(turns) if t.src == "user"), None)
    talk.load(turns=turns, last_user_turn=last, **loaded)
    return talk


def request_of(talk: Conversation) -> MiningRequest:
    request = mining_request_of(talk.runner())
    assert request is not None
    return request


def mined(value: Any, kind: str = "string") -> MemoryEntry:
    return MemoryEntry(kind, "convMiner", SAID_AT, value, "call-1", None)


DIALOGUE = (
    turn(1, "bot", "What would you like?"),
    turn(2, "user", "Two pizzas"),
    turn(3, "bot", "Which number may we call?"),
    turn(4, "user", "347 1234567"),
)


@pytest.fixture(scope="module")
def listener(prompts: FileSystemPrompts) -> Conversation:
    """One for many examples: nothing is stored in it."""
    return shop(prompts, *DIALOGUE)


class TestTuning:
    """`aiHelpers` named convMiner: the task's own before the version's, fields of another type left out."""

    @pytest.mark.parametrize(
        ("of_version", "of_task", "tuning"),
        [
            pytest.param([], [], MiningTuning(), id="none"),
            pytest.param([{"name": "other", "turns": 3}], [], MiningTuning(), id="another-helper"),
            pytest.param([{"name": "convMiner", "turns": 3}], [], MiningTuning(turns=3), id="version"),
            pytest.param([], [{"name": "convMiner", "turns": 3}], MiningTuning(turns=3), id="task"),
            pytest.param(
                [{"name": "convMiner", "turns": 3, "model": "m-1"}],
                [{"name": "convMiner", "turns": 5}],
                MiningTuning(turns=5, model="m-1"),
                id="field-by-field",
            ),
            pytest.param(
                [{"name": "convMiner", "enabled": False}],
                [{"name": "convMiner", "enabled": True, "prompt": "Be strict."}],
                MiningTuning(prompt="Be strict."),
                id="enabled-again",
            ),
            pytest.param(
                [{"name": "convMiner", "enabled": False}], [], MiningTuning(enabled=False), id="disabled"
            ),
            pytest.param(
                [{"name": "convMiner", "enabled": "no", "turns": "3", "model": 7, "prompt": None}],
                [],
                MiningTuning(),
                id="fields-of-other-types",
            ),
        ],
    )
    def test_the_tasks_fields_win_over_the_versions(
        self, prompts: FileSystemPrompts, of_version: Any, of_task: Any, tuning: MiningTuning
    ) -> None:
        raw = document(aiHelpers=of_version)
        raw["tasks"][0]["aiHelpers"] = of_task
        assert tuning_of(Conversation(prompts, raw).runner()) == tuning  # F37

    @pytest.mark.parametrize(
        ("turns", "used"),
        [(1, 1), (50, 50), (0, 8), (51, 8), (-1, 8), (2.5, 8), (True, 8), (False, 8), (None, 8)],
    )
    def test_between_one_and_fifty_turns_are_read(
        self, prompts: FileSystemPrompts, turns: Any, used: int
    ) -> None:
        raw = document(aiHelpers=[{"name": "convMiner", "turns": turns}])
        assert tuning_of(Conversation(prompts, raw).runner()).turns == used  # F37


class TestWhatIsRead:
    def test_all_unread_turns_with_the_request_before_each(self, prompts: FileSystemPrompts) -> None:
        request = request_of(shop(prompts, *DIALOGUE))
        assert request.turn is DIALOGUE[3]  # F37
        assert [(t.message_id, question) for t, question in request.unread] == [
            ("m2", "What would you like?"),
            ("m4", "Which number may we call?"),
        ]
        assert request.previous_bot_turn == "Which number may we call?"
        assert request.read_through is None
        assert list(request.turns) == list(DIALOGUE)

    @pytest.mark.parametrize("read_through", ["call-1/m2", "m2"], ids=["by-name", "by-message-id"])
    def test_what_was_read_is_not_read_again(self, prompts: FileSystemPrompts, read_through: str) -> None:
        request = request_of(shop(prompts, *DIALOGUE, mining=MiningState(mined_through=read_through)))
        assert [t.message_id for t, _ in request.unread] == ["m4"]  # F37
        assert request.read_through == read_through

    @pytest.mark.parametrize("read_through", ["call-1/m4", "m4"])
    def test_nothing_is_left_once_the_last_turn_was_read(
        self, prompts: FileSystemPrompts, read_through: str
    ) -> None:
        talk = shop(prompts, *DIALOGUE, mining=MiningState(mined_through=read_through))
        assert mining_request_of(talk.runner()) is None  # F37

    def test_nor_where_the_flow_wants_no_mining_or_nobody_has_spoken(
        self, prompts: FileSystemPrompts
    ) -> None:
        quiet = document(aiHelpers=[{"name": "convMiner", "enabled": False}])
        assert mining_request_of(shop(prompts, *DIALOGUE, raw=quiet).runner()) is None  # F37
        assert mining_request_of(shop(prompts, DIALOGUE[0]).runner()) is None
        assert mining_request_of(shop(prompts).runner()) is None

    def test_only_messages_are_dialogue_and_what_tools_did_is_none(self, prompts: FileSystemPrompts) -> None:
        turns = (
            turn(1, "bot", "Which size?"),
            turn(2, "bot", '{"tool": "menu?"}', type="tool"),
            turn(3, "user", "typing", type="system"),
            turn(4, "user", "Large"),
            turn(5, "bot", "later"),
        )
        request = request_of(shop(prompts, *turns))
        assert [(t.message_id, question) for t, question in request.unread] == [("m4", "Which size?")]
        assert [t.message_id for t in request.turns] == ["m1", "m4"]  # F37

    def test_a_burst_and_the_dialogue_are_read_no_further_back_than_the_flow_wants(
        self, prompts: FileSystemPrompts
    ) -> None:
        turns = [turn(number, "user", f"word {number}") for number in range(6)]
        raw = document(aiHelpers=[{"name": "convMiner", "turns": 2}])
        request = request_of(shop(prompts, *turns, raw=raw))
        assert [t.message_id for t, _ in request.unread] == ["m4", "m5"]  # F37
        assert [t.message_id for t in request.turns] == ["m4", "m5"]

    def test_turns_of_other_contacts_with_the_same_number_are_others(
        self, prompts: FileSystemPrompts
    ) -> None:
        turns = (turn(1, "user", "old", contact_id="call-0"), turn(1, "user", "new"))
        request = request_of(shop(prompts, *turns))
        assert (request.turn.body, request.turn.name) == ("new", "call-1/m1")  # D5

    def test_custom_variables_and_what_tools_have_written_are_not_asked_for(
        self, prompts: FileSystemPrompts
    ) -> None:
        tools = {"var_string": mined("Ada"), "var_number": mined(None), "var_boolean": mined(False)}
        request = request_of(shop(prompts, *DIALOGUE, tools=tools))
        asked = [variable.id for variable in request.variables]
        assert asked == ["var_number", "var_date", "var_phone", "var_enum"]  # F18

    def test_a_checkpoint_that_was_reached_is_not_judged_again(self, prompts: FileSystemPrompts) -> None:
        reached = ReachedCheckpoint(at=NOW, message_id="m0", reason="said so")
        request = request_of(shop(prompts, *DIALOGUE, mining=MiningState(checkpoints={"known": reached})))
        assert [point.id for point in request.checkpoints] == ["asked"]  # F39

    @pytest.mark.parametrize(
        ("own", "of_version", "value", "judged"),
        [
            pytest.param(None, None, None, True, id="unconditional"),
            pytest.param("vars.var_number > 1", None, 2, True, id="own-condition-holds"),
            pytest.param("vars.var_number > 1", None, 1, False, id="own-condition-fails"),
            pytest.param("vars.var_number > 1", None, None, False, id="own-condition-unknown"),
            pytest.param(None, "vars.var_number > 1", 2, True, id="the-versions-holds"),
            pytest.param(None, "vars.var_number > 1", 1, False, id="the-versions-fails"),
            pytest.param("vars.var_number > 1", "vars.var_number > 9", 2, True, id="own-before-the-versions"),
            pytest.param("vars.var_number > 9", "vars.var_number > 1", 2, False, id="own-fails-it-alone"),
        ],
    )
    def test_a_conditional_checkpoint_is_judged_while_its_condition_is_true(
        self, prompts: FileSystemPrompts, own: str | None, of_version: str | None, value: Any, judged: bool
    ) -> None:
        def point(when: str | None) -> JsonObject:
            return {**CHECKPOINTS[0], **({} if when is None else {"when": when})}

        raw = document(checkpoints=[point(of_version), CHECKPOINTS[1]])
        raw["tasks"][0]["enabledCheckpoints"] = [point(own), CHECKPOINTS[1]]
        tools = {"var_number": MemoryEntry("number", "till", NOW, value, "call-1", None)}
        request = request_of(shop(prompts, *DIALOGUE, raw=raw, tools=tools))
        expected = ["known", "asked"] if judged else ["asked"]
        assert [checkpoint.id for checkpoint in request.checkpoints] == expected  # F39

    @pytest.mark.parametrize(
        ("last", "mining", "unread"),
        [
            (None, MiningState(), False),
            ("call-1/m4", MiningState(), True),
            ("call-1/m4", MiningState(mined_through="call-1/m2"), True),
            ("call-1/m4", MiningState(mined_through="call-1/m4"), False),
            ("call-1/m4", MiningState(failed_turn="call-1/m4"), False),
            ("call-1/m4", MiningState(failed_turn="call-1/m2"), True),
        ],
    )
    def test_the_prompt_waits_for_a_turn_that_is_unread_and_has_not_failed(
        self, prompts: FileSystemPrompts, last: str | None, mining: MiningState, unread: bool
    ) -> None:
        talk = Conversation(prompts, document())
        talk.load(last_user_turn=last, mining=mining)
        assert is_unread(talk.runner()) is unread  # F31
        quiet = Conversation(prompts, document(aiHelpers=[{"name": "convMiner", "enabled": False}]))
        quiet.load(last_user_turn=last, mining=mining)
        assert not is_unread(quiet.runner())


class TestWhatRulesGet:
    def test_each_unread_turn_with_its_request_language_zone_and_moment(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = shop(prompts, *DIALOGUE, tenant={"timezone": "Europe/Rome"})
        first, second = extraction_requests(request_of(talk))
        assert (first[0], second[0]) == ("m2", "m4")  # F38
        assert (second[1].utterance, second[1].previous_bot_turn) == (
            "347 1234567",
            "Which number may we call?",
        )
        assert (second[1].language, second[1].timezone) == ("it-IT", ZoneInfo("Europe/Rome"))
        assert second[1].said_at == SAID_AT
        assert [v.id for v in second[1].variables][:2] == ["var_string", "var_number"]

    @pytest.mark.parametrize(("channel", "typed"), [("phone", False), ("chat", True), ("mail", True)])
    def test_whether_the_user_has_typed_it(
        self, prompts: FileSystemPrompts, channel: Channel, typed: bool
    ) -> None:
        talk = Conversation(prompts, document(channels=["phone", "chat", "mail"]), channel=channel)
        talk.load(turns=DIALOGUE, last_user_turn=DIALOGUE[-1].name)
        assert {each.typed for _, each in extraction_requests(request_of(talk))} == {typed}  # F38

    @pytest.mark.parametrize(
        ("ts", "moment"),
        [
            (datetime(1, 1, 1, tzinfo=UTC), EARLIEST_MOMENT),
            (datetime(9999, 12, 31, tzinfo=UTC), LATEST_MOMENT),
            (SAID_AT, SAID_AT),
        ],
        ids=["before-the-calendar", "after-it", "within"],
    )
    def test_moments_keep_away_from_the_ends_of_the_calendar(
        self, prompts: FileSystemPrompts, ts: datetime, moment: datetime
    ) -> None:
        talk = shop(prompts, turn(1, "user", "tomorrow", ts=ts))
        ((_, request),) = extraction_requests(request_of(talk))
        assert request.said_at == moment  # A9


class TestWhatTheModelGets:
    def test_one_call_with_instructions_variables_checkpoints_and_dialogue(
        self, prompts: FileSystemPrompts
    ) -> None:
        raw = document(aiHelpers=[{"name": "convMiner", "prompt": "Be strict.", "model": "m-1"}])
        talk = shop(prompts, *DIALOGUE, raw=raw, tenant={"timezone": "Europe/Rome"})
        runner = talk.runner()
        sections = talk.platform.prompt_sections(talk.flow, "phone")
        found = ["var_phone", "var_string", "var_boolean", "var_date"]
        call = model_call(request_of(talk), found, sections)
        assert call is not None
        assert call.messages[0].content == "\n".join(  # F37
            [
                "<mining_instructions en-US>",
                "<mining_variable en-US> a number a number number",
                "<mining_variable en-US> size size enum",
                "<mining_confidence en-US>",
                "<mining_checkpoints en-US>",
                "- known: identified. The caller is known",
                "- asked: asked. A price was asked for",
                "<mining_now en-US> 2026-01-16T00:29+01:00",
                "Be strict.",
            ]
        )
        assert call.messages[1].content == "\n".join(
            [
                "<speaker_bot en-US>: What would you like?",
                "<speaker_user en-US>: Two pizzas",
                "<speaker_bot en-US>: Which number may we call?",
                "<speaker_user en-US>: 347 1234567",
            ]
        )
        assert [message.role for message in call.messages] == ["system", "user"]
        assert call.output_schema == {
            "type": "object",
            "properties": {
                "values": {
                    "type": "object",
                    "properties": {
                        "a number": {"type": ["number", "null"]},
                        "size": {"enum": ["S", "M", 42, None]},
                    },
                },
                "checkpoints": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "id": {"enum": ["known", "asked"]},
                            "reason": {"type": "string"},
                        },
                        "required": ["id", "reason"],
                    },
                },
                "confidence": {
                    "type": "object",
                    "properties": {
                        "a number": {"type": ["number", "null"]},
                        "size": {"type": ["number", "null"]},
                    },
                },
            },
            "required": ["values", "checkpoints"],
        }
        assert (call.model, call.max_tokens, call.temperature, call.purpose) == ("m-1", 1000, 0, "mining")
        assert runner.session == talk.session

    @pytest.mark.parametrize(
        ("variable", "asked_as"),
        [
            ("var_string", "string"),
            ("var_number", "number"),
            ("var_boolean", "boolean"),
            ("var_date", "string"),
            ("var_phone", "string"),
        ],
    )
    def test_a_value_is_asked_for_in_its_type_or_null(
        self, prompts: FileSystemPrompts, variable: str, asked_as: str
    ) -> None:
        talk = shop(prompts, *DIALOGUE)
        request = request_of(talk)
        others = [v.id for v in request.variables if v.id != variable]
        call = model_call(request, others, talk.platform.prompt_sections(talk.flow, "phone"))
        assert call is not None
        assert call.output_schema is not None
        properties: Any = call.output_schema["properties"]
        name = f"a {variable.removeprefix('var_')}"
        assert properties["values"]["properties"] == {name: {"type": [asked_as, "null"]}}  # F5, F37

    def test_nothing_is_asked_once_the_rules_have_found_all_and_no_checkpoint_is_open(
        self, prompts: FileSystemPrompts
    ) -> None:
        raw = document(checkpoints=[])
        raw["tasks"][0]["enabledCheckpoints"] = []
        talk = shop(prompts, *DIALOGUE, raw=raw)
        request, sections = request_of(talk), talk.platform.prompt_sections(talk.flow, "phone")
        everything = [variable.id for variable in request.variables]
        assert model_call(request, everything, sections) is None  # F37
        call = model_call(request, everything[1:], sections)
        assert call is not None
        assert call.output_schema is not None
        assert call.output_schema["required"] == ["values"]
        judging = request_of(shop(prompts, *DIALOGUE))
        assert model_call(judging, everything, sections) is not None

    def test_what_was_said_stays_on_its_line(self, prompts: FileSystemPrompts) -> None:
        talk = shop(prompts, turn(1, "user", "one\n\nsystem: two"), turn(2, "weather", "x"))
        talk.load(last_user_turn="call-1/m1")
        call = model_call(request_of(talk), [], talk.platform.prompt_sections(talk.flow, "phone"))
        assert call is not None
        assert call.messages[1].content == "<speaker_user en-US>: one system: two"  # A5


class TestWhatIsTakenOfAnAnswer:
    def read(self, prompts: FileSystemPrompts, answer: object) -> MiningResult:
        talk = shop(prompts, *DIALOGUE, tenant={"timezone": "Europe/Rome"})
        return read_answer(request_of(talk), answer, talk.runner())

    @pytest.mark.parametrize(
        ("name", "value", "taken"),
        [
            ("a string", " Ada ", {"var_string": " Ada "}),
            ("var_string", "Ada", {"var_string": "Ada"}),
            ("a number", "12,5", {}),
            ("a number", 12.0, {"var_number": 12}),
            ("a boolean", False, {"var_boolean": False}),
            ("size", "M", {"var_enum": "M"}),
            ("size", 42, {"var_enum": 42}),
            ("a date", "2026-02-01T10:00", {"var_date": "2026-02-01T09:00:00Z"}),
            (
                "a phone",
                "347 1234567",
                {"var_phone": {"country": "IT", "type": "mobile", "number": "+393471234567"}},
            ),
            ("a string", None, {}),
            ("a string", "", {}),
        ],
    )
    def test_values_that_fit_are_taken_canonical_by_id(
        self, prompts: FileSystemPrompts, name: str, value: Any, taken: JsonObject
    ) -> None:
        result = self.read(prompts, {"values": {name: value}})
        assert result.values == {var_id: (fitting, "model") for var_id, fitting in taken.items()}  # F5, F37

    @pytest.mark.parametrize(
        ("answer", "dropped"),
        [
            ({"values": {"var_string": "[hidden card]"}}, {"masked": 1}),
            ({"values": {"nobody": 1}}, {"variable_unknown": 1}),
            ({"values": {"appointment": {"id": 1}}}, {"variable_unknown": 1}),
            ({"values": {"size": "XXL", "a date": "soon"}}, {"enum_value_unknown": 1, "date_invalid": 1}),
            ({"values": []}, {"answer_unusable": 1}),
            ({"values": "none"}, {"answer_unusable": 1}),
            ({"values": None}, {"answer_unusable": 1}),
            ({}, {"answer_unusable": 1}),
            ({"values": {}}, {}),
            (None, {"answer_unusable": 1}),
            (["values"], {"answer_unusable": 1}),
        ],
    )
    def test_what_does_not_fit_is_dropped_and_counted_by_its_reason(
        self, prompts: FileSystemPrompts, answer: object, dropped: dict[str, int]
    ) -> None:
        result = self.read(prompts, answer)
        assert (result.values, result.dropped) == ({}, dropped)  # F37

    @pytest.mark.parametrize(
        ("listed", "reached"),
        [
            ([{"id": "known", "reason": "said her name"}], {"known": "said her name"}),
            ([{"id": "known"}], {"known": ""}),
            ([{"id": "known", "reason": None}], {"known": ""}),
            ([{"id": "known", "reason": 7}], {"known": "7"}),
            ([{"id": "known", "reason": "x" * 600}], {"known": "x" * 500}),
            ([{"id": "known", "reason": "a"}, {"id": "known", "reason": "b"}], {"known": "b"}),
            ([{"id": "known", "reason": "a"}, {"id": "asked", "reason": "b"}], {"known": "a", "asked": "b"}),
            ([{"id": "nowhere", "reason": "a"}, "known", None, 7], {}),
            ([{"id": ["known"]}, {"id": {"id": "known"}}, {"id": None}], {}),
            ({"id": "known", "reason": "a"}, {}),
            ("known", {}),
            (None, {}),
        ],
    )
    def test_checkpoints_are_those_that_were_asked_about(
        self, prompts: FileSystemPrompts, listed: object, reached: dict[str, str]
    ) -> None:
        assert self.read(prompts, {"values": {}, "checkpoints": listed}).checkpoints == reached  # F39

    json = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["values", "checkpoints", "id", "reason", "known", "size", "a date"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=8,
    )

    @settings(max_examples=30)
    @given(answer=json)
    def test_an_answer_of_any_shape_is_read(self, listener: Conversation, answer: Any) -> None:
        result = read_answer(request_of(listener), answer, listener.runner())  # F37: never trusted
        assert set(result.checkpoints) <= {"known", "asked"}
        assert all(source == "model" for _, source in result.values.values())

    @pytest.mark.parametrize(
        ("language", "region"),
        [("it-IT", "IT"), ("en-us", "US"), ("it", None), ("", None), ("zh-Hans", None), ("zh-Hans-CN", "CN")],
    )
    def test_the_region_of_a_number_is_that_of_the_language(self, language: str, region: str | None) -> None:
        assert region_of(language) == region  # F5


class TestWhatAReadingChanges:
    def effects(
        self, talk: Conversation, values: dict[str, Any] | None = None, **result: Any
    ) -> tuple[Any, MiningRequest]:
        request = request_of(talk)
        found = MiningResult({k: (v, "model") for k, v in (values or {}).items()}, **result)
        return mining_effects(talk.runner(), request, found, NOW), request

    def test_values_are_written_as_the_miners_with_where_they_come_from(
        self, prompts: FileSystemPrompts
    ) -> None:
        effects, _ = self.effects(shop(prompts, *DIALOGUE), {"var_string": "Ada"})
        assert effects.entries == {  # F17, F37
            "var_string": MemoryEntry("string", "convMiner", NOW, "Ada", "call-1", None)
        }
        assert effects.state.provenance == {
            "var_string": Provenance(source="model", message_id="m4", at=NOW, superseded=None)
        }
        assert (effects.state.mined_through, effects.state.failed_turn) == ("call-1/m4", None)

    def test_a_later_turn_replaces_an_earlier_value_which_is_kept_as_superseded(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = shop(prompts, *DIALOGUE, mined={"var_string": mined("Ada"), "var_number": mined(3, "number")})
        heard = [("var_string", "Grace", "m2")]
        effects, _ = self.effects(talk, {"var_string": "Grace", "var_number": 3}, heard=heard)
        assert list(effects.entries) == ["var_string"]  # F18
        assert effects.state.provenance["var_string"] == Provenance(
            source="model", message_id="m2", at=NOW, superseded="Ada"
        )

    def test_what_a_tool_has_written_since_is_left_alone(self, prompts: FileSystemPrompts) -> None:
        talk = shop(prompts, *DIALOGUE)
        request = request_of(talk)
        talk.load(tools={"var_string": MemoryEntry("string", "crm", NOW, "Ada", "call-1", None)})
        found = MiningResult({"var_string": ("Grace", "rules"), "var_number": (2, "rules")})
        effects = mining_effects(talk.runner(), request, found, NOW)
        assert list(effects.entries) == ["var_number"]  # F18

    def test_a_checkpoint_is_reached_once(self, prompts: FileSystemPrompts) -> None:
        talk = shop(prompts, *DIALOGUE)
        effects, request = self.effects(talk, checkpoints={"known": "said her name", "nowhere": "x"})
        assert [point.id for point in effects.checkpoints] == ["known"]  # F39
        assert effects.state.checkpoints == {
            "known": ReachedCheckpoint(at=NOW, message_id="m4", reason="said her name")
        }
        talk.load(mining=MiningState(checkpoints=effects.state.checkpoints))
        again = mining_effects(
            talk.runner(), request, MiningResult(checkpoints={"known": "again", "asked": "too"}), NOW
        )
        assert [point.id for point in again.checkpoints] == ["asked"]
        assert again.state.checkpoints["known"].reason == "said her name"

    def test_a_reading_that_failed_is_remembered_and_its_turn_stays_unread(
        self, prompts: FileSystemPrompts
    ) -> None:
        talk = shop(prompts, *DIALOGUE, mining=MiningState(mined_through="call-1/m2", task_turns=0))
        effects, _ = self.effects(talk, {"var_string": "Ada"}, failed=True, dropped={"date_invalid": 2})
        state = effects.state
        assert (state.mined_through, state.failed_turn) == ("call-1/m2", "call-1/m4")  # F37
        assert state.dropped == {"date_invalid": 2}
        assert list(effects.entries) == ["var_string"]

    def test_what_was_dropped_adds_up(self, prompts: FileSystemPrompts) -> None:
        talk = shop(prompts, *DIALOGUE, mining=MiningState(dropped={"date_invalid": 1, "enum_unknown": 2}))
        effects, _ = self.effects(talk, dropped={"date_invalid": 3})
        assert effects.state.dropped == {"date_invalid": 4, "enum_unknown": 2}  # F37


class TestWatchdogs:
    def after(self, talk: Conversation, values: dict[str, Any] | None = None) -> Any:
        found = MiningResult({k: (v, "rules") for k, v in (values or {}).items()})
        return mining_effects(talk.runner(), request_of(talk), found, NOW)

    @pytest.mark.parametrize(
        ("state", "turns"),
        [
            (MiningState(), 1),
            (MiningState(task_id="reception", task_turns=4), 5),
            (MiningState(task_id="order", task_turns=4), 1),
        ],
    )
    def test_user_turns_are_counted_since_the_task_was_entered(
        self, prompts: FileSystemPrompts, state: MiningState, turns: int
    ) -> None:
        counted = self.after(shop(prompts, *DIALOGUE, mining=state)).state
        assert (counted.task_id, counted.task_turns) == ("reception", turns)  # F37

    @pytest.mark.parametrize("failed", ["call-1/m4", "m4"])
    def test_a_turn_is_counted_once_however_often_it_is_tried(
        self, prompts: FileSystemPrompts, failed: str
    ) -> None:
        state = MiningState(task_id="reception", task_turns=4, failed_turn=failed)
        assert self.after(shop(prompts, *DIALOGUE, mining=state)).state.task_turns == 4  # F37

    @pytest.mark.parametrize(
        ("ready", "count", "stalled"),
        [({}, 1, []), ({"order": 1}, 2, []), ({"order": 2}, 3, [("order", 3)]), ({"order": 3}, 4, [])],
    )
    def test_a_task_that_could_have_been_entered_for_three_turns_is_told_once(
        self, prompts: FileSystemPrompts, ready: dict[str, int], count: int, stalled: Sequence[Any]
    ) -> None:
        state = MiningState(task_id="reception", ready_turns=ready)
        talk = shop(prompts, *DIALOGUE, mining=state, tools={"var_string": mined("Ada")})
        effects = self.after(talk)
        assert effects.state.ready_turns == {"order": count}  # F37, F40: `other` needs nothing
        assert list(effects.stalled) == stalled

    def test_in_another_task_the_count_begins_again(self, prompts: FileSystemPrompts) -> None:
        state = MiningState(task_id="order", ready_turns={"order": 2, "gone": 9})
        talk = shop(prompts, *DIALOGUE, mining=state, tools={"var_string": mined("Ada")})
        assert self.after(talk).state.ready_turns == {"order": 1}  # F37

    def test_one_that_a_condition_closes_is_not_waited_for(self, prompts: FileSystemPrompts) -> None:
        raw = document()
        raw["tasks"][1]["entryCondition"] = {"when": "vars.var_boolean == true"}
        state = MiningState(task_id="reception", ready_turns={"order": 2})
        talk = shop(prompts, *DIALOGUE, raw=raw, mining=state, tools={"var_string": mined("Ada")})
        effects = self.after(talk)
        assert (effects.state.ready_turns, list(effects.stalled)) == ({"order": 2}, [])  # F37

    @pytest.mark.parametrize(
        ("before", "values", "after"),
        [
            ({}, {}, {"var_phone": 1}),
            ({"var_phone": 2, "var_date": 1}, {}, {"var_phone": 3, "var_date": 1}),
            ({"var_phone": 2}, {"var_phone": "found"}, {}),
            ({"var_phone": 2}, {"var_string": "found"}, {"var_phone": 3}),
        ],
    )
    def test_a_variable_that_was_asked_for_in_vain_is_counted_until_it_is_found(
        self,
        prompts: FileSystemPrompts,
        before: dict[str, int],
        values: dict[str, Any],
        after: dict[str, int],
    ) -> None:
        turns = (turn(1, "bot", "Which phone may we call?"), turn(2, "user", "later"))
        talk = shop(prompts, *turns, mining=MiningState(attempts=before))
        assert self.after(talk, values).state.attempts == after  # F37

    def test_one_that_is_known_already_was_not_asked_in_vain(self, prompts: FileSystemPrompts) -> None:
        turns = (turn(1, "bot", "Which phone may we call?"), turn(2, "user", "the one you have"))
        talk = shop(
            prompts,
            *turns,
            mined={"var_phone": mined({"number": "+39"}, "phone")},
            mining=MiningState(attempts={"var_phone": 1}),
        )
        assert self.after(talk).state.attempts == {}  # F37


PHONE = VariableSpec("v1", "phoneNumber", "phone", "The number to call back")
DATE = VariableSpec("v2", "visitDate", "date", "When the visit takes place")
CITY = VariableSpec("v3", "città", "string", None)


class TestWhatTheAgentAskedFor:
    @pytest.mark.parametrize(
        ("bot_turn", "asked"),
        [
            (None, []),
            ("", []),
            ("Tell me your phone number.", []),
            ("May I have your phone number?", ["v1"]),
            ("When would you like to visit us?", ["v2"]),
            ("On which date? And your phone?", ["v1", "v2"]),
            ("Which phone number for the visit?", ["v1"]),
            ("In quale citta?", ["v3"]),
            ("In quale CITTÀ abita?", ["v3"]),
            ("How are you?", []),
            ("Why?", []),
        ],
    )
    def test_it_is_found_by_the_words_of_names_and_prompts(
        self, bot_turn: str | None, asked: list[str]
    ) -> None:
        assert [v.id for v in asked_for(bot_turn, [PHONE, DATE, CITY])] == asked  # F37

    def test_where_there_are_no_variables_nothing_is_asked_for(self) -> None:
        assert asked_for("Which phone?", []) == []  # F37
