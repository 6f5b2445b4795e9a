"""Calls of a SIP server that a voice agent answers through the bridge, over real sockets (V12, V13)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from adapters.outbound.client import GuardedClient
from adapters.outbound.policy import AllowList
from channels.voice.sip_bridge import agent_stream as agent_stream_module
from channels.voice.sip_bridge import dialog as dialog_module
from channels.voice.sip_bridge import invites as invites_module
from channels.voice.sip_bridge import phone as phone_module
from channels.voice.sip_bridge.account import Account
from channels.voice.sip_bridge.phone import SipPhone
from channels.voice.sip_bridge.rtp import A_LAW_OF_MU, MU_LAW_OF_A
from channels.voice.testing.fake_realtime import FakeRealtime
from channels.voice.testing.script import Reaction, Say, Script, UseTool
from channels.voice.testing.signals import stretches
from channels.voice.testing.sockets import eventually
from tests.channels.voice.business_server import BusinessServer, business_server
from tests.channels.voice.leaks import nothing_left
from tests.channels.voice.served_agent import ServedAgent, served_agent, simple_config
from tests.channels.voice.sip_bridge.fake_trunk import FakeTrunk, TrunkCall

pytestmark = pytest.mark.anyio

TALK = Script(
    (
        Reaction((Say("Good evening", 300),), when="greet"),
        Reaction((Say("Goodbye", 300), UseTool("end_call")), when="user: goodbye"),
        Reaction((Say("Two", 300),)),
    )
)


@asynccontextmanager
async def bridged(
    trunk: FakeTrunk, port: int, password: str = "secret", *, domain: str = ""
) -> AsyncGenerator[SipPhone]:
    """A bridge of the account `desk`; afterwards nothing of it is left. `domain` names the trunk."""
    local = GuardedClient(AllowList.parse("127.0.0.1"))
    phone = SipPhone(Account(domain or trunk.domain, "desk", SecretStr(password)), port, local)
    running = asyncio.create_task(phone.run())
    try:
        yield phone
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await local.aclose()


@asynccontextmanager
async def desk(
    config: dict[str, Any] | None = None, **trunk: Any
) -> AsyncGenerator[tuple[FakeTrunk, SipPhone, ServedAgent, BusinessServer]]:
    async with (
        nothing_left(),
        FakeRealtime(TALK) as model,
        business_server() as business,
        served_agent(config or simple_config(), business, model.url) as agent,
        FakeTrunk({"desk": "secret"}, **trunk) as server,
        bridged(server, agent.port) as phone,
    ):
        await eventually(lambda: phone.is_registered)
        yield server, phone, agent, business
        await eventually(lambda: phone.live_calls == 0)


def played_ms(call: TrunkCall) -> list[float]:
    """Until where each of the agent's items was heard, in milliseconds, in order."""
    until: dict[int, float] = {}
    for each in stretches(bytes(call.heard)):
        if each.item is not None:
            until[each.item] = each.ends_ms
    return list(until.values())


async def test_a_call_is_answered_heard_and_ended_by_the_caller() -> None:  # V12, V13
    config = simple_config()
    config["lifecycle"]["on_start"]["body"] = {"from": "{{caller_phone}}", "to": "{{ctx.called_phone}}"}
    async with desk(config) as (trunk, phone, agent, business):
        assert trunk.registered.keys() == {"desk"}
        call = await trunk.call("desk")
        assert (call.statuses[0], call.statuses[-1]) == (100, 200)
        await eventually(lambda: played_ms(call) == [300])
        await call.say("two pizzas", 300)
        await eventually(lambda: played_ms(call) == [300, 300])
        await asyncio.sleep(0.1)  # its mark is on the way
        await call.hang_up()
        await eventually(lambda: business.count("/end") == 1)
        assert business.body("/start") == {"from": "+33612345678", "to": "desk"}
        said = business.body("/end")["said"]  # type: ignore[index, call-overload]
        assert [turn["content"] for turn in said] == ["Good evening", "two pizzas", "Two"]  # type: ignore[index, union-attr, call-overload]
        assert not call.is_over  # it was the caller who hung up
        await eventually(lambda: (phone.live_calls, agent.count("calls_active")) == (0, 0))


