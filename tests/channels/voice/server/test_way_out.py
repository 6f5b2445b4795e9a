"""A caller whose call has no model is not left in silence, and whoever looks after an agent can see it."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import httpx
import orjson
import pytest
from picows import WSMsgType
from structlog.testing import capture_logs

from channels.voice.carriers.call_control import caller_number
from channels.voice.carriers.carrier import SpeakAndDial
from channels.voice.carriers.twilio.carrier import HEADER, signature
from channels.voice.config.loader import ConfigRefused, load_config
from channels.voice.testing.fake_realtime import FakeRealtime, Fault
from channels.voice.testing.fake_twilio import FakeTwilioCall
from channels.voice.testing.script import Reaction, Script, UseTool
from channels.voice.testing.sockets import eventually
from tests.channels.voice.business_server import business_server
from tests.channels.voice.served_agent import CHECK, ServedAgent, served_agent, simple_config
from tests.channels.voice.server.front_desk import TOKEN, dial, open_desk, secret
from tests.ports import free_port

pytestmark = pytest.mark.anyio

CALL = {"CallSid": "CA1", "From": "+33612345678", "To": "+33123456789"}
WITHHELD = [
    "anonymous", "Anonymous", "RESTRICTED", "unavailable", "Private", "unknown", "+266696687", "", "  ",
    "client:ada", "client:+33612345678", "sip:anonymous@anonymous.invalid", "sip:+266696687@twilio.com",
    "Ada",
]  # fmt: skip


def verbs(reply: httpx.Response) -> list[tuple[str, str | None]]:
    return [(verb.tag, verb.text) for verb in ET.fromstring(reply.text)]


class TestTheEndOfAStream:
    async def test_is_asked_for_at_an_address_of_the_agent(self) -> None:  # 20
        async with open_desk(public_url="https://voice.example/r-1", twilio_auth_token=secret(TOKEN)) as desk:
            url = "https://voice.example/r-1/incoming-call"
            signed = {HEADER: signature(TOKEN, url, {name: [value] for name, value in CALL.items()})}
            reply = await desk.http.post("/incoming-call", data=CALL, headers=signed)
            connect = ET.fromstring(reply.text).find("Connect")
            assert connect is not None
            assert connect.get("action") == "https://voice.example/r-1/stream-ended"
            refused = await desk.http.post("/stream-ended", data=CALL, headers=signed)
            assert (refused.status_code, refused.json()["code"]) == (403, "signature_wrong")

    async def test_hangs_up_a_call_that_ended_as_calls_do(self) -> None:  # 20
        async with open_desk() as desk:
            assert verbs(await desk.http.post("/stream-ended", data=CALL)) == [("Hangup", None)]

    async def test_speaks_and_dials_for_a_call_without_a_model(self) -> None:  # 20
        async with open_desk() as desk:
            desk.answering.apologies["CA1"] = SpeakAndDial("A <moment>", "en-GB", "+390612345678")
            reply = await desk.http.post("/stream-ended", data=CALL)
            assert verbs(reply) == [("Say", "A <moment>"), ("Dial", "+390612345678")]
            desk.answering.apologies["CA1"] = SpeakAndDial("Sorry", "en-GB")
            assert verbs(await desk.http.post("/stream-ended", data=CALL)) == [("Say", "Sorry")]


async def _ended(agent: ServedAgent, **parameters: str) -> httpx.Response:
    """The stream of a call that its agent ends, and what the carrier asks for then."""
    call = FakeTwilioCall(agent.line_url, parameters=parameters)
    async with call:
        await eventually(lambda: not call.socket.is_open)
    return await agent.http.post("/stream-ended", data={"CallSid": call.call_sid})


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [
        (
            {"message": "One moment", "number": "+390612345678"},
            [("Say", "One moment"), ("Dial", "+390612345678")],
        ),
        ({"message": "We call back"}, [("Say", "We call back")]),
    ],
)
async def test_an_unreachable_model_is_said_in_words(  # 20, voice-9
    fallback: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    nowhere = f"ws://127.0.0.1:{free_port()}/v1/realtime"
    async with (
        business_server() as business,
        served_agent(simple_config(fallback=fallback), business, nowhere) as agent,
    ):
        assert verbs(await _ended(agent)) == expected


@pytest.mark.parametrize(
    ("on_block", "expected"),
    [({"on_block": "hangup"}, ("Hangup", None)), ({"message": "Not you."}, ("Say", "Not you."))],
)
async def test_a_blocked_caller_is_put_through_to_nobody_while_the_model_is_away(  # 20, V3
    on_block: dict[str, str], expected: tuple[str, str | None]
) -> None:
    check = {**CHECK, "on_block": "message", **on_block}
    config = simple_config(pre_call_checks=[check], fallback={"number": "+390612345678"})
    nowhere = f"ws://127.0.0.1:{free_port()}/v1/realtime"
    async with business_server() as business, served_agent(config, business, nowhere) as agent:
        business.answers["/check"] = {"blocked": True}
        assert verbs(await _ended(agent)) == [expected]
        assert business.count("/start") == 0


async def test_without_a_fallback_the_agent_apologises_in_its_language() -> None:  # 20
    async with (
        FakeRealtime(faults=[Fault("refuse", value=500)] * 4) as model,
        business_server() as business,
        served_agent(simple_config(), business, model.url) as agent,
    ):
        [(verb, words)] = verbs(await _ended(agent))
        assert verb == "Say"
        assert words


@pytest.mark.parametrize("number", ["sales", "sip:", "12", ""])
def test_a_fallback_that_cannot_be_called_is_refused_with_its_place(number: str) -> None:  # 20
    config = simple_config(fallback={"number": number})
    with pytest.raises(ConfigRefused) as caught:
        load_config(orjson.dumps(config), builders=())
    assert [problem.pointer for problem in caught.value.problems] == ["/fallback/number"]


def test_nor_does_a_flow_transfer_to_what_cannot_be_called() -> None:  # V1, V2
    flow = {"mode": "flow", "engine_url": "http://127.0.0.1:8080", "flow_id": "desk", "tag": "prod"}
    targets = {"transfers": {"desk": "sales", "till": "+390612345678"}, "transfer_to": "sip:"}
    config = simple_config(session={**flow, **targets})
    with pytest.raises(ConfigRefused) as caught:
        load_config(orjson.dumps(config), builders=())
    pointers = [problem.pointer for problem in caught.value.problems]
    assert pointers == ["/session/transfers/desk", "/session/transfer_to"]


@pytest.mark.parametrize("field", ["input_audio_format", "output_audio_format"])
@pytest.mark.parametrize("audio_format", ["pcm16", "g711_alaw"])
def test_a_format_that_the_line_cannot_carry_is_refused(
    field: str, audio_format: str
) -> None:  # 24, voice-10
    content = orjson.dumps(simple_config(openai={field: audio_format}))
    assert load_config(content, builders=()).config
    with pytest.raises(ConfigRefused) as caught:
        load_config(content, builders=(), audio_formats=("g711_ulaw",))
    [problem] = caught.value.problems
    assert problem.pointer == f"/openai/{field}"
    assert "g711_ulaw" in problem.message


@pytest.mark.parametrize("text", WITHHELD)
async def test_a_withheld_number_is_null_everywhere(text: str) -> None:  # 24, voice-4
    assert caller_number(text) is None
    async with open_desk() as desk:
        reply = await desk.http.post("/incoming-call", data={**CALL, "From": text})
        named = {each.get("name") for each in ET.fromstring(reply.text).iter("Parameter")}
        assert named == {"calledPhone", "callSid", "callId"}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("+33612345678", "+33612345678"),
        (" +33 6 12-34 ", "+3361234"),
        ("sip:+33612345678@pbx.example", "+33612345678"),
        ("tel:+33612345678", "+33612345678"),
        ("266696687", "266696687"),
    ],
)
def test_a_number_is_a_number(text: str, number: str) -> None:  # 24
    assert caller_number(text) == number


async def test_a_withheld_number_of_a_stream_reaches_nobody() -> None:  # 24, voice-4
    config = simple_config()
    config["lifecycle"]["on_start"]["body"] = {"phone": "{{caller_phone}}"}
    async with (
        FakeRealtime() as model,
        business_server() as business,
        served_agent(config, business, model.url) as agent,
    ):
        async with FakeTwilioCall(agent.line_url, parameters={"callerPhone": "Anonymous"}):
            await eventually(lambda: business.count("/start") == 1)
        assert business.body("/start") == {}


class TestTheLog:
    async def test_joins_the_offer_and_the_call(self) -> None:  # V14, voice-smaller
        config = simple_config()
        config["lifecycle"]["on_start"]["body"] = {
            "sid": "{{ctx.call_sid}}", "to": "{{ctx.called_phone}}", "shop": "{{ctx.parameters.shop}}",
        }  # fmt: skip
        async with FakeRealtime() as model, business_server() as business:
            with capture_logs() as logged:
                async with served_agent(config, business, model.url) as agent:
                    reply = await agent.http.post("/incoming-call", data=CALL)
                    found = ET.fromstring(reply.text).iter("Parameter")
                    sent = {each.get("name", ""): each.get("value", "") for each in found}
                    call = FakeTwilioCall(agent.line_url, parameters={**sent, "shop": "17"})
                    async with call:
                        await eventually(lambda: business.count("/start") == 1)
        assert business.body("/start") == {"sid": call.call_sid, "to": CALL["To"], "shop": "17"}
        events = {entry["event"]: entry for entry in logged}
        offered, began = events["call_offered"], events["call_began"]
        assert offered["call_id"] == began["call_id"]
        assert offered["call_sid"] == "CA1"
        assert (began["call_sid"], began["called"]) == (call.call_sid, CALL["To"])
        assert began["parameters"] == ["callSid", "calledPhone", "callerPhone", "shop"]
        assert CALL["From"].removeprefix("+") not in str(logged)
        assert "'17'" not in str(logged)

    async def test_tells_of_a_stream_with_a_wrong_start(self) -> None:  # V14
        async with FakeRealtime() as model, business_server() as business:
            with capture_logs() as logged:
                async with served_agent(simple_config(), business, model.url) as agent:
                    caller = await dial(agent.line_url)
                    media = b'{"mediaFormat":{"encoding":"audio/opus"}}'
                    caller.transport.send(WSMsgType.TEXT, b'{"event":"start","start":%b}' % media)
                    caller.transport.send(WSMsgType.TEXT, b'{"event":"start"}')
                    await eventually(lambda: any(e["event"] == "stream_not_started" for e in logged))
                    caller.transport.disconnect()
        told = [entry for entry in logged if entry["event"] == "stream_not_started"]
        assert [entry["log_level"] for entry in told] == ["warning"]
        assert "audio/x-mulaw" in told[0]["reason"]

    async def test_names_the_call_that_its_carrier_did_not_transfer(self) -> None:  # V14
        config = simple_config()
        config["session"]["tools"].append(
            {"type": "function", "name": "move", "description": "m", "parameters": {"type": "object"}}
        )
        config["tools"]["move"] = {"type": "builtin", "action": "transfer", "target": "+390212345678"}
        script = Script((Reaction((UseTool("move"),)),))
        async with FakeRealtime(script) as model, business_server() as business:
            with capture_logs() as logged:
                async with (
                    served_agent(config, business, model.url) as agent,
                    FakeTwilioCall(agent.line_url),
                ):
                    await eventually(lambda: any(e["event"] == "call_not_transferred" for e in logged))
        began, *_ = (entry for entry in logged if entry["event"] == "call_began")
        refused, *_ = (entry for entry in logged if entry["event"] == "call_not_transferred")
        assert (refused["agent_id"], refused["call_id"]) == ("a-1", began["call_id"])
        assert "FLOW_ENGINE_TWILIO_ACCOUNT_SID" in refused["reason"]
        assert "390212345678" not in str(refused)


class TestHealth:
    async def test_tells_a_missing_key(self) -> None:  # 20
        async with open_desk() as desk:
            reply = await desk.http.get("/healthz")
            assert (reply.status_code, reply.json()["status"]) == (200, "key_missing")
        for settings in ({"openai_api_key": secret("sk")}, {"realtime_url": "ws://127.0.0.1:9"}):
            async with open_desk(**settings) as desk:
                reply = await desk.http.get("/healthz")
                assert (reply.status_code, reply.json()["status"]) == (200, "ok")

    async def test_tells_draining(self) -> None:  # 20
        async with open_desk(openai_api_key=secret("sk")) as desk:
            await desk.http.post("/drain")
            reply = await desk.http.get("/healthz")
            assert reply.status_code == 503
            assert reply.json() == {"status": "draining", "liveCalls": 0, "draining": True}
