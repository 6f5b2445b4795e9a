"""Values that grow old, users who contradict tools, and how sure a model was of what it has heard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import orjson
import pytest

from flow_engine.documents import parse_version
from flow_engine.documents.differences import difference
from flow_engine.errors import CorrectTheInput
from flow_engine.linting import lint
from flow_engine.use_cases.recording_format import read_recording
from flow_engine.use_cases.replaying import Compiled, Side
from service.replaying import platform
from tests.api.harness import Scene, entry, multi_contact, needs, open_scene
from tests.flow_engine.documents.samples import ENVIRONMENT, JsonObject, aio_task, minimal_version
from tests.flow_engine.documents.test_documents_parity import validator
from tests.flow_engine.listening.test_mining import MINE, Model, Rules, says, working_on
from tests.flow_engine.testing.scene import complaints

pytestmark = pytest.mark.anyio

HOUR = 3_600


def document(**variables: Mapping[str, Any]) -> JsonObject:
    """`city` and `plan` with more properties; the visit needs the city, and is closed to a Turin."""
    city = {"_id": "city", "name": "city", "type": "string", "prompt": "Where", **variables.get("city", {})}
    plan = {"_id": "plan", "name": "plan", "type": "enum", "enumValues": ["gold", "silver"], "prompt": "Plan"}
    record = {"_id": "record", "name": "record", "type": "custom", **variables.get("record", {})}
    condition = {"when": "vars.city != 'Turin'", "reason": "not in Turin"}
    visit = aio_task("visit", transitionParameters=needs("city"), entryCondition=condition)
    return minimal_version(
        variables=[city, {**plan, **variables.get("plan", {})}, record],
        tasks=[aio_task(connectedTasks=["visit"]), visit],
    )


@asynccontextmanager
async def on(**variables: Mapping[str, Any]) -> AsyncIterator[Scene]:
    async with open_scene(document(**variables)) as scene:
        await scene.started()
        yield scene


async def known(scene: Scene, var_id: str = "city") -> Any:
    reply = await scene.http.get("/v1/memory/conv-1")
    return next(each for each in reply.json()["vars"] if each["varId"] == var_id)


async def heard(scene: Scene, message_id: str, model: Model | None = None, **by_rules: Any) -> None:
    """The user says something, and it is read by the model, or by rules that find this."""
    await scene.say(message_id, "whatever it was")
    await working_on(scene, model, Rules(by_rules)).mine(MINE)


async def conflicts(scene: Scene) -> list[Any]:
    return [body for body in await told_of(scene) if body["subtype"] == "value_conflict"]


async def told_of(scene: Scene) -> list[Any]:
    """The bodies of the engine's own events, oldest first."""
    return [event["body"] for event in await scene.events() if event["type"] == "system"]


async def memory_table(scene: Scene) -> list[str]:
    prompt = await scene.prompt()
    return prompt["parts"]["volatile"].partition("|var|property|value|\n|-|-|-|\n")[2].splitlines()


