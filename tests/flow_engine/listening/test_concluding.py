"""What is said of a contact that has ended: its conclusion, its summary, what it missed (F20, F30, F39)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.listening.conclusions import (
    LONGEST_SUMMARY,
    LONGEST_WORDS,
    RuleSummariser,
    conclusion_call,
    conclusion_events,
    missed_events,
    read_conclusion,
    summary_call,
    with_summary,
)
from flow_engine.ports.dialogue import DialogueTurn, SummaryRequest
from flow_engine.ports.models import LLMRequest
from flow_engine.runtime.memory import MemoryEntry, PreviousContact
from flow_engine.runtime.mining_state import Conclusion, MiningState, ReachedCheckpoint
from flow_engine.runtime.session import Contact
from system_prompts.loader import FileSystemPrompts
from tests.flow_engine.documents.samples import JsonObject, minimal_version
from tests.flow_engine.runtime.conversation_steps import NOW, Conversation

REASONS = [
    {"name": "booking", "prompt": "The caller wants\na visit"},
    {"name": "complaint", "prompt": "The caller is angry"},
]
RESULTS = [{"name": "booked", "prompt": "A visit was booked", "resultTypes": ["CL", "Y"]}]
CONTACT = Contact(channel="phone", status="ended", started_at=NOW, tasks=("reception", "visit"))


def turn(src: str, body: str, type: str = "message") -> DialogueTurn:
    return DialogueTurn("m", NOW, type, src, body, "call-1", "reception", "en-US")


DIALOGUE = (turn("bot", "Good morning"), turn("user", "An  ECG,\nplease"))


class TestTheConclusionsCall:
    def call(
        self, prompts: FileSystemPrompts, turns: tuple[DialogueTurn, ...] = DIALOGUE, **document: Any
    ) -> LLMRequest | None:
        talk = Conversation(prompts, minimal_version(**document))
        return conclusion_call(talk.runner(), turns, talk.platform.prompt_sections(talk.flow, "phone"))

    def test_it_asks_for_what_the_version_declares_in_one_object(self, prompts: FileSystemPrompts) -> None:
        call = self.call(prompts, reasonsOfContact=REASONS, results=RESULTS)
        assert call is not None
        assert [(message.role, message.content) for message in call.messages] == [  # F39
            (
                "system",
                "\n".join(
                    [
                        "<conclusion_instructions en-US>",
                        "<conclusion_reasons en-US>",
                        "- booking: The caller wants a visit",
                        "- complaint: The caller is angry",
                        "<conclusion_results en-US>",
                        "- booked: A visit was booked",
                    ]
                ),
            ),
            ("user", "<speaker_bot en-US>: Good morning\n<speaker_user en-US>: An ECG, please"),
        ]
        assert call.output_schema == {
            "type": "object",
            "properties": {
                "reasonOfContact": {"enum": ["booking", "complaint", None]},
                "result": {"enum": ["booked", None]},
                "why": {"type": "string"},
            },
            "required": ["reasonOfContact", "result", "why"],
        }
        assert (call.max_tokens, call.temperature, call.purpose) == (400, 0, "conclusion")

    @pytest.mark.parametrize(
        ("declared", "properties", "headings"),
        [
            ({"reasonsOfContact": REASONS}, ["reasonOfContact", "why"], ["conclusion_reasons"]),
            ({"results": RESULTS}, ["result", "why"], ["conclusion_results"]),
        ],
    )
    def test_what_the_version_does_not_declare_is_not_asked_for(
        self, prompts: FileSystemPrompts, declared: JsonObject, properties: list[str], headings: list[str]
    ) -> None:
        call = self.call(prompts, **declared)
        assert call is not None
        assert call.output_schema is not None
        assert list(call.output_schema["properties"]) == properties  # type: ignore[call-overload] # F39
        system = str(call.messages[0].content)
        found = [name for name in ("conclusion_reasons", "conclusion_results") if f"<{name} " in system]
        assert found == headings

    @pytest.mark.parametrize(
        ("turns", "declared"),
        [
            pytest.param((), {"reasonsOfContact": REASONS, "results": RESULTS}, id="nothing-was-said"),
            pytest.param(DIALOGUE, {}, id="nothing-is-declared"),
        ],
    )
    def test_where_there_is_nothing_to_conclude_no_model_is_asked(
        self, prompts: FileSystemPrompts, turns: tuple[DialogueTurn, ...], declared: JsonObject
    ) -> None:
        assert self.call(prompts, turns, **declared) is None  # F39


class TestWhatIsTakenOfAConclusion:
    @pytest.mark.parametrize(
        ("answer", "conclusion"),
        [
            (
                {"reasonOfContact": "booking", "result": "booked", "why": "an ECG on Monday"},
                Conclusion(reason_of_contact="booking", result="booked", why="an ECG on Monday"),
            ),
            ({"reasonOfContact": "Booking", "result": "booked "}, Conclusion()),
            ({"reasonOfContact": "booked", "result": "booking"}, Conclusion()),
            ({"reasonOfContact": None, "result": None, "why": None}, Conclusion()),
            ({"reasonOfContact": ["booking"], "result": {"booked": 1}, "why": 7}, Conclusion(why="7")),
            ({"why": "x" * 501}, Conclusion(why="x" * 500)),
            ({}, Conclusion()),
            (None, Conclusion()),
            (["booking"], Conclusion()),
            ("booking", Conclusion()),
        ],
    )
    def test_only_declared_names_are_taken(
        self, prompts: FileSystemPrompts, answer: object, conclusion: Conclusion
    ) -> None:
        raw = minimal_version(reasonsOfContact=REASONS, results=RESULTS)
        assert read_conclusion(Conversation(prompts, raw).runner(), answer) == conclusion  # F39

    @pytest.mark.parametrize(
        ("conclusion", "told"),
        [
            (Conclusion(), []),
            (
                Conclusion(reason_of_contact="booking", why="an ECG"),
                [("reason_of_contact", "concluded:call-1:reason_of_contact", "booking", "an ECG")],
            ),
            (
                Conclusion(reason_of_contact="booking", result="booked"),
                [
                    ("reason_of_contact", "concluded:call-1:reason_of_contact", "booking", ""),
                    ("result", "concluded:call-1:result", "booked", ""),
                ],
            ),
        ],
    )
    def test_each_part_that_was_found_is_told_under_a_name_that_stands_once(
        self, prompts: FileSystemPrompts, conclusion: Conclusion, told: list[Any]
    ) -> None:
        runner = Conversation(prompts, minimal_version()).runner()
        found = [orjson.loads(event) for event in conclusion_events(runner, "call-1", conclusion)]
        assert [  # F39, F40
            (e["body"]["subtype"], e["eventId"].split(":", 3)[3], e["body"]["name"], e["body"]["why"])
            for e in found
        ] == told


def points() -> list[JsonObject]:
    return [
        {"_id": "a", "name": "identified", "prompt": "p", "required": True},
        {"_id": "b", "name": "thanked", "prompt": "p", "required": False},
        {"_id": "c", "name": "insured", "prompt": "p", "required": True, "when": "vars.var_boolean == true"},
    ]


A = {"subtype": "checkpoint_missed", "checkpointId": "a", "name": "identified"}
C = {"subtype": "checkpoint_missed", "checkpointId": "c", "name": "insured"}


class TestMissedCheckpoints:
    def missed(
        self, prompts: FileSystemPrompts, flag: bool | None, *reached: str, judged: bool = True
    ) -> list[JsonObject]:
        talk = Conversation(prompts, minimal_version(checkpoints=points()))
        marks = {id: ReachedCheckpoint(at=NOW, message_id="m", reason="r") for id in reached}
        entry = MemoryEntry("boolean", "crm", NOW, flag, "call-1", None)
        talk.load(mining=MiningState(checkpoints=marks), tools={"var_boolean": entry})
        found = missed_events(talk.runner(), "call-1", judged=judged)
        return [orjson.loads(event)["body"] for event in found]

    @pytest.mark.parametrize(
        ("flag", "reached", "told"),
        [
            pytest.param(True, (), [A, C], id="all-that-are-required"),
            pytest.param(False, (), [A], id="not-one-whose-condition-is-false"),
            pytest.param(None, (), [A], id="nor-unknown"),
            pytest.param(True, ("a",), [C], id="not-one-that-was-reached"),
            pytest.param(True, ("a", "c"), [], id="none"),
            pytest.param(False, ("b",), [A], id="one-that-is-not-required-counts-for-nothing"),
        ],
    )
    def test_required_ones_that_applied_and_nobody_reached_are_told(
        self, prompts: FileSystemPrompts, flag: bool | None, reached: tuple[str, ...], told: list[JsonObject]
    ) -> None:
        assert self.missed(prompts, flag, *reached) == told  # F39, D2

    def test_where_nobody_could_judge_that_is_told_too(self, prompts: FileSystemPrompts) -> None:
        assert self.missed(prompts, False, judged=False) == [{**A, "judged": False}]  # D2


class TestSummariesByAModel:
    def test_it_gets_the_tasks_that_were_passed_and_the_dialogue(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, minimal_version())
        call = summary_call(DIALOGUE, CONTACT, talk.platform.prompt_sections(talk.flow, "phone"))
        assert call is not None
        assert [message.content for message in call.messages] == [  # F30
            "<summary_instructions en-US> reception → visit",
            "<speaker_bot en-US>: Good morning\n<speaker_user en-US>: An ECG, please",
        ]
        assert call.output_schema is None
        assert (call.max_tokens, call.temperature, call.purpose) == (400, 0, "summary")
        assert summary_call((), CONTACT, talk.platform.prompt_sections(talk.flow, "phone")) is None

    EARLIER = PreviousContact(NOW - timedelta(days=1), "chat", "Asked for hours.")
    OWN = PreviousContact(NOW, "phone", "By rules.")

    @pytest.mark.parametrize(
        ("text", "resume"),
        [
            ("Booked an ECG.", "Booked an ECG."),
            ("  Booked\n\n# an ECG. ", "Booked # an ECG."),
            ("x" * (LONGEST_SUMMARY + 1), "x" * LONGEST_SUMMARY),
        ],
    )
    def test_it_takes_the_place_of_the_rules_summary_of_that_contact_alone(
        self, text: str, resume: str
    ) -> None:
        assert with_summary([self.EARLIER, self.OWN], CONTACT, text) == (  # F20, F30, A5
            self.EARLIER,
            PreviousContact(NOW, "phone", resume),
        )

    @pytest.mark.parametrize(
        ("contacts", "text"), [([OWN], ""), ([OWN], " \n"), ([EARLIER], "Booked."), ([], "Booked.")]
    )
    def test_nothing_is_replaced_by_nothing_and_no_entry_is_made(
        self, contacts: list[PreviousContact], text: str
    ) -> None:
        assert with_summary(contacts, CONTACT, text) is None  # F20


class TestSummariesByRules:
    pytestmark = pytest.mark.anyio

    async def summary(self, prompts: FileSystemPrompts, **request: Any) -> str:
        fields: JsonObject = {
            "api_version": "v1",
            "language": "en-US",
            "channel": "phone",
            "turns": (),
            "tasks_passed": (),
            "end_reason": None,
            "variables": (),
            **request,
        }
        return await RuleSummariser(prompts).summarise(SummaryRequest(**fields))

    @pytest.mark.parametrize(
        ("request_of", "text"),
        [
            pytest.param({}, "<summary_nothing en-US>", id="nothing"),
            pytest.param({"language": "it-IT"}, "<summary_nothing it-IT>", id="in-its-language"),
            pytest.param(
                {"tasks_passed": ("reception", "visit")},
                "<summary_tasks en-US> reception → visit",
                id="tasks",
            ),
            pytest.param(
                {"turns": DIALOGUE}, "<summary_said en-US> An ECG, please", id="only-what-the-user-said"
            ),
            pytest.param(
                {"turns": (turn("user", '{"x": 1}', "tool"), turn("user", "typing", "system"))},
                "<summary_nothing en-US>",
                id="only-messages",
            ),
            pytest.param(
                {"turns": (turn("user", ""), turn("user", " \n"), turn("user", "one"))},
                "<summary_said en-US> one",
                id="no-empty-message",
            ),
            pytest.param(
                {"turns": tuple(turn("user", word) for word in ("one", "two", "three", "four"))},
                "<summary_said en-US> two / three / four",
                id="the-last-three",
            ),
            pytest.param(
                {"variables": (("a string", "Ada"), ("size", "M\n# x"))},
                "<summary_known en-US> a string = Ada, size = M # x",
                id="variables",
            ),
            pytest.param(
                {"end_reason": "caller\nhangup"}, "<summary_end en-US> caller hangup", id="the-reason"
            ),
            pytest.param(
                {
                    "tasks_passed": ("reception",),
                    "turns": DIALOGUE,
                    "variables": (("size", "M"),),
                    "end_reason": "done",
                },
                "<summary_tasks en-US> reception <summary_said en-US> An ECG, please "
                "<summary_known en-US> size = M <summary_end en-US> done",
                id="all-in-one-line",
            ),
        ],
    )
    async def test_it_tells_tasks_last_words_values_and_the_reason(
        self, prompts: FileSystemPrompts, request_of: JsonObject, text: str
    ) -> None:
        assert await self.summary(prompts, **request_of) == text  # F20, F30

    @pytest.mark.parametrize("length", [LONGEST_WORDS - 1, LONGEST_WORDS, LONGEST_WORDS + 1, 5_000])
    async def test_long_words_are_cut_to_two_hundred_characters(
        self, prompts: FileSystemPrompts, length: int
    ) -> None:
        text = await self.summary(prompts, turns=(turn("user", "x" * length),))
        quoted = text.removeprefix("<summary_said en-US> ")
        expected = "x" * length if length <= LONGEST_WORDS else "x" * (LONGEST_WORDS - 1) + "…"
        assert quoted == expected  # F20, A5

    async def test_the_whole_has_a_bound(self, prompts: FileSystemPrompts) -> None:
        variables = tuple((f"variable {number}", "y" * 300) for number in range(20))
        text = await self.summary(prompts, variables=variables)
        assert len(text) == LONGEST_SUMMARY  # A5
        assert text.endswith("y…")


@settings(max_examples=30)
@given(st.text(max_size=40), st.text(max_size=40))
def test_a_summary_is_one_line_whatever_it_is_made_of(text: str, other: str) -> None:
    replaced = with_summary([TestSummariesByAModel.OWN], CONTACT, f"{text}\n{other}")
    if replaced is not None:
        assert replaced[0].resume.splitlines() == [replaced[0].resume]  # A5
