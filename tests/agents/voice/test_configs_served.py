"""The three configs on the phone: `voice serve` as a process, a business over HTTP, a model and callers.

Each runs as its users wrote it, where that is at hand, else in the words of the shipped example.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from agents.voice.testing.answer import Pace
from agents.voice.testing.fake_twilio import FakeTwilioCall
from agents.voice.testing.realtime_session import RealtimeSession
from agents.voice.testing.script import Say, Script, Step, UseTool
from agents.voice.testing.sockets import eventually
from tests.agents.voice.config.original_configs import HAS_ORIGINALS, example, original
from tests.agents.voice.served_configs import Business, HttpCall, ServedConfig

pytestmark = pytest.mark.anyio

PHONE = "+33612345678"
IN_QUERY = "%2B33612345678"
LASTS_MS = 300
MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z")


def _running(kind: str, factory: pytest.TempPathFactory) -> Iterator[ServedConfig]:
    config = original(kind) if HAS_ORIGINALS else example(kind)
    with Business().open() as business:
        yield from _served(ServedConfig(config, business, factory.mktemp(kind)))


def _served(process: ServedConfig) -> Iterator[ServedConfig]:
    with process.running():
        yield process


@pytest.fixture(scope="module")
def restaurant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedConfig]:
    yield from _running("restaurant", tmp_path_factory)


@pytest.fixture(scope="module")
def switchboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedConfig]:
    yield from _running("switchboard", tmp_path_factory)


@pytest.fixture(scope="module")
def medical(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedConfig]:
    yield from _running("medical", tmp_path_factory)


@dataclass
class Talk:
    """One call that is on. What the model says lasts as long, whatever it is."""

    process: ServedConfig
    line: FakeTwilioCall
    session: RealtimeSession

    def heard(self) -> list[str]:
        """What the caller heard to its end, in order."""
        self.line.playout.advance(asyncio.get_running_loop().time())
        spoken = [item for item in self.session.conversation.items if item.role == "assistant"]
        texts = {int(item.item_id.rpartition("_")[2]): item.text for item in spoken}
        playout = self.line.playout
        begun = dict.fromkeys(each.item for each in playout.heard if each.item is not None)
        return [texts[number] for number in begun if playout.heard_ms(number) >= LASTS_MS]

    async def hears(self, text: str) -> None:
        """Wait until the caller has heard this, and the line has said so."""

        def all_told() -> bool:
            line, now = self.line, asyncio.get_running_loop().time()
            is_played = text in self.heard() and line.playout.waiting_ms(now) == 0
            return is_played and line.received[-1].event == "mark" and not line.playout.reached

        await eventually(all_told, 10)

    def tool_answers(self) -> list[str]:
        items = [each.fields["item"] for each in self.session.received("conversation.item.create")]
        return [item["output"] for item in items if item["type"] == "function_call_output"]

    async def over(self) -> list[HttpCall]:
        """Wait for the end of the call. Returns what the business was asked."""
        await self.line.closed(10)
        assert self.line.mistakes == []
        assert self.session.errors == []
        return await self.process.told("PATCH", "/api/calls")


def says(text: str) -> Say:
    return Say(text, LASTS_MS)


@asynccontextmanager
async def talk(process: ServedConfig, *steps: Step | list[Step]) -> AsyncGenerator[Talk]:
    script = Script.of(*steps)
    async with (
        process.model(script, pace=Pace(transcription_ms=5)) as model,
        await process.dial(PHONE) as line,
    ):
        yield Talk(process, line, await model.session())


def nameless(command: Mapping[str, Any]) -> dict[str, Any]:
    """Without the names that count the audio sent before."""
    fields = {name: value for name, value in command.items() if name not in ("type", "event_id")}
    if "item" in fields:
        fields["item"] = {name: value for name, value in fields["item"].items() if name != "id"}
    return fields


def timeless(calls: list[HttpCall]) -> list[HttpCall]:
    """With `<time>` for moments and `<seconds>` for a duration, which are checked to be such."""
    return [(method, address, _timeless(body)) for method, address, body in calls]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        seconds = value.get("durationSec")
        assert seconds is None or (type(seconds) is int and 0 <= seconds < 60)
        named = {name: _timeless(member) for name, member in value.items()}
        return named if seconds is None else {**named, "durationSec": "<seconds>"}
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    return "<time>" if isinstance(value, str) and MOMENT.fullmatch(value) else value


def said(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content, "timestamp": "<time>"} for role, content in turns]


SESSION = {
    "systemPrompt": "Take orders for the house.",
    "tools": [{"type": "function", "name": "confirm_order", "parameters": {"type": "object"}}],
    "voice": "coral",
    "itemMap": {"3": {"id": "dish-3", "name": "Margherita"}},
    "customerContext": {"id": "cust-1", "firstName": "Ada", "totalOrders": 12},
}
RESTAURANT = {
    "GET /api/blocked-phones/check": (200, {"blocked": False}),
    "GET /api/ai": (200, SESSION),
    "POST /api/calls": (201, {"id": "record-1"}),
    "PATCH /api/calls": (204, None),
    "POST /api/messages": (201, {"id": "message-1"}),
}


class TestRestaurant:
    def opening(self, process: ServedConfig) -> list[HttpCall]:
        agent_id = process.config["agent"]["id"]
        record = {
            "restaurantId": agent_id,
            "callerNumber": PHONE,
            "customerId": "cust-1",
            "startedAt": "<time>",
        }
        return [
            ("GET", f"/api/blocked-phones/check?restaurantId={agent_id}&phone={IN_QUERY}", None),
            ("GET", f"/api/ai?restaurantId={agent_id}&callerPhone={IN_QUERY}", None),
            ("POST", "/api/calls", record),
        ]

    async def test_an_order_is_placed(self, restaurant: ServedConfig) -> None:  # V2, V4-V6, V10
        available = {"available": True, "estimatedTime": "19:30", "estimatedTimeISO": "2026-01-15T18:30:00Z"}
        replies = {"POST /api/availability/check": (200, available), "POST /api/orders": (201, {"id": "o-9"})}
        restaurant.business.opens(RESTAURANT | replies)
        items = [{"id": 3, "quantity": 2, "unit_price": 9.5}]
        async with talk(
            restaurant,
            says("Welcome back, Ada!"),
            UseTool("check_availability", {"mode": "pickup", "requested_time": "19:30"}),
            UseTool("confirm_order", {"order_type": "pickup", "items": items}),
            [says("Ready at half past seven. Goodbye!"), UseTool("end_call")],
        ) as call:
            await call.hears("Welcome back, Ada!")
            call.line.say("Two margheritas please", 800)
            calls = await call.over()
            assert call.heard() == ["Welcome back, Ada!", "Ready at half past seven. Goodbye!"]
            assert '"heure_estimee":"19:30"' in call.tool_answers()[1]
            assert call.session.settings.wire["instructions"] == "Take orders for the house."
        agent_id = restaurant.config["agent"]["id"]
        turns = said(
            ("assistant", "Welcome back, Ada!"),
            ("user", "Two margheritas please"),
            ("assistant", "Ready at half past seven. Goodbye!"),
        )
        assert timeless(calls) == [
            *self.opening(restaurant),
            (
                "POST",
                "/api/availability/check",
                {"restaurantId": agent_id, "mode": "pickup", "requestedTime": "19:30"},
            ),
            (
                "POST",
                "/api/orders",
                {
                    "restaurantId": agent_id,
                    "callId": "record-1",
                    "customerId": "cust-1",
                    "customerPhone": PHONE,
                    "total": 19.0,
                    "orderType": "pickup",
                    "estimatedReadyAt": "2026-01-15T18:30:00Z",
                    "items": [
                        {
                            "menuItemId": "dish-3",
                            "name": "Margherita",
                            "quantity": 2,
                            "unitPrice": 9.5,
                            "totalPrice": 19.0,
                            "selectedOptions": [],
                        }
                    ],
                },
            ),
            ended("order_placed", turns),
        ]

    async def test_a_recorded_call_replays_as_it_was(self, restaurant: ServedConfig) -> None:  # V15
        unreachable = {"GET /api/orders/status": (503, None)}
        restaurant.business.opens(RESTAURANT | unreachable)
        async with talk(
            restaurant,
            says("Welcome back, Ada!"),
            UseTool("check_order_status"),
            [says("Nobody knows. Goodbye!"), UseTool("end_call")],
        ) as call:
            await call.hears("Welcome back, Ada!")
            call.line.say("Where is my order", 800)
            calls = await call.over()
            asked = [(command.kind, command.fields) for command in call.session.commands]
        replayed = await restaurant.replayed(call.line)
        http = [line["message"] for line in replayed if line["to"] == "http"]
        base_url = restaurant.config["base_url"]
        again = [(each["method"], each["url"].removeprefix(base_url), each["body"]) for each in http]
        assert timeless(again) == timeless(calls)
        told = [line["message"] for line in replayed if line["to"] == "model"]
        assert told.pop() == "(closed)"
        assert [(message["type"], nameless(message)) for message in told] == [
            (kind, nameless(fields)) for kind, fields in asked
        ]

    async def test_a_table_is_reserved(self, restaurant: ServedConfig) -> None:  # V5, V10
        replies = {
            "POST /api/availability/check": (
                200,
                {"estimatedTime": "20:00", "estimatedTimeISO": "2026-01-15T19:00:00Z"},
            ),
            "POST /api/reservations": (201, {"id": "table-4"}),
        }
        restaurant.business.opens(RESTAURANT | replies)
        booking = {"customer_name": "Ada", "party_size": 4, "reservation_time": "20:00"}
        async with talk(
            restaurant,
            says("Welcome back, Ada!"),
            UseTool("check_availability", {"mode": "reservation", "party_size": 4}),
            UseTool("confirm_reservation", booking),
            says("Your table is waiting."),
        ) as call:
            await call.hears("Welcome back, Ada!")
            call.line.say("A table for four", 800)
            await call.hears("Your table is waiting.")
            await call.line.hang_up()
            calls = await call.over()
        agent_id = restaurant.config["agent"]["id"]
        turns = said(
            ("assistant", "Welcome back, Ada!"),
            ("user", "A table for four"),
            ("assistant", "Your table is waiting."),
        )
        assert timeless(calls) == [
            *self.opening(restaurant),
            (
                "POST",
                "/api/availability/check",
                {"restaurantId": agent_id, "mode": "reservation", "partySize": 4},
            ),
            (
                "POST",
                "/api/reservations",
                {
                    "restaurantId": agent_id,
                    "callId": "record-1",
                    "customerId": "cust-1",
                    "customerName": "Ada",
                    "customerPhone": PHONE,
                    "partySize": 4,
                    "reservationTime": "2026-01-15T19:00:00Z",
                    "status": "confirmed",
                },
            ),
            ended("reservation_placed", turns),
        ]

    async def test_an_order_is_looked_up_before_it_is_cancelled(
        self, restaurant: ServedConfig
    ) -> None:  # V7, V9
        orders = [
            {"id": "o-1", "orderNumber": 41, "status": "delivered"},
            {"id": "o-2", "orderNumber": 42, "status": "pending"},
        ]
        replies = {"GET /api/orders/status": (200, {"orders": orders}), "PATCH /api/orders": (204, None)}
        restaurant.business.opens(RESTAURANT | replies)
        async with talk(
            restaurant,
            [UseTool("cancel_order", {"order_number": 41})],
            [UseTool("cancel_order", {"order_number": 42})],
            [says("Cancelled. Goodbye!"), UseTool("end_call")],
        ) as call:
            calls = await call.over()
            refused, cancelled, _ = call.tool_answers()
            assert '"success":false' in refused
            assert '"success":true' in cancelled
            assert call.heard() == ["Cancelled. Goodbye!"]
        lookup = f"/api/orders/status?restaurantId={restaurant.config['agent']['id']}&phone={IN_QUERY}"
        *before, message, end = timeless(calls)
        assert before == [
            *self.opening(restaurant),
            ("GET", lookup, None),
            ("GET", lookup, None),
            ("PATCH", "/api/orders", {"id": "o-2", "status": "cancelled"}),
        ]
        assert message[:2] == ("POST", "/api/messages")
        assert message[2]["content"].endswith(": Cancelled. Goodbye!")
        assert end == ended("info_only", said(("assistant", "Cancelled. Goodbye!")))

    async def test_a_blocked_caller_hears_nothing_and_leaves_nothing(
        self, restaurant: ServedConfig
    ) -> None:  # V2, V3
        restaurant.business.opens(RESTAURANT | {"GET /api/blocked-phones/check": (200, {"blocked": True})})
        async with restaurant.model(Script.of(says("Hello"))) as model:
            async with await restaurant.dial(PHONE) as line:
                await line.closed(10)
                assert line.playout.heard == []
            assert model.connections == []
        assert restaurant.business.calls == self.opening(restaurant)[:1]

    async def test_without_a_session_the_caller_hears_an_apology(
        self, restaurant: ServedConfig
    ) -> None:  # V2
        restaurant.business.opens(RESTAURANT | {"GET /api/ai": (503, {"detail": "down"})})
        async with talk(restaurant, says("We are sorry.")) as call:
            await call.line.closed(10)
            assert call.heard() == ["We are sorry."]
        assert restaurant.business.calls == self.opening(restaurant)[:2]


def ended(outcome: str, turns: list[dict[str, str]]) -> HttpCall:
    body = {
        "id": "record-1",
        "endedAt": "<time>",
        "durationSec": "<seconds>",
        "outcome": outcome,
        "transcript": turns,
    }
    return ("PATCH", "/api/calls", body)


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
            assert session["instructions"] == switchboard.config["session"]["instructions"]
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
        assert medical.business.calls == [
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
            ("PATCH", "/api/appointments/a%2F0", {"status": "cancelled"}),
        ]
        # This config tells nobody what its calls come to: the log does.
        [outcome] = await medical.logged("call_outcome")
        assert (outcome["outcome"], outcome["flags"]) == ("appointment_booked", ["appointment_booked"])
        assert PHONE.lstrip("+") not in medical.log()
