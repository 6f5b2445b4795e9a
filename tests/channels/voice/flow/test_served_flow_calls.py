"""A call through a flow from greeting to transfer, on the real engine and the real voice agent (V2, V12)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from channels.voice.testing.fake_response import Pace
from channels.voice.testing.realtime_checks import Refusal, SessionState
from channels.voice.testing.realtime_session import item_number
from channels.voice.testing.script import Reaction, Say, Script, Step, UseTool
from tests.channels.voice.flow.served_flow import (
    ACCOUNT,
    BLOCKED,
    CALLER,
    CARDIOGRAM,
    FLOW_ID,
    LiveCall,
    Site,
    line_of,
    live_call,
    running_site,
)
from tests.timing import paused_s

pytestmark = pytest.mark.anyio

GREETING = "Poliambulatorio Aurora, buongiorno. Di quale visita ha bisogno?"
ASKS_FOR_THE_VISIT = "Vorrei un elettrocardiogramma"
LOOKS_IT_UP = "Un attimo, lo cerco nel nostro catalogo."
ASKS_WHEN = "In quale sede preferisce venire? Abbiamo Centro, Stazione e Lido, tutte facili da raggiungere."
WHERE_AND_NUMBER = "Alla sede Centro, il mio numero è 347 123 4567"
ASKS_FOR_A_PERSON = "Vorrei parlare con una persona"
HANDS_OVER = "La metto in contatto con la segreteria."
HUMAN = "+390612345678"


def when(told: str, *steps: Step) -> Reaction:
    return Reaction(steps, when=told)


def changes_to(task: str) -> UseTool:
    return UseTool("change_task", {"task": task})


FINDS_THE_VISIT = UseTool("cerca_prestazione", {"testo": "elettrocardiogramma"})
BOOKS_A_CARDIOGRAM = Script(
    (
        when("user: /start", Say(GREETING, 500)),
        when(f"user: {ASKS_FOR_THE_VISIT}", changes_to("disponibilità")),
        when("missing_variables", Say(LOOKS_IT_UP, 3000), FINDS_THE_VISIT),
        when('tool: "Trovata', changes_to("disponibilità")),
        when("user: /start_task disponibilità", Say(ASKS_WHEN, 5000)),
        when(f"user: {WHERE_AND_NUMBER}", Say("Va bene, la sede Centro.", 300)),
        when(f"user: {ASKS_FOR_A_PERSON}", changes_to("operatore")),
        when("user: /start_task operatore", Say(HANDS_OVER, 800)),
    )
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as running:
        metrics = httpx.get(f"{running.engine_url}/metrics").text
        assert 'route="/mcp",status="200"' in metrics  # asked for its tools before the first call
        yield running


async def test_a_visit_is_asked_for_and_ends_with_a_person(site: Site) -> None:  # V2, V12, F28-F35
    site.publish()
    async with live_call(site, BOOKS_A_CARDIOGRAM) as call:
        await greeted(call)
        await refused_then_moved(call)
        await interrupted(call)
        await handed_over(call)
        await told_to_the_engine(call)
        await told_to_the_business(call)


async def greeted(call: LiveCall) -> None:
    await call.until(lambda: call.call.playout.heard != [])
    assert call.call.playout.heard[0].at - call.dialled_at < 10
    (first,) = call.updates()
    assert "Poliambulatorio Aurora" in first["instructions"]
    assert f"callerId: {CALLER}" in first["instructions"]
    assert "Tutto ciò che produci viene detto a voce" in first["instructions"]
    assert list(call.tools()) == ["change_task", "set_memory", "cerca_prestazione", "end_call"]
    assert call.told("user") == ["/start"]
    await call.heard(2, 500)


async def refused_then_moved(call: LiveCall) -> None:
    await call.call.say(ASKS_FOR_THE_VISIT, 500)
    await call.until(lambda: "/start_task disponibilità AIO" in call.told("user"))
    refused, found, changed = call.tool_answers()
    assert (refused["result"], refused["code"]) == (False, "missing_variables")
    assert refused["missing"][0]["fillableBy"] == ["cerca_prestazione"]
    assert found.startswith("Trovata")
    assert changed == {"result": True, "task": "disponibilità", "type": "AIO"}

    looked_up, new_task = call.updates()[1:3]
    assert "|idPrestazione|nome|Elettrocardiogramma|" in looked_up["instructions"]
    assert "Capisci di quale visita" in looked_up["instructions"]
    assert "Chiedi al paziente se preferisce una sede" in new_task["instructions"]
    assert list(call.tools(2)) == ["change_task", "set_memory", "cerca_disponibilita", "end_call"]
    reachable = call.tools(2)["change_task"]["parameters"]["properties"]["task"]
    assert reachable["enum"] == ["prenotazione", "prestazione", "operatore", "chiusura"]
    assert "Still missing: dataAppuntamento." in reachable["description"]
    kinds = [command.kind for command in call.session.commands]
    last_update = len(kinds) - 1 - kinds[::-1].index("session.update")
    # The old words stop, then the session is another, then the command is given.
    assert kinds[last_update - 1] == "conversation.item.truncate"
    assert kinds[last_update + 1 :][:3] == ["conversation.item.create"] * 2 + ["response.create"]
    (cut,) = call.commands("conversation.item.truncate")
    await call.until(lambda: call.call.playout.clears != [])
    assert call.call.playout.heard_ms(item_number(str(cut.fields["item_id"]))) < 3000


async def interrupted(call: LiveCall) -> None:
    paused = paused_s()
    question = await item_of(call, ASKS_WHEN)
    await call.heard(question, 800)
    updates = len(call.updates())
    await call.call.say(WHERE_AND_NUMBER, 500)
    await call.until(lambda: len(call.commands("conversation.item.truncate")) == 2)
    told_ms = int(str(call.commands("conversation.item.truncate")[-1].fields["audio_end_ms"]))
    stood_ms = 1000 * (paused_s() - paused)  # the line, while the agent's clock went on
    off_ms = abs(told_ms - call.call.playout.heard_ms(question))
    assert off_ms <= 400 + stood_ms  # on an idle line: test_line_behaviour
    await call.until(lambda: len(call.updates()) > updates)
    memory = call.updates()[-1]["instructions"].rpartition("\n\n")[2]
    assert "|sede||Centro|" in memory
    assert f"|telefono||{CALLER}|" in memory


async def handed_over(call: LiveCall) -> None:
    await call.heard(await item_of(call, "Va bene, la sede Centro."), 300)
    await call.call.say(ASKS_FOR_A_PERSON, 500)
    assert await call.call.closed(10) == 1000
    goodbye = await item_of(call, HANDS_OVER)
    assert call.call.playout.heard_ms(goodbye) == pytest.approx(800)
    assert call.told("user")[-1] == ("/start_task operatore HUM skills=segreteria optional_skills=inglese")
    assert "segreteria" in call.updates()[-1]["instructions"]
    assert call.outside.moved == [(ACCOUNT, call.call.call_sid, HUMAN)]


async def told_to_the_engine(call: LiveCall) -> None:
    await call.until(lambda: {"subtype": "conversation_closed"} in call.happenings())
    assert [happened["subtype"] for happened in call.happenings()] == [
        *("contact_started", "task_refused", "task_changed", "task_changed", "routing_requested"),
        *("human_task", "contact_ended", "conversation_closed"),
    ]
    connected, ended = call.happenings()[-3:-1]
    assert connected["outcome"] == "connected"
    assert (ended["reason"], ended["status"]) == ("transferred", "closed")
    dialogue = [(event["src"], event["body"]) for event in call.events() if event["type"] == "message"]
    looked_up, question = dialogue[2][1], dialogue[3][1]
    assert dialogue == [
        ("bot", GREETING),
        ("user", ASKS_FOR_THE_VISIT),
        ("bot", looked_up),
        ("bot", question),
        ("user", WHERE_AND_NUMBER),
        ("bot", "Va bene, la sede Centro."),
        ("user", ASKS_FOR_A_PERSON),
        ("bot", HANDS_OVER),
    ]
    for whole, told in ((LOOKS_IT_UP, looked_up), (ASKS_WHEN, question)):
        assert told.endswith(" …")
        assert whole.startswith(told.removesuffix(" …"))
    (tool,) = (event for event in call.events() if event["type"] == "tool")
    assert tool["srcId"] == "cerca_prestazione"
    memory = await call.memory()
    assert memory["idPrestazione"] == CARDIOGRAM
    assert (memory["sede"], memory["telefono"]["number"]) == ("Centro", CALLER)
    closed = await call.engine.get(f"/v1/prompt/{call.conversation_id}")
    assert (closed.status_code, closed.json()["code"]) == (409, "conversation_closed")


async def told_to_the_business(call: LiveCall) -> None:
    await call.until(lambda: len(call.outside.told) == 2)
    (begun, started), (over, ended) = call.outside.told
    assert (begun, started) == ("started", {"phone": CALLER})
    assert (over, ended["outcome"]) == ("ended", "handed_over")
    assert ended["said"][0]["content"] == GREETING


async def test_a_task_goes_on_though_the_model_refuses_how_it_is_to_be_heard(  # V2, V12
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = SessionState.update
    asks_where = "Chiedi al paziente se preferisce una sede"

    def refusing(state: SessionState, changes: Any, *, has_spoken: bool) -> Refusal | None:
        if asks_where in changes["instructions"] and "audio" in changes:
            return Refusal("invalid_value", "No such language.", "session.audio.input.transcription.language")
        return update(state, changes, has_spoken=has_spoken)

    monkeypatch.setattr(SessionState, "update", refusing)
    site.publish()
    async with live_call(site, BOOKS_A_CARDIOGRAM) as call:
        await greeted(call)
        await call.call.say(ASKS_FOR_THE_VISIT, 500)
        await call.until(lambda: asks_where in str(call.session.settings.wire["instructions"]))
        assert "cerca_disponibilita" in call.tools()
        await call.heard(await item_of(call, ASKS_WHEN), 800)
        await call.call.hang_up()
        await call.until(lambda: {"subtype": "conversation_closed"} in call.happenings())
        refusals, call.session.errors = call.session.errors, []
        assert {each.code for each in refusals} == {"invalid_value"}


async def test_what_the_caller_has_just_said_counts_before_it_is_written_down(site: Site) -> None:  # V2
    site.publish()
    script = Script(
        (
            when("user: /start", Say("Buongiorno", 400)),
            when(f"user: {ASKS_FOR_THE_VISIT}", FINDS_THE_VISIT),
            when('tool: "Trovata', Say("Per quando?", 400)),
            when("user: Giovedì", changes_to("prenotazione")),
            when("user: /start_task", Say("A che nome?", 400)),
        )
    )
    await a_date_was_read(site)
    async with live_call(site, script, pace=Pace(transcription_ms=300)) as call:
        await call.heard(2, 400)
        await call.call.say(ASKS_FOR_THE_VISIT, 500)
        await call.heard(await item_of(call, "Per quando?"), 400)
        await call.call.say("Giovedì 3 dicembre alle 10 e mezza", 500)
        await call.until(lambda: "/start_task prenotazione AIO" in call.told("user"))
        assert call.tool_answers()[-1]["result"] is True
        (waited,) = (e for e in call.site.logged("tool_call")[-1:] if e["tool"] == "change_task")
        assert waited["duration_ms"] < 10_000
        assert (await call.memory())["dataAppuntamento"] is not None
        await call.call.hang_up()
        await call.until(lambda: {"subtype": "conversation_closed"} in call.happenings())
    assert "task_refused" not in [happened["subtype"] for happened in call.happenings()]
    assert call.happenings()[-2]["reason"] == "caller_hung_up"


async def a_date_was_read(site: Site) -> None:
    """What the engine loads for its first date takes a busy machine longer than words are waited for."""
    ids = {"conversationId": "earlier", "contactId": "earlier"}
    start = {"flowId": FLOW_ID, "tag": "prod", "channel": "phone"}
    words = {"messageId": "1", "ts": "2026-11-20T09:00:00Z", "type": "message", "src": "user"}
    async with httpx.AsyncClient(base_url=f"{site.engine_url}/v1", timeout=30) as http:
        (await http.post("/handle-new-contact", json={**ids, **start})).raise_for_status()
        said = {**ids, **words, "body": "Vorrei il 4 dicembre alle 10 e mezza"}
        (await http.post("/handle-utterance", json=said)).raise_for_status()
        async with asyncio.timeout(60):
            while "-12-04" not in (await http.get("/memory/earlier")).text:
                await asyncio.sleep(0.1)


async def test_a_caller_who_says_nothing_is_asked_and_then_told_goodbye(site: Site) -> None:  # V2, F40
    def soon_silent(document: dict[str, Any]) -> None:
        document["mediaConfig"]["audio"]["userInteractionTimeout"] = 1

    site.publish(soon_silent)
    script = Script(
        (
            when("user: /start", Say("Buongiorno", 200)),
            when("in a row", Say("La saluto.", 200), UseTool("end_call")),
            Reaction(
                (Say("È ancora lì?", 200),), when="system: The caller has said nothing for 1", once=False
            ),
        )
    )
    async with live_call(site, script) as call:
        assert await call.call.closed(15) == 1000
        await call.until(lambda: {"subtype": "conversation_closed"} in call.happenings())
    assert len(call.told("system")) == 3
    reported = [happened for happened in call.happenings() if happened["subtype"] == "reported"]
    assert reported == [{"subtype": "reported", "text": "no_utterance"}] * 3
    assert call.happenings()[-2]["reason"] == "bot_hung_up"


async def test_a_blocked_caller_starts_no_conversation(site: Site) -> None:  # V3
    before = len(site.requests())
    async with line_of(site, Script(), phone=BLOCKED) as (line, model, outside, _):
        await line.closed(5)
        assert line.playout.heard == []
        assert model.sessions == []
        assert outside.told == []
    assert site.logged("call_blocked")[-1]["check"] == "blocked"
    assert len(site.requests()) == before


async def item_of(call: LiveCall, text: str) -> int:
    """The number of the item in which the model has said this, once it has."""

    def found() -> list[str]:
        said = call.session.sent("response.output_audio_transcript.done")
        return [str(event.fields["item_id"]) for event in said if event.fields["transcript"] == text]

    await call.until(lambda: found() != [])
    return item_number(found()[-1])