class TestOldValues:
    async def test_an_old_value_shows_its_age_and_asks_to_be_confirmed(self) -> None:
        async with on(city={"freshFor": HOUR}) as scene:
            await scene.written(entry("city", "Rome"), entry("plan", "gold"))
            scene.clock.advance(seconds=HOUR - 1)
            fresh = await scene.prompt()
            assert await memory_table(scene) == ["|city||Rome|", "|plan||gold|"]
            city = await known(scene)
            assert (city["stale"], city["ageS"]) == (False, HOUR - 1)
            assert "stale" not in await known(scene, "plan")
            scene.clock.advance(seconds=1)
            old = await scene.prompt()
            assert await memory_table(scene) == [
                "|city||Rome|",
                "|city|to be confirmed|last confirmed 1 h ago; ask the user whether it still holds before "
                "you use it|",
                "|plan||gold|",
            ]
            assert fresh["prefixHash"] == old["prefixHash"]  # what a model caches stays the same
            assert fresh["parts"]["prefix"] == old["parts"]["prefix"]
            city = await known(scene)
            assert (city["stale"], city["ageS"], city["value"]) == (True, HOUR, "Rome")
            scene.clock.advance(seconds=61)
            assert (await known(scene))["ageS"] == HOUR + 61  # not what was answered a moment ago

    async def test_an_old_value_still_opens_what_needs_it(self) -> None:
        async with on(city={"freshFor": 60}) as scene:
            await scene.written(entry("city", "Rome"))
            scene.clock.advance(days=3)
            assert (await known(scene))["stale"] is True
            assert (await scene.changed("visit"))["taskId"] == "visit"

    async def test_the_etag_of_the_prompt_tells_that_a_value_has_grown_old(self) -> None:
        async with on(city={"freshFor": 90}) as scene:
            await scene.written(entry("city", "Rome"))
            tag = (await scene.http.get("/v1/prompt/conv-1")).headers["etag"]
            scene.clock.advance(seconds=61)
            known_as = {"if-none-match": tag}
            assert (await scene.http.get("/v1/prompt/conv-1", headers=known_as)).status_code == 304
            scene.clock.advance(seconds=29)
            changed = await scene.http.get("/v1/prompt/conv-1", headers=known_as)
            assert (changed.status_code, "to be confirmed" in changed.text) == (200, True)

    async def test_a_tool_confirms_by_writing_the_same_again(self) -> None:
        async with on(city={"freshFor": HOUR}) as scene:
            await scene.written(entry("city", "Rome"))
            scene.clock.advance(hours=2)
            await scene.written(entry("city", "Rome"))
            city = await known(scene)
            assert (city["stale"], city["ageS"]) == (False, 0)

    async def test_the_user_confirms_what_he_has_said_himself(self) -> None:
        async with on(city={"freshFor": HOUR}, plan={}) as scene:
            await heard(scene, "m1", city="Rome", plan="gold")
            scene.clock.advance(minutes=30)
            await heard(scene, "m2", city="Rome", plan="gold")
            assert (await known(scene))["ageS"] == 0
            noted = await known(scene)
            assert noted["provenance"]["messageId"] == "m2"
            # what does not grow old is not written again for nothing
            assert (await known(scene, "plan"))["updatedAt"] == "2026-01-15T09:30:00Z"

    async def test_a_model_confirms_only_what_is_old_and_is_told_so(self) -> None:
        async with on(city={"freshFor": HOUR}) as scene:
            await heard(scene, "m1", says({"city": "Rome"}))
            scene.clock.advance(minutes=30)
            again = says({"city": "Rome"})  # it reads the first message as well
            await heard(scene, "m2", again)
            assert (await known(scene))["ageS"] == 30 * 60
            assert "Rome" not in again.calls[0].messages[0].content
            scene.clock.advance(minutes=30)
            confirming = says({"city": "Rome"})
            await heard(scene, "m3", confirming)
            assert "- city is known as «Rome»" in confirming.calls[0].messages[0].content
            city = await known(scene)
            assert (city["stale"], city["ageS"], city["provenance"]["messageId"]) == (False, 0, "m3")

    async def test_a_sensitive_old_value_is_told_to_no_model(self) -> None:
        async with on(city={"freshFor": 60, "sensitive": True}) as scene:
            await heard(scene, "m1", says({"city": "Needleham"}))
            scene.clock.advance(minutes=30)
            model = says({})
            await heard(scene, "m2", model)
            assert "Needleham" not in model.calls[0].messages[0].content
            rows = await memory_table(scene)
            assert rows[0] == "|city||[hidden]|"
            assert "to be confirmed" in rows[1]

    async def test_the_users_word_confirms_a_tools_value_where_he_is_heard(self) -> None:
        async with on(city={"freshFor": HOUR, "precedence": "tool"}, plan={"freshFor": HOUR}) as scene:
            await scene.written(entry("city", "Rome"), entry("plan", "gold"))
            scene.clock.advance(hours=2)
            await heard(scene, "m1", city="rome", plan="gold")
            city, plan = await known(scene), await known(scene, "plan")
            assert (city["value"], city["updatedBy"], city["ageS"]) == ("Rome", "findVisit", 0)
            assert (plan["stale"], plan["ageS"]) == (True, 2 * HOUR)  # F18: nobody listens there
            assert await conflicts(scene) == []

    async def test_a_moment_of_the_journal_shows_the_age_that_it_had_then(self) -> None:
        async with on(city={"freshFor": 60}) as scene:
            await scene.written(entry("city", "Rome"))
            scene.clock.advance(minutes=5)
            await scene.written(entry("plan", "gold"))
            scene.clock.advance(days=5)
            then = (await scene.http.get("/v1/conversations/conv-1/at/3")).json()
            assert "5 min ago" in then["prompt"]
            ages = {each["varId"]: each.get("ageS") for each in then["state"]["vars"]}
            assert ages == {"city": 300, "plan": None, "record": None}


