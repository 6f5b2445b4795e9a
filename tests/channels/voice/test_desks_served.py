"""The switchboard's and the practice's configs on the phone, as the restaurant's is in its own file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from channels.voice.testing.script import UseTool
from tests.channels.voice.served_configs import HttpCall, ServedConfig
from tests.channels.voice.served_talk import IN_QUERY, PHONE, says, served_config, talk, timeless

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def switchboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedConfig]:
    with served_config("switchboard", tmp_path_factory.mktemp("switchboard")) as served:
        yield served


@pytest.fixture(scope="module")
def medical(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedConfig]:
    with served_config("medical", tmp_path_factory.mktemp("medical")) as served:
        yield served


SWITCHBOARD = {
    "POST /api/calls": (201, {"id": "record-1"}),
    "PATCH /api/calls": (204, None),
    "POST /api/transfers": (202, {"queued": True}),
    "POST /api/messages": (201, {"id": "message-1"}),
}


class TestSwitchboard:
    OPENING = ("POST", "/api/calls", {"callerNumber": PHONE, "startedAt": "<time>"})

    def ended(self, outcome: str) -> HttpCall:
        body = {"id": "record-1", "endedAt": "<time>", "durationSec": "<seconds>", "outcome": outcome}
        return ("PATCH", "/api/calls", body)

    async def test_a_caller_is_transferred(self, switchboard: ServedConfig) -> None:  # V2, V5, V6
        switchboard.business.opens(SWITCHBOARD)
        transfer = UseTool("transfer_call", {"department": "support", "reason": "broken"})
        async with talk(
            switchboard,
            says("How can I help?"),
            [says("I put you through."), transfer],
            says("One moment."),
        ) as call:
            await call.hears("How can I help?")
            call.line.say("My device is broken", 800)
            await call.hears("One moment.")
            await call.line.hang_up()
            calls = await call.over()
            session = call.session.settings.wire
            name, told = switchboard.config["agent"]["name"], switchboard.config["session"]["instructions"]
            assert session["instructions"] == told.replace("{{agent.name}}", name)
            assert session["tools"] == switchboard.config["session"]["tools"]
            greeting = call.session.received("conversation.item.create")[0].fields["item"]["content"][0]
            assert greeting["text"] == switchboard.config["greeting"]["unknown_customer"]
        asked = {"callId": "record-1", "department": "support", "reason": "broken"}
        assert timeless(calls) == [
            self.OPENING,
            ("POST", "/api/transfers", asked),
            self.ended("transferred"),
        ]

    async def test_a_message_is_taken(self, switchboard: ServedConfig) -> None:  # V5, V6
        switchboard.business.opens(SWITCHBOARD | {"POST /api/transfers": (503, {"detail": "nobody there"})})
        message = {"department": "sales", "caller_name": "Ada", "content": "Call me back"}
        async with talk(
            switchboard,
            UseTool("transfer_call", {"department": "sales"}),
            UseTool("leave_message", message),
            [says("I passed it on. Goodbye!"), UseTool("end_call")],
        ) as call:
            calls = await call.over()
            assert call.heard() == ["I passed it on. Goodbye!"]
            assert call.tool_answers()[0] == '{"error":"the service answered with status 503"}'
        assert timeless(calls) == [
            self.OPENING,
            ("POST", "/api/transfers", {"callId": "record-1", "department": "sales"}),
            (
                "POST",
                "/api/messages",
                {
                    "callId": "record-1",
                    "department": "sales",
                    "callerName": "Ada",
                    "callerPhone": PHONE,
                    "content": "Call me back",
                },
            ),
            self.ended("message_left"),
        ]


class TestMedicalPractice:
    async def test_an_appointment_is_made(self, medical: ServedConfig) -> None:  # V2, V4, V6, V8, V14
        patient = {"id": "p-1", "name": "Ada Lovelace"}
        medical.business.opens(
            {
                "GET /api/ai-config": (
                    200,
                    {"systemPrompt": "Keep the calendar.", "patientContext": patient},
                ),
                "POST /api/slots/check": (200, {"slotId": "s-1", "free": True}),
                "POST /api/appointments": (201, {"id": "a-1"}),
                "PATCH /api/appointments/a%2F0": (204, None),
            }
        )
        visit = {"practitioner": "Dr. A", "type": "first visit"}
        async with talk(
            medical,
            says("Hello, Ada."),
            UseTool("check_availability", {**visit, "date": "2026-02-01"}),
            [UseTool("confirm_appointment", visit), UseTool("cancel_appointment", {"appointment_id": "a/0"})],
            [says("See you then. Goodbye!"), UseTool("end_call")],
        ) as call:
            await call.hears("Hello, Ada.")
            call.line.say("I want to come earlier", 800)
            await call.line.closed(10)
            assert call.heard() == ["Hello, Ada.", "See you then. Goodbye!"]
            # Two tools of one response have one answer.
            assert len(call.session.received("response.create")) == 3
            assert call.session.errors == []
        agent_id = medical.config["agent"]["id"]
        session, slots, *side_by_side = medical.business.calls
        assert [session, slots] == [
            ("GET", f"/api/ai-config?cabinetId={agent_id}&callerPhone={IN_QUERY}", None),
            (
                "POST",
                "/api/slots/check",
                {
                    "cabinetId": agent_id,
                    "practitioner": "Dr. A",
                    "requestedDate": "2026-02-01",
                    "consultationType": "first visit",
                },
            ),
        ]
        assert sorted(side_by_side, key=lambda call: call[:2]) == [
            ("PATCH", "/api/appointments/a%2F0", {"status": "cancelled"}),
            (
                "POST",
                "/api/appointments",
                {
                    "cabinetId": agent_id,
                    "patientId": "p-1",
                    "patientPhone": PHONE,
                    "practitioner": "Dr. A",
                    "slotId": "s-1",
                    "type": "first visit",
                },
            ),
        ]
        # This config tells nobody what its calls come to: the log does.
        [outcome] = await medical.logged("call_outcome")
        assert (outcome["outcome"], outcome["flags"]) == ("appointment_booked", ["appointment_booked"])
        assert PHONE.lstrip("+") not in medical.log()
