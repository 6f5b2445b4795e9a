"""The restaurant on the phone: `voice serve` as a process, its API over HTTP, a model and callers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from channels.voice.testing.script import Script, UseTool
from tests.channels.voice.served_configs import HttpCall, ServedConfig
from tests.channels.voice.served_talk import (
    IN_QUERY,
    PHONE,
    nameless,
    said,
    says,
    served_config,
    talk,
    timeless,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def restaurant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedConfig]:
    with served_config("restaurant", tmp_path_factory.mktemp("restaurant")) as served:
        yield served


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