class TestContradictions:
    @pytest.mark.parametrize(
        ("precedence", "value", "other"),
        [("tool", "Turin", "Rome"), ("user", "Rome", "Turin"), ("latest", "Rome", "Turin")],
    )
    async def test_the_user_corrects_a_tool(self, precedence: str, value: str, other: str) -> None:
        async with on(city={"precedence": precedence}) as scene:
            await scene.written(entry("city", "Turin", updatedBy="crm"))
            scene.clock.advance(minutes=1)
            await heard(scene, "m1", city="Rome")
            by_tool = value == "Turin"
            who = {"Turin": "crm", "Rome": "convMiner"}
            assert await conflicts(scene) == [
                {
                    "subtype": "value_conflict",
                    "varId": "city",
                    "name": "city",
                    "value": value,
                    "updatedBy": who[value],
                    "other": other,
                    "otherBy": who[other],
                    "precedence": precedence,
                }
            ]
            city = await known(scene)
            assert (city["value"], city["updatedBy"]) == (value, who[value])
            origin = city["provenance"]
            assert (origin["source"], origin["superseded"]) == ("tool" if by_tool else "rules", other)
            assert origin["conflict"] == {
                "value": other,
                "source": "rules" if by_tool else "tool",
                "updatedBy": who[other],
                "messageId": "m1" if by_tool else None,
                "at": "2026-01-15T09:31:00Z" if by_tool else "2026-01-15T09:30:00Z",
            }
            told = "the user said «Rome»" if by_tool else "crm wrote «Turin»"
            assert (await memory_table(scene))[:2] == [f"|city||{value}|", f"|city|contradicted|{told}|"]
            # conditions are judged on the value that counts
            reply = (await scene.change("visit")).json()
            assert reply["result"] is not by_tool

    async def test_without_precedence_nobody_listens_once_a_tool_has_written(self) -> None:  # F18
        async with on() as scene:
            await scene.written(entry("city", "Turin"))
            await heard(scene, "m1", city="Rome")
            assert await conflicts(scene) == []
            city = await known(scene)
            assert (city["value"], city["provenance"]["superseded"]) == ("Turin", None)
            assert "conflict" not in city["provenance"]

    async def test_it_is_told_once_and_again_when_it_comes_out_otherwise(self) -> None:
        async with on(city={"precedence": "latest"}) as scene:
            await scene.written(entry("city", "Turin"))
            for message_id, said in (("m1", "Rome"), ("m2", "Rome"), ("m3", "Milan")):
                scene.clock.advance(minutes=1)
                await heard(scene, message_id, city=said)
            scene.clock.advance(minutes=1)
            await scene.written(entry("city", "Turin"))  # the tool insists, and is the latest now
            told = [(each["value"], each["other"]) for each in await conflicts(scene)]
            assert told == [("Rome", "Turin"), ("Milan", "Turin"), ("Turin", "Milan")]
            ids = [event["eventId"] for event in await scene.events()]
            assert len(ids) == len(set(ids))
            await scene.written(entry("city", None))  # taken back
            city = await known(scene)
            assert (city["value"], "conflict" in city["provenance"]) == ("Milan", False)

    async def test_a_tool_that_contradicts_the_user_is_told_too(self) -> None:
        async with on(city={"precedence": "user"}) as scene:
            await heard(scene, "m1", city="Rome")
            await scene.written(entry("city", "ROME"))  # nobody says capitals
            assert await conflicts(scene) == []
            await scene.written(entry("city", "Turin"))
            assert [(each["value"], each["other"]) for each in await conflicts(scene)] == [("Rome", "Turin")]
            assert (await known(scene))["value"] == "Rome"

    async def test_the_journal_keeps_both_values_and_names_the_variable(self) -> None:
        async with on(city={"precedence": "tool"}) as scene:
            await scene.written(entry("city", "Turin"))
            await heard(scene, "m1", city="Rome")
            rows = (await scene.http.get("/v1/conversations/conv-1/journal")).json()["entries"]
            last = rows[-1]
            assert (last["input"]["op"], last["outcome"]["conflicts"]) == ("extraction", ["city"])
            assert last["delta"]["mined"]["city"]["value"] == "Rome"
            assert all("conflicts" not in row["outcome"] for row in rows[:-1])

    async def test_a_sensitive_conflict_shows_masks(self) -> None:
        async with on(city={"precedence": "user", "sensitive": "identity"}) as scene:
            await scene.written(entry("city", "NEEDLE-A"))
            await heard(scene, "m1", city="NEEDLE-B")
            (told,) = await conflicts(scene)
            assert (told["value"], told["other"]) == ("[hidden identity]", "[hidden identity]")
            assert (await memory_table(scene))[1] == "|city|contradicted|findVisit wrote «[hidden identity]»|"
            shown = await scene.http.get("/v1/conversations/conv-1")
            journal = await scene.http.get("/v1/conversations/conv-1/journal")
            assert "NEEDLE" not in shown.text + journal.text
            assert (await known(scene))["provenance"]["conflict"]["value"] == "NEEDLE-A"  # for tools

    async def test_what_the_user_says_may_lead_on_by_itself(self) -> None:
        raw = document(city={"precedence": "user"})
        raw["tasks"][0]["connectionConditions"] = {"visit": {"advance": "auto"}}
        async with open_scene(raw) as scene:
            await scene.started()
            await scene.written(entry("city", "Turin"))
            await heard(scene, "m1", city="Rome")
            told = [body["subtype"] for body in await told_of(scene)]
            assert told[-2:] == ["value_conflict", "task_changed"]
            rows = (await scene.http.get("/v1/conversations/conv-1/journal")).json()["entries"]
            assert rows[-1]["outcome"]["advanced"]["to"] == "visit"