async def test_an_agent_that_hangs_up_ends_the_call_after_its_last_word() -> None:  # V12
    async with desk(deaf=1) as (trunk, _, _, business):  # each first REGISTER and BYE is lost
        call = await trunk.call("desk", caller="anonymous")
        await eventually(lambda: played_ms(call) == [300])
        await call.say("goodbye", 300)
        await eventually(lambda: call.is_over)
        assert played_ms(call)[-1] == 300
        assert business.count("/end") == 1


async def test_a_server_that_asks_who_ends_a_call_is_told_so_that_the_call_ends() -> None:  # V12
    async with desk(asks_at_end=True) as (trunk, _, _, _):
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        await call.say("goodbye", 300)
        await eventually(lambda: call.is_over)


async def test_a_line_that_has_a_law_only_is_understood() -> None:  # 24, V13
    async with desk() as (trunk, _, _, _):
        call = await trunk.call("desk", payload_types=(18, 8))
        assert "m=audio" in call.description
        assert " RTP/AVP 8 101" in call.description
        await eventually(lambda: len(call.packets) > 5)
        assert {packet[1] for packet in call.packets} == {8}
        await call.hang_up()


async def test_a_call_that_is_described_by_its_ack_is_answered_and_heard() -> None:  # V12
    async with desk() as (trunk, _, _, _):
        call = await trunk.call("desk", is_empty=True)
        assert call.statuses == [100, 200]
        assert " RTP/AVP 0 8 101" in call.description
        await eventually(lambda: played_ms(call) == [300])
        await call.say("two pizzas", 300)
        await eventually(lambda: played_ms(call) == [300, 300])
        await call.hang_up()


async def test_a_call_whose_ack_takes_nothing_of_what_was_offered_ends() -> None:  # V12, 24
    async with desk() as (trunk, _, _, _):
        call = await trunk.call("desk", payload_types=(18,), is_empty=True)
        await eventually(lambda: call.is_over)
        assert call.packets == []


async def test_a_call_whose_audio_moves_is_heard_and_hears_at_its_new_place() -> None:  # V12
    async with desk() as (trunk, _, _, _):
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        answer = await call.invite_again(2)
        assert answer.status == 200
        assert answer.first("contact").startswith("<sip:desk@")
        assert (answer.first("content-type"), "INVITE" in answer.first("allow")) == ("application/sdp", True)
        versions = [line.split()[1:3] for line in answer.body.decode().splitlines() if line.startswith("o=")]
        assert versions == [[call.description.split("m=audio ")[1].split()[0], "2"]]
        await call.say("two pizzas", 300)
        await eventually(lambda: played_ms(call) == [300, 300])
        assert (await call.invite_again(3, is_empty=True)).status == 200
        await call.say("two more", 300)
        await eventually(lambda: played_ms(call)[2:] == [300])
        await call.hang_up()


@pytest.mark.parametrize(
    ("direction", "answer"), [("sendonly", "recvonly"), ("inactive", "inactive"), ("recvonly", "sendonly")]
)
async def test_a_call_on_hold_is_answered_so_and_goes_on_afterwards(  # V12
    direction: str, answer: str
) -> None:
    async with desk() as (trunk, _, _, _):
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        assert f"a={answer}" in (await call.invite_again(2, direction=direction)).body.decode()
        known = len(call.packets)
        await asyncio.sleep(0.1)
        assert (len(call.packets) == known) == (direction != "recvonly")
        assert "a=sendrecv" in (await call.invite_again(3)).body.decode()
        await eventually(lambda: len(call.packets) > known + 3)
        await call.hang_up()


async def test_audio_that_an_update_moves_is_heard_and_hears_at_its_new_place() -> None:  # V12
    async with desk() as (trunk, _, _, _):
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        described = await trunk.described(call, (0,))
        trunk.send(call.address, "UPDATE", call.target, call, number=2, body=described)
        await eventually(lambda: "UPDATE" in call.answers)
        answer = call.answers["UPDATE"]
        assert (answer.status, b"a=sendrecv" in answer.body, "UPDATE" in answer.first("allow")) == (200, 1, 1)
        await call.say("two pizzas", 300)
        await eventually(lambda: played_ms(call) == [300, 300])
        await call.hang_up()


