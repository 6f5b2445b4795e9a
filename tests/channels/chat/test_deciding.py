"""Accept, clarify or refuse: what follows from scores and confidence, and what is said then (C6–C10)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.chat.agents import Agents
from channels.chat.decisions import Context, Decision, Orchestrator
from channels.chat.inheritance import effective
from channels.chat.router import Candidate, IntentRouter
from channels.chat.rows import ORCHESTRATOR, StoredRow, whole
from channels.chat.settings import ChatSettings
from channels.chat.wording import breaks_out, question, refusal
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.models import LLMAnswer, LLMRequest, Message, ModelEvent, ModelFailed

pytestmark = pytest.mark.anyio

SESSION = ConversationRef("t", "s-1")
ROWS: list[dict[str, Any]] = [
    {"name": "weather", "description": "Tells the weather", "examples": ["will it rain in Rome"]},
    {"name": "orders", "description": "Takes orders", "examples": ["I want to order two pizzas"]},
    {"name": "billing", "description": "Knows invoices", "examples": ["my invoice is wrong"]},
]
ROUTING = {
    "name": ORCHESTRATOR,
    "task": "Choose an agent.",
    "model": "openai:gpt-4o",
    "temperature": 0.0,
    "top_p": 0.5,
    "num_ctx": 4096,
}


def table_of(*rows: dict[str, Any]) -> Agents:
    table = {row["name"]: StoredRow(1, whole(row)) for row in rows}
    every = {name: effective(name, table) for name in table}
    talking = [agent for name, agent in every.items() if name != ORCHESTRATOR]
    return Agents(every, {}, IntentRouter(talking))


def candidates(**scores: float) -> list[Candidate]:
    return [Candidate(agent, score) for agent, score in scores.items()]


class Answering:
    """A model with one answer; it keeps what it was asked."""

    def __init__(self, answer: str | Exception) -> None:
        self.answer = answer
        self.asked: list[LLMRequest] = []

    async def stream(self, request: LLMRequest) -> AsyncGenerator[ModelEvent]:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        yield LLMAnswer(Message("assistant", self.answer), "scripted", 3, 2, None)


async def decided(answer: str, text: str = "will it rain in Rome") -> Decision:
    orchestrator = Orchestrator(ChatSettings(), Answering(answer))
    return await orchestrator.decide(table_of(ROUTING, *ROWS), text, Context(SESSION))


class TestByScores:
    """Without a model the best score is accepted when it leads by the margin."""

    @pytest.mark.parametrize(
        ("scores", "action", "agent", "offered"),
        [
            ({"a": 0.9, "b": 0.1}, "accept", "a", []),
            ({"a": 0.2, "b": 0.1}, "accept", "a", []),
            ({"a": 0.5, "b": 0.45}, "accept", "a", []),
            ({"a": 0.5, "b": 0.46}, "clarify", "a", ["a", "b"]),
            ({"a": 0.5, "b": 0.5, "c": 0.48}, "clarify", "a", ["a", "b", "c"]),
            ({"a": 0.5, "b": 0.48, "c": 0.44}, "clarify", "a", ["a", "b"]),
            ({"a": 0.21, "b": 0.19}, "accept", "a", []),
            ({"a": 0.199, "b": 0.1}, "refuse", None, []),
            ({"a": 0.0}, "refuse", None, []),
            ({}, "refuse", None, []),
        ],
    )
    def test_the_margin_decides(
        self, scores: dict[str, float], action: str, agent: str | None, offered: list[str]
    ) -> None:
        decision = Orchestrator(ChatSettings(), None).by_scores(candidates(**scores))
        assert (decision.action, decision.agent, list(decision.offered)) == (action, agent, offered)  # C8
        assert (decision.decided_by, decision.confidence) == ("scores", None)

    @pytest.mark.parametrize(
        ("scores", "reason"),
        [
            ({"a": 0.9}, "the best score, ahead by 0.05; no model is configured"),
            ({"a": 0.9, "b": 0.1}, "the best score, ahead by 0.05; no model is configured"),
            ({"a": 0.21, "b": 0.19}, "the best score, and the only one of 0.2; no model is configured"),
            ({"a": 0.5, "b": 0.5}, "2 agents are within 0.05; no model is configured"),
            ({"a": 0.1}, "no agent scores 0.2; no model is configured"),
        ],
    )
    def test_the_reason_is_written_down(self, scores: dict[str, float], reason: str) -> None:
        assert Orchestrator(ChatSettings(), None).by_scores(candidates(**scores)).reason == reason  # C8

    def test_a_score_of_zero_is_never_enough(self) -> None:
        settings = ChatSettings(chat_min_score=0, chat_margin=0)
        assert Orchestrator(settings, None).by_scores(candidates(a=0.0)).action == "refuse"  # C10
        assert Orchestrator(settings, None).by_scores(candidates(a=0.1, b=0.1)).agent == "a"

    async def test_a_table_without_an_enabled_orchestrator_is_decided_so_too(self) -> None:
        model = Answering('{"agent": "orders", "confidence": 1}')
        for rows in (ROWS, [{**ROUTING, "enabled": False}, *ROWS]):
            decision = await Orchestrator(ChatSettings(), model).decide(
                table_of(*rows), "will it rain in Rome", Context(SESSION)
            )
            assert (decision.agent, decision.decided_by) == ("weather", "scores")  # C4, C8
        assert model.asked == []


class TestByAModel:
    """To accept takes both: the model's confidence and the router's score of the agent that was named."""

    @pytest.mark.parametrize(
        ("named", "confidence", "action", "agent", "reason"),
        [
            ("weather", 1.0, "accept", "weather", "confidence and score are high enough"),
            ("weather", 0.6, "accept", "weather", "confidence and score are high enough"),
            ("weather", 0.59, "clarify", "weather", "the confidence is middling"),
            ("weather", 0.35, "clarify", "weather", "the confidence is middling"),
            ("weather", 0.34, "refuse", None, "the confidence is below 0.35"),
            ("weather", 0.0, "refuse", None, "the confidence is below 0.35"),
            ("orders", 1.0, "clarify", "orders", "the score is too low"),
            ("orders", 0.5, "clarify", "orders", "the confidence is middling"),
            ("orders", 0.1, "refuse", None, "the confidence is below 0.35"),
        ],
    )
    async def test_both_thresholds_hold(
        self, named: str, confidence: float, action: str, agent: str | None, reason: str
    ) -> None:
        decision = await decided(orjson.dumps({"agent": named, "confidence": confidence}).decode())
        assert (decision.action, decision.agent, decision.reason) == (action, agent, reason)  # C8
        assert (decision.confidence, decision.decided_by) == (confidence, "model")

    async def test_a_question_offers_the_named_agent_first_and_two_more_at_most(self) -> None:
        rows = [{**row, "examples": ["will it rain in Rome"]} for row in ROWS]
        rows.append({"name": "zoo", "examples": ["will it rain in Rome"]})
        orchestrator = Orchestrator(ChatSettings(), Answering('{"agent": "zoo", "confidence": 0.4}'))
        decision = await orchestrator.decide(
            table_of(ROUTING, *rows), "will it rain in Rome", Context(SESSION)
        )
        assert decision.offered == ["zoo", "billing", "orders"]  # C9

    async def test_agents_that_nothing_speaks_for_are_not_offered(self) -> None:
        decision = await decided('{"agent": "orders", "confidence": 1}')
        assert decision.offered == ["orders", "weather"]  # C9

    @pytest.mark.parametrize(
        "answer",
        [
            "",
            "weather",
            "[]",
            "{}",
            '{"agent": "weather"}',
            '{"agent": "weather", "confidence": "high"}',
            '{"agent": "weather", "confidence": true}',
            '{"agent": "weather", "confidence": null}',
            '{"agent": ["weather"], "confidence": 1}',
            '{"agent": "nobody", "confidence": 1}',
            f'{{"agent": "{ORCHESTRATOR}", "confidence": 1}}',
            '{"agent": "weather", "confidence": 1',
            '{"agent": "weather", "confidence": NaN}',
            '} {"agent": "weather", "confidence": 1',
            "{" * 16_000,
        ],
    )
    async def test_an_answer_that_names_nobody_refuses(self, answer: str) -> None:
        decision = await decided(answer)
        assert (decision.action, decision.agent) == ("refuse", None)  # C8, C10
        assert decision.reason == "the orchestrator named no agent that can be talked to"

    @pytest.mark.parametrize(
        ("answer", "confidence"),
        [
            ('```json\n{"agent": "weather", "confidence": 0.9}\n```', 0.9),
            (
                '<think>{"agent": "orders", "confidence": 1}</think>{"agent": "weather", "confidence": 0.9}',
                0.9,
            ),
            ('Surely: {"agent": "weather", "confidence": 0.9}.', 0.9),
            ('{"confidence": 5, "agent": "weather", "why": "it rains"}', 1.0),
            ('{"agent": "weather", "confidence": 1}', 1.0),
        ],
    )
    async def test_a_thought_a_fence_or_words_around_it_do_no_harm(
        self, answer: str, confidence: float
    ) -> None:
        decision = await decided(answer)
        assert (decision.agent, decision.confidence) == ("weather", confidence)  # C3, C8

    async def test_a_decision_is_told_with_its_candidates(self) -> None:
        reply = (await decided('{"agent": "weather", "confidence": 0.9}')).reply()
        scores: Any = reply.pop("candidates")
        assert [each["agent"] for each in scores] == ["weather", "billing", "orders"]  # C7, C8
        assert scores[0]["score"] > scores[1]["score"] == 0
        assert reply == {
            "agent": "weather",
            "confidence": 0.9,
            "action": "accept",
            "reason": "confidence and score are high enough",
            "decided_by": "model",
        }


class TestWhatTheModelIsAsked:
    async def test_it_gets_candidates_dialogue_and_message_under_the_rows_parameters(self) -> None:
        model = Answering('{"agent": "weather", "confidence": 0.9}')
        turns = [Message("user", f"word {number}") for number in range(12)]
        context = Context(SESSION, turns, "orders", "an order", "it-IT")
        await Orchestrator(ChatSettings(chat_candidates=2), model).decide(
            table_of(ROUTING, *ROWS), "will it rain in Rome", context
        )
        (asked,) = model.asked
        material = orjson.loads(str(asked.messages[1].content))
        assert [message.role for message in asked.messages] == ["system", "user"]  # C6
        assert asked.messages[0].content == "# Task\nChoose an agent."
        assert [each["agent"] for each in material["candidates"]] == ["weather", "billing"]
        assert material["candidates"][0]["description"] == "Tells the weather"
        assert material["conversation"] == [
            {"role": "user", "content": f"word {number}"} for number in range(2, 12)
        ]
        assert {key: material[key] for key in ("active_agent", "last_intent", "language", "message")} == {
            "active_agent": "orders",
            "last_intent": "an order",
            "language": "it-IT",
            "message": "will it rain in Rome",
        }
        assert (asked.model, asked.temperature, asked.top_p, asked.num_ctx) == (
            *("openai:gpt-4o", 0.0),
            *(0.5, 4096),
        )  # C1
        assert (asked.max_tokens, asked.purpose, asked.conversation) == (1024, "routing", SESSION)

    async def test_its_calls_are_accounted_also_one_that_fails(self) -> None:
        context = Context(SESSION)
        failing = Orchestrator(ChatSettings(), Answering(ModelFailed("model_unavailable", "away")))
        with pytest.raises(ModelFailed):
            await failing.decide(table_of(ROUTING, *ROWS), "x", context)
        answering = Orchestrator(ChatSettings(), Answering("{}"))
        await answering.decide(table_of(ROUTING, *ROWS), "x", context)
        told = [(use.model, use.status, use.input_tokens, use.output_tokens) for use in context.uses]
        assert [tokens for _, _, *tokens in told] == [[0, 0], [3, 2]]  # M14


class TestLeavingAnAgentThatAsks:
    AGENTS = table_of(*ROWS)

    @pytest.mark.parametrize(
        ("asking", "text", "to"),
        [
            ("orders", "will it rain in Rome", "weather"),
            ("weather", "will it rain in Rome", None),
            ("orders", "two pizzas", None),
            ("weather", "I want to order two pizzas", "orders"),
            ("orders", "rain", None),
            ("orders", "", None),
            ("orders", "yes", None),
            ("gone", "my invoice is wrong", "billing"),
        ],
    )
    def test_a_message_that_fits_another_clearly_better_goes_there(
        self, asking: str, text: str, to: str | None
    ) -> None:
        assert Orchestrator(ChatSettings(), None).breaks_out(self.AGENTS, asking, text) == to  # C9

    def test_where_nobody_talks_nobody_is_left_for(self) -> None:
        assert Orchestrator(ChatSettings(), None).breaks_out(table_of(ROUTING), "x", "rain") is None

    @pytest.mark.parametrize(
        ("text", "leaves"),
        [
            ("Something else, please", True),
            ("NEVER MIND", True),
            ("qualcos’altro", True),
            ("Lascia perdere!", True),
            ("Olvídalo", True),
            ("never", False),
            ("the mind", False),
            ("", False),
        ],
    )
    def test_some_words_leave_whatever_was_asked(self, text: str, leaves: bool) -> None:
        assert breaks_out(text) is leaves  # C9


class TestWording:
    @pytest.mark.parametrize(
        ("offered", "language", "text"),
        [
            ([], None, "Tell me in a few more words what you need."),
            (["Tells the weather"], None, "Is this what you need?\n1. Tells the weather"),
            (["A", "B"], "en-GB", "I am not sure which of these you need:\n1. A\n2. B"),
            (["A"], "it-IT", "È questo che ti serve?\n1. A"),
            (["A", "B"], "ES", "No sé con seguridad cuál de estas cosas necesitas:\n1. A\n2. B"),
            (["A"], "de-DE", "Is this what you need?\n1. A"),
            ([], "it", "Dimmi in qualche parola in più di che cosa hai bisogno."),
        ],
    )
    def test_a_question_names_what_is_offered(
        self, offered: list[str], language: str | None, text: str
    ) -> None:
        assert question(offered, language) == text  # C9

    @pytest.mark.parametrize(
        ("offered", "language", "text"),
        [
            (
                [],
                None,
                "I have nobody here who can help with that. Tell me in a few more words what you need.",
            ),
            (["A", "B"], None, "I have nobody here who can help with that. What can be done here:\n- A\n- B"),
            (
                ["A"],
                "es-ES",
                "Aquí no hay nadie que pueda ayudarte con eso. Esto es lo que se puede hacer aquí:\n- A",
            ),
        ],
    )
    def test_a_refusal_explains_and_suggests(
        self, offered: list[str], language: str | None, text: str
    ) -> None:
        assert refusal(offered, language) == text  # C10


scores = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d"]), st.floats(0, 1).map(lambda score: round(score, 4)), max_size=4
)


@settings(max_examples=30)
@given(scores, st.floats(0, 1), st.floats(0, 0.5))
def test_whatever_the_scores_a_decision_is_one_of_three_and_consistent(
    found: dict[str, float], least: float, margin: float
) -> None:
    settings = ChatSettings(chat_min_score=least, chat_margin=margin)
    ranked = sorted(candidates(**found), key=lambda each: (-each.score, each.agent))
    decision = Orchestrator(settings, None).by_scores(ranked)
    if decision.action == "refuse":  # C8, C10
        assert decision.agent is None
        assert all(each.score < least or each.score == 0 for each in ranked)
    else:
        assert decision.agent == ranked[0].agent
        assert ranked[0].score >= least
        assert (decision.action == "clarify") == (len(decision.offered) > 1)
        leads = [round(ranked[0].score - other.score, 4) >= margin for other in ranked[1:]]
        assert (decision.action == "accept") >= all(leads)