class TestConfidence:
    async def answered(self, confidence: object) -> Any:
        async with on(city={}) as scene:
            answer = {"values": {"city": "Rome", "plan": None}, "confidence": confidence}
            await heard(scene, "m1", Model(lambda call: answer))
            return (await known(scene))["provenance"]

    async def test_what_a_model_gives_is_kept_with_the_value(self) -> None:
        found = await self.answered({"city": 0.85, "plan": 0.4, "nobody": 1})
        assert (found["source"], found["confidence"]) == ("model", 0.85)

    @pytest.mark.parametrize(
        "confidence", [None, {}, [], "high", {"city": None}, {"city": True}, {"city": 1.2}, {"city": "0.9"}]
    )
    async def test_there_is_none_where_none_was_given(self, confidence: object) -> None:
        assert "confidence" not in await self.answered(confidence)

    async def test_rules_and_tools_have_none(self) -> None:
        async with on() as scene:
            await heard(scene, "m1", city="Rome")
            await scene.written(entry("plan", "gold"))
            for var_id in ("city", "plan"):
                assert "confidence" not in (await known(scene, var_id))["provenance"]


class TestInTheDocument:
    @pytest.mark.parametrize(
        ("properties", "pointers"),
        [
            ({"freshFor": 1, "precedence": "tool"}, set()),
            ({"freshFor": 315_360_000, "precedence": "latest"}, set()),
            ({"freshFor": 0}, {"/freshFor"}),
            ({"freshFor": 315_360_001, "precedence": "newest"}, {"/freshFor", "/precedence"}),
            ({"freshFor": "1 hour", "precedence": True}, {"/freshFor", "/precedence"}),
            ({"freshFor": None, "precedence": None}, {"/freshFor", "/precedence"}),
        ],
    )
    def test_schema_and_model_agree_on_what_they_take(
        self, properties: JsonObject, pointers: set[str]
    ) -> None:
        raw = document(city=properties)
        found: set[str] = set()
        try:
            parse_version(raw)
        except CorrectTheInput as refusal:
            found = {finding.pointer.removeprefix("/variables/0") for finding in refusal.findings}
        errors = validator("Variable").iter_errors(raw["variables"][0])
        assert found == pointers == {"/" + "/".join(map(str, e.absolute_path)) for e in errors}

    def test_a_change_of_either_is_a_change_of_the_variable(self) -> None:
        changes = difference(document(), document(city={"freshFor": 60, "precedence": "user"}))["changes"]
        assert [(c["what"], c["id"], c["path"], c["after"]) for c in changes] == [
            ("variable", "city", "/variables/city/freshFor", 60),
            ("variable", "city", "/variables/city/precedence", "user"),
        ]

    def test_the_linter_tells_of_what_has_no_effect(self) -> None:
        raw = document(record={"precedence": "user"}, city={"freshFor": 7200})
        for each in (raw, *raw["tasks"]):
            each["closureConfig"] = multi_contact()
        found = {(f.code, f.pointer) for f in lint(parse_version(raw), ENVIRONMENT)}
        assert ("value_ignored", "/variables/2/precedence") in found
        assert ("value_never_old", "/variables/0/freshFor") in found

    def test_a_flow_test_expects_what_is_old_and_what_is_contradicted(self, tmp_path: Path) -> None:
        flow = tmp_path / "flow.json"
        flow.write_bytes(
            orjson.dumps(document(city={"freshFor": HOUR, "precedence": "user"}, plan={"freshFor": HOUR}))
        )
        story = """
            - memory: {city: Turin, plan: gold}
            - wait: 1 hour
            - say: {body: In Rome, model: {values: {city: Rome}, confidence: {city: 0.9}}}
            - expect: {conflicts: [city], stale: [plan], memory: {city: Rome}}
            - wait: 2 hours
            - expect: {stale: {includes: [city]}, prompt_contains: 2 h ago}
        """
        assert complaints(tmp_path, story, flow=flow) == []
        wrong = "- expect: {stale: [city], conflicts: [plan]}"
        assert complaints(tmp_path, f"{dedent(story)}{wrong}", flow=flow)[1:] == [
            "stale: not expected: 'plan'; there are: 'city', 'plan'",
            "conflicts: not there: 'plan'; not expected: 'city'; there are: 'city'",
        ]


