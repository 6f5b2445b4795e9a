"""Scorecards: what a save refuses, what a model is asked, what is taken, told and judged again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flow_engine.errors import CallTheOperator, CorrectTheInput, LookElsewhere, RetryLater
from flow_engine.listening.conclusions import read_scores, scoring_call, total_score
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.jobs import Job
from flow_engine.ports.models import ModelFailed
from flow_engine.runtime.compiled import compile_flow
from flow_engine.use_cases.scoring import Scoring
from flow_engine.use_cases.transactor import Transactor
from tests.api.harness import Scene, clinic, entry, open_scene
from tests.flow_engine.documents.samples import JsonObject, minimal_version
from tests.flow_engine.listening.test_mining import Model, dependencies_of, working_on

SERVICE: JsonObject = {
    "name": "service",
    "criteria": [
        {"name": "greeting", "prompt": "Greets\nthe caller", "weight": 3},
        {"name": "clarity", "prompt": "Says things plainly"},
    ],
    "scale": {"min": 1, "max": 5},
}
SALES: JsonObject = {
    "name": "sales",
    "criteria": [{"name": "offer", "prompt": "Offers more", "weight": 0.5}],
    "scale": {"min": 0, "max": 100},
}
CARDS = compile_flow(minimal_version(scorecards=[SERVICE, SALES]), "hash").document.scorecards
CONVERSATION = ConversationRef("default", "conv-1")


ANSWERS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.dictionaries(st.sampled_from(["scores", "service", "greeting"]), inner)
        | st.lists(inner, max_size=2)
    ),
    max_leaves=8,
)


def refused(**changes: Any) -> list[tuple[str, str]]:
    with pytest.raises(CorrectTheInput) as caught:
        compile_flow(minimal_version(**changes), "hash")
    return [(finding.pointer, finding.code) for finding in caught.value.findings]


class TestTheDocument:
    def test_a_version_without_scorecards_has_none(self) -> None:
        assert compile_flow(minimal_version(), "hash").document.scorecards == ()

    def test_what_is_left_out_weighs_one(self) -> None:
        assert [criterion.weight for criterion in CARDS[0].criteria] == [3, 1]

    def test_everything_that_is_wrong_is_told_with_its_place(self) -> None:
        same = {"name": "a", "prompt": "x"}
        cards = [
            {**SERVICE, "criteria": [same, {**same, "weight": 0}], "scale": {"min": 5, "max": 5}},
            {**SERVICE, "criteria": []},
        ]
        assert refused(scorecards=cards) == [
            ("/scorecards/1/name", "duplicate_name"),
            ("/scorecards/0/criteria/1/name", "duplicate_name"),
            ("/scorecards/0/criteria/1/weight", "out_of_range"),
            ("/scorecards/0/scale/max", "out_of_range"),
            ("/scorecards/1/criteria", "out_of_range"),
        ]

    def test_no_more_than_a_model_can_judge(self) -> None:
        criteria = [{"name": f"c{n}", "prompt": "x"} for n in range(21)]
        cards = [{**SERVICE, "name": f"s{n}"} for n in range(10)] + [{**SERVICE, "criteria": criteria}]
        assert refused(scorecards=cards) == [
            ("/scorecards", "too_many_scorecards"),
            ("/scorecards/10/criteria", "out_of_range"),
        ]

    def test_other_shapes_are_refused_by_the_schema(self) -> None:
        wrong = {"name": 1, "criteria": [{"name": "a"}], "scale": {"min": "0"}}
        assert refused(scorecards=[wrong]) == [
            ("/scorecards/0/name", "wrong_type"),
            ("/scorecards/0/criteria/0/prompt", "missing_property"),
            ("/scorecards/0/scale/min", "wrong_type"),
            ("/scorecards/0/scale/max", "missing_property"),
        ]


class TestTheScores:
    @pytest.mark.parametrize(
        ("scores", "taken"),
        [
            ({"service": {"greeting": 5, "clarity": 1}}, {"service": {"greeting": 5, "clarity": 1}}),
            ({"service": {"greeting": 4.5, "clarity": None}}, {"service": {"greeting": 4.5}}),
            ({"service": {"greeting": 6, "clarity": 0.9}}, {}),
            ({"service": {"greeting": True, "clarity": "5"}, "sales": {"offer": 0}}, {"sales": {"offer": 0}}),
            ({"Service": {"greeting": 5}, "sales": {"greeting": 5}}, {}),
            ({"service": [5, 5]}, {}),
            ([], {}),
            (None, {}),
        ],
    )
    def test_only_what_was_asked_for_is_taken_within_its_scale(self, scores: Any, taken: Any) -> None:
        assert read_scores(CARDS, {"scores": scores}) == taken

    @given(ANSWERS)
    def test_an_answer_of_any_shape_is_read(self, answer: object) -> None:
        for card, scores in read_scores(CARDS, answer).items():
            assert card == "service"
            assert all(1 <= score <= 5 for score in scores.values())

    def test_the_total_is_the_mean_by_weight_of_what_was_judged(self) -> None:
        assert total_score(CARDS[0], {"greeting": 5, "clarity": 1}) == 4
        assert total_score(CARDS[0], {"clarity": 2}) == 2
        assert total_score(CARDS[1], {"offer": 37.5}) == 37.5


@pytest.mark.anyio
class TestWithTheConclusion:
    async def _ended(self, scene: Scene) -> None:
        await scene.started()
        await scene.say("m1", "An ECG, please")
        await scene.end()
        scene.clock.advance(seconds=10)  # nobody waits for the last words any more

    def _job(self) -> Job:
        return Job("conclude", CONVERSATION, "call-1")

    async def test_one_call_judges_all_and_the_event_tells_the_scores(self) -> None:
        scores = {"service": {"greeting": 5, "clarity": 1}, "sales": {"offer": None}}
        model = Model(lambda call: {"why": "was kind", "scores": scores})
        async with open_scene(clinic(scorecards=[SERVICE, SALES])) as scene:
            await self._ended(scene)
            for _ in range(2):
                await working_on(scene, model).conclude(self._job())
            system = [e["body"] for e in await scene.events() if e["type"] == "system"]
            told = [body for body in system if body["subtype"] == "scorecard"]
            loaded = await scene.memory.conversations.load(CONVERSATION)
        assert told == [
            {
                "subtype": "scorecard",
                "name": "service",
                "score": 4,
                "criteria": {"greeting": 5, "clarity": 1},
                "why": "was kind",
            }
        ]
        assert loaded.mining.conclusions["call-1"].scores == {"service": {"greeting": 5, "clarity": 1}}
        [call] = [call for call in model.calls if call.output_schema is not None]
        assert call.output_schema is not None
        properties: Any = call.output_schema["properties"]
        assert list(properties) == ["scores", "why"]
        assert properties["scores"]["properties"]["sales"] == {
            "type": "object",
            "properties": {"offer": {"type": ["number", "null"], "minimum": 0, "maximum": 100}},
            "required": ["offer"],
        }
        assert "- service / greeting (1 – 5): Greets the caller" in str(call.messages[0].content)
        assert call.max_tokens == 400 + 3 * 20

    async def test_without_a_model_nothing_is_scored(self) -> None:
        async with open_scene(clinic(scorecards=[SERVICE])) as scene:
            await self._ended(scene)
            await working_on(scene).conclude(self._job())
            assert all(
                e["body"]["subtype"] != "scorecard" for e in await scene.events() if e["type"] == "system"
            )

    async def test_stored_conversations_are_judged_again_by_another_version(self) -> None:
        model = Model(lambda call: {"scores": {"sales": {"offer": 50}}})
        async with open_scene(clinic()) as scene:
            await self._ended(scene)
            flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
            await scene.save(flow_id, clinic(_id="scored", scorecards=[SALES]), tag="scored")
            scoring = Scoring(Transactor(dependencies_of(scene)), model)
            before = await scene.events()
            assert await scoring.score("default", "scored", ["conv-1"]) == [
                {
                    "conversationId": "conv-1",
                    "contacts": [
                        {
                            "contactId": "call-1",
                            "scorecards": [{"name": "sales", "score": 50, "criteria": {"offer": 50}}],
                        }
                    ],
                }
            ]
            assert await scene.events() == before
            without = await scoring.score("default", "version-1", ["conv-1"])
            assert without == [{"conversationId": "conv-1", "contacts": []}]
            assert len(model.calls) == 1
            with pytest.raises(LookElsewhere, match="conversation_unknown"):
                await scoring.score("default", "scored", ["nobody"])
            with pytest.raises(LookElsewhere):
                await scoring.score("other", "scored", ["conv-1"])
            for reason, error in (("not_configured", CallTheOperator), ("timeout", RetryLater)):
                away = Model(lambda call, reason=reason: ModelFailed(reason, "away"))
                with pytest.raises(error):
                    await Scoring(Transactor(dependencies_of(scene)), away).score(
                        "default", "scored", ["conv-1"]
                    )

    async def test_sensitive_values_are_masked_for_the_judge(self) -> None:
        document = clinic(scorecards=[SERVICE])
        next(v for v in document["variables"] if v["_id"] == "var_string")["sensitive"] = True
        model = Model(lambda call: {"scores": {"service": {"greeting": 5}}})
        async with open_scene(document) as scene:
            await scene.started()
            await scene.written(entry("var_string", "needle"))
            await scene.say("m1", "My name is needle")
            scene.clock.advance(seconds=1)
            await scene.work()
            await Scoring(Transactor(dependencies_of(scene)), model).score("default", "version-1", ["conv-1"])
        [call] = model.calls
        assert "My name is" in str(call.messages)
        assert "needle" not in str(call.messages)

    async def test_the_route_says_what_it_takes(self) -> None:
        async with open_scene(clinic(scorecards=[SERVICE])) as scene:
            await self._ended(scene)
            flow_id = (await scene.http.get("/v1/flows")).json()[0]["id"]
            url = f"/v1/flows/{flow_id}/versions/version-1/scores"
            without_model = await scene.post(url, {"conversations": ["conv-1"]})
            assert without_model.json()["code"] == "model_not_configured"
            for conversations, pointer in (([], "/conversations"), ([""], "/conversations/0")):
                reply = await scene.post(url, {"conversations": conversations})
                assert (reply.status_code, reply.json()["errors"][0]["pointer"]) == (422, pointer)
            unknown = await scene.post(url.replace("version-1", "gone"), {"conversations": ["conv-1"]})
            assert (unknown.status_code, unknown.json()["code"]) == (404, "version_unknown")


def test_where_nothing_was_said_nobody_is_asked() -> None:
    assert scoring_call(CARDS, (), {}) is None
