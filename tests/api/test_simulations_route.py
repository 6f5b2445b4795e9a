"""`POST /v1/flows/{id}/simulations`: simulated users over HTTP, with the verdicts of the command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from adapters.models.scripted import Answers, CallsTools, Fails, Says, ScriptedModel, Stalls, Step
from flow_engine.ports.models import LLMRequest, ToolCall
from flow_engine.testing.simulation import Persona, Recording, read_file
from flow_engine.testing.simulations import SimulationLimits
from flows.samples import load_samples
from tests.api.harness import Scene, keyring_of, open_scene

pytestmark = pytest.mark.anyio

PERSONAS = Path(__file__).parents[2] / "flows" / "samples" / "personas"
[ORDER] = [json.loads(sample.document) for sample in load_samples() if sample.flow_id == "order"]
RUTH = {
    "name": "Ruth",
    "goal": "Talk to a colleague.",
    "mood": "calm",
    "language": "en-US",
    "channel": "phone",
    "expect": {"task": "colleague"},
}
RECORDED = "runs: [{turns: [{user: 'A person, please.', agent: [{change_task: colleague}, {say: Sure.}]}]}]"


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with open_scene(ORDER) as opened:
        yield opened


async def flow_of(scene: Scene) -> str:
    return (await scene.http.get("/v1/flows")).json()[0]["id"]


async def asked(scene: Scene, **body: Any) -> httpx.Response:
    sent = {"persona": RUTH, "recordingYaml": RECORDED, **body}
    given = {name: value for name, value in sent.items() if value is not None}
    return await scene.post(f"/v1/flows/{await flow_of(scene)}/simulations", given)


async def simulated(scene: Scene, **body: Any) -> Any:
    reply = await asked(scene, **body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def refused(scene: Scene, **body: Any) -> tuple[int, str, list[str]]:
    reply = await asked(scene, **body)
    problem = reply.json()
    return reply.status_code, problem["code"], [each["pointer"] for each in problem["errors"]]


# --- what comes back --------------------------------------------------------------------------------


async def test_a_recorded_persona_is_played_and_all_of_it_comes_back(scene: Scene) -> None:
    done = await simulated(scene)
    assert (done["runs"], done["passed"], done["failed"], done["passK"], done["left"]) == (1, 1, 0, 1, 0)
    assert (done["channel"], done["byModel"], done["hasModel"]) == ("text", False, False)
    [result] = done["results"]
    assert result["conversation"] == [
        {"user": "A person, please.", "agent": [{"change_task": "colleague"}, {"say": "Sure."}]}
    ]
    place = [task["_id"] for task in ORDER["tasks"]].index(result["task"]["taskId"])
    assert (result["task"]["name"], result["task"]["pointer"]) == ("colleague", f"/tasks/{place}")
    assert (result["run"], result["turns"], result["failures"], result["opinion"]) == (1, 1, [], None)


@pytest.mark.parametrize("name", ["order-present", "order-status", "order-pickup"])
async def test_the_files_of_the_samples_are_taken_as_they_are(scene: Scene, name: str) -> None:
    files = {
        "personaYaml": (PERSONAS / f"{name}.yaml").read_text("utf-8"),
        "recordingYaml": (PERSONAS / f"{name}.recorded.yaml").read_text("utf-8"),
    }
    done = await simulated(scene, persona=None, **files)
    assert done["passK"] == 1
    assert read_file(Persona, done["personaYaml"].encode()) == read_file(
        Persona, files["personaYaml"].encode()
    )
    again = await simulated(scene, persona=done["persona"], recordingYaml=done["recordingYaml"], runs=2)
    assert (again["runs"], again["passK"]) == (2, 1)


async def test_a_run_that_fails_says_why_and_where_it_ended(scene: Scene) -> None:
    done = await simulated(scene, persona={**RUTH, "expect": {"task": "goodbye"}})
    assert (done["passed"], done["failed"], done["passK"]) == (0, 1, 0)
    [result] = done["results"]
    assert result["failures"] == ["at the end, task: expected 'goodbye', found 'colleague'"]
    assert result["task"]["name"] == "colleague"


async def test_a_document_that_is_not_saved_is_talked_to_and_nothing_is_stored(scene: Scene) -> None:
    document = json.loads(json.dumps(ORDER))
    for task in document["tasks"]:
        task["connectedTasks"] = [each for each in task.get("connectedTasks") or () if each != "colleague"]
    document["globalTasks"] = []
    del document["conversationalFlowId"]
    before = (await scene.http.get("/v1/flows")).json(), (await scene.http.get("/v1/conversations")).json()
    done = await simulated(scene, document=document)
    assert done["failed"] == 1
    assert "refused with task_not_connected" in done["results"][0]["failures"][0]
    after = (await scene.http.get("/v1/flows")).json(), (await scene.http.get("/v1/conversations")).json()
    assert before == after
    assert await scene.work() == 0


async def test_a_persona_telephones_with_the_same_verdict(scene: Scene) -> None:
    done = await simulated(scene, channel="voice")
    assert (done["channel"], done["passed"], done["passK"]) == ("voice", 1, 1)
    assert done["results"][0]["task"]["name"] == "colleague"


async def test_with_no_run_what_is_sent_is_only_read(scene: Scene) -> None:
    done = await simulated(scene, persona=None, personaYaml=yaml.safe_dump(RUTH), recordingYaml=None, runs=0)
    assert (done["runs"], done["results"], done["recordingYaml"], done["passK"]) == (0, [], None, 0)
    assert done["persona"] == RUTH


# --- what is refused --------------------------------------------------------------------------------


async def test_every_mistake_of_a_persona_has_its_pointer(scene: Scene) -> None:
    wrong = {**RUTH, "goal": "", "maxTurns": 0, "shoes": "red"}
    status, code, places = await refused(scene, persona=wrong)
    assert (status, code) == (422, "body_invalid")
    assert sorted(places) == ["/persona/goal", "/persona/maxTurns", "/persona/shoes"]


@pytest.mark.parametrize("place", ["contact", "tenant", "knowledge"])
async def test_a_number_that_nobody_keeps_is_refused_in_a_persona(scene: Scene, place: str) -> None:  # A10
    body = {"persona": {**RUTH, place: {"a": 10**30}}, "recordingYaml": RECORDED}
    reply = await scene.http.post(f"/v1/flows/{await flow_of(scene)}/simulations", json=body)
    assert (reply.status_code, [each["pointer"] for each in reply.json()["errors"]]) == (422, ["/persona"])


async def test_mistakes_in_yaml_have_a_pointer_and_a_line(scene: Scene) -> None:
    _, code, places = await refused(scene, persona=None, personaYaml="name: Ruth\nmaxTurns: 0\n")
    assert code == "persona_invalid"
    assert {"/personaYaml/goal", "/personaYaml/maxTurns"} <= set(places)
    unknown = yaml.safe_dump({**RUTH, "expect": {"task": "nowhere"}}, sort_keys=False)
    reply = (await asked(scene, persona=None, personaYaml=unknown)).json()
    [mistake] = reply["errors"]
    assert (mistake["pointer"], mistake["message"][:8]) == ("/personaYaml/expect/task", "line 7: ")
    _, _, places = await refused(scene, persona={**RUTH, "expect": {"task": "nowhere"}})
    assert places == ["/persona/expect/task"]
    reply = (await asked(scene, recordingYaml="runs:\n- turns: []\n- {}\n")).json()
    assert reply["code"] == "recording_invalid"
    assert [each["pointer"] for each in reply["errors"]] == [
        "/recordingYaml/runs/0/turns",
        "/recordingYaml/runs/1/turns",
    ]
    assert reply["errors"][1]["message"].startswith("line 3: ")


async def test_no_mistake_hides_another(scene: Scene) -> None:
    persona = yaml.safe_dump({**RUTH, "maxTurns": 0, "expect": {"task": "nowhere", "status": 5}})
    both = {"persona": None, "personaYaml": persona, "recordingYaml": "runs: 1"}
    in_persona = ["/personaYaml/expect/status", "/personaYaml/expect/task", "/personaYaml/maxTurns"]
    _, code, places = await refused(scene, **both)
    assert (code, sorted(places)) == ("persona_invalid", [*in_persona, "/recordingYaml/runs"])
    _, code, places = await refused(scene, persona={**RUTH, "expect": {"task": "x"}}, recordingYaml="runs: 1")
    assert (code, places) == ("persona_invalid", ["/persona/expect/task", "/recordingYaml/runs"])
    # Without a flow that has names.
    _, code, places = await refused(scene, **both, document={"tasks": []})
    assert code == "persona_invalid"
    assert sorted(places) == ["/personaYaml/expect/status", "/personaYaml/maxTurns", "/recordingYaml/runs"]
    assert (await refused(scene, **{**both, "personaYaml": "["}))[2] == [
        "/personaYaml",
        "/recordingYaml/runs",
    ]


async def test_a_long_recording_is_read_while_others_go_on(scene: Scene) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    going_on = asyncio.create_task(others())
    recording = "runs:\n- turns:\n  - agent:\n" + "    - say: a\n" * 10_000
    done = await simulated(scene, recordingYaml=recording, runs=0)
    going_on.cancel()
    assert (done["runs"], turns > 20) == (0, True)


async def test_of_very_many_mistakes_the_first_are_told(scene: Scene) -> None:
    names = [f"nowhere {number}" for number in range(1_000)]
    persona = {**RUTH, "expect": {"not_reachable": names}}
    _, code, places = await refused(scene, persona=persona)
    assert (code, places) == ("persona_invalid", ["/persona/expect/not_reachable"] * 100)


@pytest.mark.parametrize(
    ("body", "code", "places"),
    [
        ({"persona": None}, "body_invalid", [""]),
        ({"personaYaml": "name: Ruth"}, "body_invalid", [""]),
        ({"versionId": "a", "document": {}}, "body_invalid", [""]),
        ({"runs": 21}, "body_invalid", ["/runs"]),
        ({"runs": -1}, "body_invalid", ["/runs"]),
        ({"channel": "pigeon"}, "body_invalid", ["/channel"]),
        ({"persona": {**RUTH, "expect": {"task": "nowhere"}}}, "persona_invalid", ["/persona/expect/task"]),
    ],
)
async def test_what_cannot_be_played_is_refused_at_its_place(
    scene: Scene, body: dict[str, Any], code: str, places: list[str]
) -> None:
    assert (await refused(scene, **body))[1:] == (code, places)


async def test_a_document_that_no_save_would_take_is_refused_with_every_error(scene: Scene) -> None:
    _, code, places = await refused(scene, document={"tasks": []})
    assert code == "document_invalid"
    assert len(places) > 1


async def test_another_flow_or_version_is_unknown(scene: Scene) -> None:
    assert (await refused(scene, versionId="none"))[:2] == (404, "version_unknown")
    reply = await scene.post("/v1/flows/none/simulations", {"persona": RUTH})
    assert (reply.status_code, reply.json()["code"]) == (404, "flow_unknown")


async def test_without_a_model_only_a_recording_can_be_played(scene: Scene) -> None:
    status, code, _ = await refused(scene, recordingYaml=None)
    assert (status, code) == (503, "model_not_configured")


async def test_a_key_needs_the_scope_designer() -> None:
    keys = {"keys": [{"key": "agent", "tenant": "default", "scopes": ["agent"]}]}
    async with open_scene(authenticator=keyring_of(json.dumps(keys))) as closed:
        reply = await closed.post("/v1/flows/x/simulations", {"persona": RUTH}, Authorization="Bearer agent")
    assert reply.status_code == 403


# --- by a model, and its bounds ---------------------------------------------------------------------


def actors(agent: list[Step]) -> ScriptedModel:
    left = iter(agent)

    def step(request: LLMRequest) -> Step:
        if request.purpose == "simulated_user":
            return Answers({"say": "A person, please.", "done": True})
        if request.purpose == "simulation_opinion":
            return Answers({"reached": True, "why": "A colleague was there."})
        return next(left)

    return ScriptedModel(step)


COLLEAGUE = [CallsTools([ToolCall("call-1", "change_task", {"task": "colleague"})]), Says("One moment.")]


async def test_a_model_plays_and_what_it_played_is_a_recording() -> None:
    async with open_scene(ORDER, model=actors(COLLEAGUE * 2)) as scene:
        done = await simulated(scene, recordingYaml=None, runs=2)
        assert (done["runs"], done["passK"], done["byModel"], done["hasModel"]) == (2, 1, True, True)
        assert done["results"][0]["opinion"] == {"reached": True, "why": "A colleague was there."}
        assert len(read_file(Recording, done["recordingYaml"].encode()).runs) == 2
        again = await simulated(scene, recordingYaml=done["recordingYaml"])
        assert (again["runs"], again["byModel"], again["passK"]) == (2, False, 1)


async def test_a_model_that_fails_leaves_what_was_played_before() -> None:
    async with open_scene(ORDER, model=actors([*COLLEAGUE, Fails("timeout")])) as scene:
        done = await simulated(scene, recordingYaml=None, runs=3)
        assert (done["runs"], done["left"]) == (1, 2)
        assert "timeout" in done["modelFailed"]


async def test_a_simulation_has_its_time() -> None:
    model, limits = actors([Stalls(60)] * 2), SimulationLimits(within_s=0.2)
    async with open_scene(ORDER, model=model, simulation_limits=limits) as scene:
        done = await simulated(scene, recordingYaml=None, runs=2)
        assert (done["runs"], done["left"], done["passK"]) == (0, 2, 0)


async def test_a_recorded_simulation_has_its_time_too() -> None:
    recording = "runs:\n- turns:\n  - agent:\n" + "    - say: a\n" * 500
    async with open_scene(ORDER, simulation_limits=SimulationLimits(within_s=0.01)) as scene:
        done = await simulated(scene, recordingYaml=recording, runs=2)
        assert (done["runs"], done["left"]) == (0, 2)


async def test_a_call_that_is_given_up_asks_no_model_any_more() -> None:
    model, limits = actors([Stalls(0.5)] * 50), SimulationLimits(within_s=0.2)
    async with open_scene(ORDER, model=model, simulation_limits=limits) as scene:
        await simulated(scene, channel="voice")  # the voice agent takes its time to load
        done = await simulated(scene, recordingYaml=None, channel="voice")
        assert (done["runs"], done["left"]) == (0, 1)
        await asyncio.sleep(0.2)  # what is on its way to the model arrives there
        asked = len(model.requests)
        await asyncio.sleep(0.7)
        assert len(model.requests) == asked


async def test_a_tenant_has_so_many_simulations_at_once() -> None:
    begun = asyncio.Event()

    def step(request: LLMRequest) -> Step:
        begun.set()
        return Stalls(60)

    limits = SimulationLimits(at_once=1)
    async with open_scene(ORDER, model=ScriptedModel(step), simulation_limits=limits) as scene:
        first = asyncio.create_task(simulated(scene, recordingYaml=None))
        await begun.wait()
        assert (await refused(scene))[:2] == (409, "too_many_simulations")
        first.cancel()
        await asyncio.wait({first})
        assert (await simulated(scene))["passK"] == 1, "the one that was given up makes room"


# --- keys -------------------------------------------------------------------------------------------


async def test_a_request_that_comes_again_under_its_key_is_not_played_again() -> None:
    model = actors(COLLEAGUE)
    async with open_scene(ORDER, model=model) as scene:
        path = f"/v1/flows/{await flow_of(scene)}/simulations"
        first = await scene.post(path, {"persona": RUTH}, Idempotency_Key="one")
        again = await scene.post(path, {"persona": RUTH}, Idempotency_Key="one")
        assert (first.status_code, again.status_code) == (200, 200)
        assert first.content == again.content
        assert len(model.requests) == 4
        other = await scene.post(path, {"persona": RUTH, "runs": 0}, Idempotency_Key="one")
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
        [kept] = [key for key in await scene.memory.driver.client.keys("*") if b"simulation-" in key]
        look = await scene.http.get(f"{path.removesuffix('simulations')}try/{kept.decode().split(':')[-1]}")
        assert (look.status_code, look.json()["code"]) == (404, "try_unknown")
        scene.clock.advance(minutes=31)
        fresh = await scene.post(path, {"persona": RUTH, "runs": 0}, Idempotency_Key="one")
        assert fresh.json()["runs"] == 0