class TestRecordings:
    @pytest.mark.parametrize(
        ("variable", "written", "said"),
        [
            ("city", "Turin-7731", "Rome-8842"),
            ("plan", "gold", "silver"),
            ("number", 773_117, 884_228),
            ("yes", True, False),
            ("day", "1971-03-04", "1972-05-06"),
            ("mail", "a.needle@example.org", "b.needle@example.org"),
            (
                "phone",
                {"country": "IT", "type": "mobile", "number": "+393471234567"},
                {"country": "IT", "type": "mobile", "number": "+393477654321"},
            ),
        ],
    )
    async def test_a_contradiction_about_a_sensitive_value_comes_out_of_a_recording_again(
        self, variable: str, written: Any, said: Any
    ) -> None:  # journal: recordings show no sensitive value, and are stepped again
        hidden = {"sensitive": True, "precedence": "user"}
        whole = document(city=hidden, plan=hidden)
        kinds = {"number": "number", "yes": "boolean", "day": "date", "mail": "email", "phone": "phone"}
        whole["variables"] += [
            {"_id": id, "name": id, "type": kind, "prompt": "?", **hidden} for id, kind in kinds.items()
        ]
        async with open_scene(whole) as scene:
            await scene.started()
            await scene.written(entry(variable, written, updatedBy="crm"))
            await heard(scene, "m1", **{variable: written})
            assert await conflicts(scene) == []
            await heard(scene, "m2", **{variable: said})
            assert len(await conflicts(scene)) == 1
            recording = (await scene.http.get("/v1/conversations/conv-1/recording")).content
        assert b"needle" not in recording
        if variable not in ("plan", "yes"):
            text = said["number"] if variable == "phone" else str(said)
            assert text.encode() not in recording
        read = read_recording(recording)
        side = Side(read, Compiled(), platform())
        moments = [await side.take(each, each.input) for each in read.entries]
        told = [sorted(moment.runner.conflicts) if moment.runner else [] for moment in moments]
        assert told == [[], [], [], [], [], [variable]]