async def test_a_request_that_a_bridge_does_not_know_is_not_said_to_be_done() -> None:  # V12
    async with desk() as (trunk, _, _, _):
        call = await trunk.call("desk")
        trunk.send(call.address, "REFER", call.target, call, number=2)
        await eventually(lambda: "REFER" in call.answers)
        assert (call.answers["REFER"].status, call.is_over) == (405, False)
        await call.hang_up()


async def test_what_requires_an_extension_is_not_done_and_told_which_are_missing() -> None:  # V12
    required = [("Require", "100rel, precondition"), ("Require", "x-other")]
    async with desk() as (trunk, phone, _, business):
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        trunk.send(call.address, "INFO", call.target, call, number=2, headers=required)
        await eventually(lambda: "INFO" in call.answers)
        answer = call.answers["INFO"]
        assert (answer.status, [value for _, value in answer.all("unsupported")]) == (
            420,
            ["100rel, precondition", "x-other"],
        )
        await call.hang_up()
        await eventually(lambda: phone.live_calls == 0)
        call.call_id, call.to = "another", ""
        trunk.calls[call.call_id] = call
        trunk.send(call.address, "INVITE", call.target, call, number=1, headers=required)
        await eventually(lambda: call.statuses[-1] == 420)
        assert ";tag=" in call.to
        trunk.send(call.address, "ACK", call.target, call, number=1, headers=required)
        assert (phone.live_calls, business.count("/start")) == (0, 1)


async def test_a_request_that_was_overtaken_is_refused_and_one_that_comes_again_is_not(  # V12
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = list[str]()
    monkeypatch.setattr(agent_stream_module.AgentStream, "pressed", lambda _, key: keys.append(key))
    async with desk() as (trunk, _, _, _):
        call = await trunk.call("desk", number=5)
        await eventually(lambda: played_ms(call) == [300])
        statuses = list[int]()
        for number in (7, 6, 7):
            call.answers.clear()
            trunk.send(call.address, "INFO", call.target, call, number=number, body=b"Signal=5\r\n")
            await eventually(lambda: "INFO" in call.answers)
            statuses.append(call.answers["INFO"].status)
        assert (statuses, keys) == ([200, 500, 200], ["5"])
        moved = call.description
        assert (await call.invite_again(4)).status == 500
        assert call.description == moved
        await call.hang_up()


async def test_an_invite_that_the_next_one_overtakes_is_acknowledged_all_the_same(  # V12
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(invites_module, "AGAIN_S", 0.2)
    async with desk() as (trunk, _, _, _):
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        described = await trunk.described(call, (0,))
        for method in ("INVITE", "ACK"):
            for number in (2, 3):
                trunk.send(call.address, method, call.target, call, number=number, body=described)
        await asyncio.sleep(0.6)
        assert call.statuses == [100, 200, 200, 200]
        await call.hang_up()


async def test_audio_that_moves_to_what_is_not_spoken_stays_where_it_is() -> None:  # V12
    async with desk() as (trunk, phone, _, _):
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        assert (await call.invite_again(2, payload_types=(18,))).status == 488
        assert phone.live_calls == 1
        assert (await call.invite_again(3)).status == 200
        await call.hang_up()


def test_a_law_and_mu_law_stand_for_each_other() -> None:  # V13
    """Each has silence, full scale and all levels but the finest of the other."""
    assert (MU_LAW_OF_A[0xD5], A_LAW_OF_MU[0xFF]) == (0xFE, 0xD5)
    assert (MU_LAW_OF_A[0xAA], MU_LAW_OF_A[0x2A]) == (0x80, 0x00)
    assert sum(A_LAW_OF_MU[MU_LAW_OF_A[code]] == code for code in range(256)) > 220


async def test_keys_of_the_phone_reach_the_agent_once() -> None:  # V12
    async with (
        FakeRealtime(TALK) as model,
        business_server() as business,
        served_agent(simple_config(), business, model.url) as agent,
        FakeTrunk({"desk": "secret"}) as trunk,
        bridged(trunk, agent.port) as phone,
    ):
        await eventually(lambda: phone.is_registered)
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        call.press("4")
        call.press("2")
        await eventually(lambda: played_ms(call) == [300, 300])
        [keys] = [item.text for item in (await model.session()).conversation.items if "keypad" in item.text]
        assert keys == "(pressed on the keypad: 42)"
        await call.hang_up()


@pytest.mark.parametrize(
    ("types", "status"), [((18, 111), 488), ((0,), 486)], ids=["no G.711", "the agent drains"]
)
async def test_a_call_that_cannot_be_taken_is_refused(types: tuple[int, ...], status: int) -> None:  # V12, 24
    async with desk() as (trunk, _, agent, _):
        if status == 486:
            agent.app.admission.drain()
        call = await trunk.call("desk", payload_types=types)
        assert call.statuses == [100, status]


async def test_an_agent_that_is_away_is_said_to_be() -> None:  # V12
    async with FakeTrunk({"desk": "secret"}) as trunk, bridged(trunk, 9) as phone:
        await eventually(lambda: phone.is_registered)
        assert (await trunk.call("desk")).statuses == [100, 480]


async def test_a_key_in_an_info_that_comes_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:  # V12
    keys = list[str]()
    monkeypatch.setattr(agent_stream_module.AgentStream, "pressed", lambda _, key: keys.append(key))
    async with desk() as (trunk, _, _, _):
        call = await trunk.call("desk")
        for number in (10, 10, 11, 10):
            trunk.send(call.address, "INFO", call.target, call, number=number, body=b"Signal=5\r\n")
        await eventually(lambda: trunk.done.get(call.call_id, []).count("INFO") == 4)
        await call.hang_up()
    assert keys == ["5", "5"]


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b"Signal= 7\r\nDuration= 160\r\n", "7"),
        (b"Duration=160\r\nsignal=*", "*"),
        (b"Signal=10\r\n", "*"),
        (b"Signal=11\r\nDuration=160\r\n", "#"),
        (b"Signal=16\r\n", None),  # the hook, no key
        (b"#", "#"),
        (b"Duration=160\r\n", None),
        (b"<media_control/>", None),
    ],
)
def test_the_key_of_an_info_is_read_as_phones_write_it(body: bytes, key: str | None) -> None:  # V12
    assert dialog_module.key_in(body) == key


async def test_a_refusal_comes_again_until_it_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:  # V12
    monkeypatch.setattr(invites_module, "AGAIN_S", 0.01)
    async with desk() as (trunk, phone, _, _):
        call = await trunk.call("desk", payload_types=(18,), ack=False)
        await eventually(lambda: call.statuses == [100, 488, 488, 488])
        trunk.send(call.address, "ACK", call.target, call, number=1)
        await eventually(lambda: phone.live_calls == 0)


async def test_what_comes_again_after_a_call_is_answered_as_before() -> None:  # V12
    async with desk() as (trunk, phone, _, business):
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        await call.hang_up()
        await eventually(lambda: phone.live_calls == 0)
        await call.hang_up()
        await eventually(lambda: trunk.done[call.call_id] == ["BYE", "BYE"])
        trunk.send(call.address, "INVITE", call.target, call, number=1)
        await eventually(lambda: call.statuses == [100, 200, 200])
        assert (phone.live_calls, business.count("/start")) == (0, 1)
        assert (await trunk.call("desk", call_id=call.call_id, number=100)).statuses == [100, 200]
        await trunk.calls[call.call_id].hang_up()


async def test_an_invite_of_a_call_that_is_not_known_any_more_begins_none() -> None:  # V12
    async with desk() as (trunk, phone, _, business):
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        await call.hang_up()
        await eventually(lambda: phone.live_calls == 0)
        call.call_id = "of-a-bridge-before"
        trunk.calls[call.call_id] = call
        assert (await call.invite_again(2)).status == 481
        assert (phone.live_calls, business.count("/start")) == (0, 1)


async def test_a_call_that_is_cancelled_while_its_agent_hangs_ends_at_once() -> None:  # V12
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    agent = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with (
        agent,
        FakeTrunk({"desk": "secret"}) as trunk,
        bridged(trunk, agent.sockets[0].getsockname()[1]) as phone,
    ):
        await eventually(lambda: phone.is_registered)
        ringing = asyncio.create_task(trunk.call("desk"))
        await eventually(lambda: any(call.statuses for call in trunk.calls.values()))
        [call] = trunk.calls.values()
        trunk.send(call.address, "CANCEL", call.target, call, number=1)
        assert (await ringing).statuses == [100, 487]


async def test_an_unexpected_failure_is_logged_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:  # V12
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(dialog_module, "RtpStream", broken)
    with capture_logs() as logged:
        async with desk() as (trunk, _, _, _):
            assert (await trunk.call("desk")).statuses == [100, 500]
    assert any(entry["event"] == "bug" for entry in logged)


async def test_a_wrong_password_is_told_and_tried_again_later_and_later(  # V13
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(phone_module, "RETRY_S", 0.01)
    monkeypatch.setattr(phone_module, "LONGEST_RETRY_S", 0.05)
    with capture_logs() as logged:
        async with FakeTrunk({"desk": "secret"}) as trunk, bridged(trunk, 9, "wr0ng") as phone:
            await eventually(lambda: trunk.refused >= 2 * 6)
            assert not phone.is_registered
    told = [entry for entry in logged if entry["event"] == "sip_not_registered"]
    assert "status 401" in told[0]["reason"]
    assert [entry["again_in_s"] for entry in told[:5]] == [0.01, 0.02, 0.04, 0.05, 0.05]
    assert "wr0ng" not in repr(logged)


@pytest.mark.parametrize(
    "server",
    [
        {"shortest_s": 600},
        {"challenges": ('Digest realm="here", nonce="x", algorithm=SHA-512-256', "Basic realm=here")},
    ],
    ids=["longer", "challenges"],
)
async def test_what_a_server_wants_of_a_registration_is_given(server: dict[str, Any]) -> None:  # V13
    async with FakeTrunk({"desk": "secret"}, **server) as trunk, bridged(trunk, 9) as phone:
        await eventually(lambda: phone.is_registered)
    assert (trunk.refused, trunk.registered) == (0, {})


async def test_a_server_that_has_moved_is_found_where_its_name_leads_now(  # V13
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(phone_module, "RETRY_S", 0.01)
    monkeypatch.setattr(phone_module, "AGAIN_S", 0.01)
    monkeypatch.setattr(phone_module, "MOST_TRIES", 3)
    monkeypatch.setattr(phone_module, "EXPIRES_S", 1)
    async with FakeTrunk({"desk": "secret"}) as before, FakeTrunk({"desk": "secret"}) as after:
        leads_to, port = before, int(before.domain.partition(":")[2])

        async def resolved(*_: object, **__: object) -> list[object]:
            host, at = leads_to.domain.split(":")
            return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (host, int(at)))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        async with bridged(before, 9, domain=f"sip.example:{port}") as phone:
            await eventually(lambda: phone.is_registered)
            leads_to = after
            before.is_away = True
            await eventually(lambda: after.registered.keys() == {"desk"})


async def test_a_bridge_that_ends_takes_its_calls_and_its_registration_with_it() -> None:  # V13
    async with (
        FakeRealtime(TALK) as model,
        business_server() as business,
        served_agent(simple_config(), business, model.url) as agent,
        FakeTrunk({"desk": "secret"}) as trunk,
    ):
        async with bridged(trunk, agent.port) as phone:
            await eventually(lambda: phone.is_registered)
            call = await trunk.call("desk")
            await eventually(lambda: played_ms(call) != [])
        assert call.is_over
        assert trunk.registered == {}
        await eventually(lambda: business.count("/end") == 1)


async def test_a_bridge_that_is_told_to_stop_takes_no_call_and_ends_after_those_it_has() -> None:  # V12, V13
    async with desk() as (trunk, phone, _, _):
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        address = trunk.registered["desk"]
        phone.stop()
        await eventually(lambda: trunk.registered == {})
        trunk.registered["desk"] = address  # a server that has not heard of it
        assert (await trunk.call("desk")).statuses == [480]
        await call.say("two pizzas", 300)
        await eventually(lambda: played_ms(call) == [300, 300])
        assert (call.is_over, phone.live_calls) == (False, 1)
        await call.hang_up()


async def test_a_bridge_that_is_told_to_stop_again_ends_its_calls_at_once() -> None:  # V12, V13
    async with desk() as (trunk, phone, _, business):
        call = await trunk.call("desk")
        await eventually(lambda: played_ms(call) == [300])
        phone.stop()
        phone.stop()
        await eventually(lambda: call.is_over)
        await eventually(lambda: business.count("/end") == 1)
