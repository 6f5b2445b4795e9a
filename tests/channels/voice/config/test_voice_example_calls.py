"""The three configs, each at work against a fake business: every HTTP call as it has to be made.

Each runs twice: as its users wrote it, where that is at hand, and in the words of the shipped example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from channels.voice.call.ports import Refused
from flow_engine.ports.outbound import OutboundReply
from flow_engine.values import JsonValue
from tests.channels.voice.config.original_configs import example, original
from tests.channels.voice.config.voice_scene import BEGIN_TEXT, PHONE, PHONE_IN_QUERY, Scene, scene

pytestmark = pytest.mark.anyio

Source = Callable[[str], dict[str, Any]]


@pytest.fixture(params=[original, example], ids=["original", "example"])
def source(request: pytest.FixtureRequest) -> Source:
    return request.param


TOOLS: list[JsonValue] = [
    {
        "type": "function",
        "name": name,
        "description": name,
        "parameters": {"type": "object", "properties": {}},
    }
    for name in ("check_availability", "confirm_order", "confirm_reservation", "cancel_order", "end_call")
]
MENU: JsonValue = {
    "3": {"id": "uuid-pizza", "name": "Margherita"},
    "7": {"id": "uuid-dough", "name": "Thick dough"},
}
KNOWN: dict[str, JsonValue] = {
    "systemPrompt": "You take orders.",
    "tools": TOOLS,
    "voice": "coral",
    "itemMap": MENU,
    "avgPrepTimeMin": 20,
    "deliveryEnabled": True,
    "customerContext": {"id": "cust-1", "firstName": "Ada", "totalOrders": 12},
}
ORDERS: JsonValue = {
    "orders": [
        {"id": "o-1", "orderNumber": 41, "status": "delivered"},
        {"id": "o-2", "orderNumber": 42, "status": "pending"},
    ]
}
AVAILABLE: JsonValue = {
    "available": True,
    "estimatedTime": "19:30",
    "estimatedTimeISO": "2026-01-15T18:30:00Z",
}


def restaurant(source: Source, **replies: Any) -> Scene:
    return scene(
        source("restaurant"),
        {
            "GET /api/blocked-phones/check": {"blocked": False},
            "GET /api/ai": KNOWN,
            "POST /api/calls": {"id": "record-1"},
            "PATCH /api/calls": {"ok": True},
            "POST /api/messages": {"ok": True},
            "POST /api/availability/check": AVAILABLE,
            "POST /api/orders": {"id": "order-9"},
            "PATCH /api/orders": {"ok": True},
            "GET /api/orders/status": ORDERS,
            "POST /api/reservations": {"id": "table-4"},
        }
        | replies,
    )


def text_of(call: Scene, *place: str, **values: object) -> str:
    """A text of the config with its placeholders filled as the test expects."""
    text: Any = call.config
    for part in place:
        text = text[part]
    for name, value in values.items():
        text = text.replace("{{" + name.replace("__", ".") + "}}", str(value))
    assert "{{" not in text
    return text


async def test_a_known_customer_of_the_restaurant_orders(source: Source) -> None:  # V2, V4, V5, V6, V10, V11
    call = restaurant(source)
    agent_id = call.config["agent"]["id"]

    settings = await call.begin()
    assert (settings.instructions, settings.voice) == ("You take orders.", "coral")
    assert settings.tools == tuple(TOOLS)
    assert call.business.taken() == [
        ("GET", f"/api/blocked-phones/check?restaurantId={agent_id}&phone={PHONE_IN_QUERY}", None),
        ("GET", f"/api/ai?restaurantId={agent_id}&callerPhone={PHONE_IN_QUERY}", None),
    ]

    greeting = await call.handler.started()
    assert greeting == text_of(
        call,
        "greeting",
        "known_customer",
        session__customerContext__firstName="Ada",
        session__customerContext__totalOrders=12,
    )
    assert call.business.taken() == [
        (
            "POST",
            "/api/calls",
            {
                "restaurantId": agent_id,
                "callerNumber": PHONE,
                "customerId": "cust-1",
                "startedAt": BEGIN_TEXT,
            },
        )
    ]

    await call.hear("A margherita to take away, please.", "At half past seven?")
    assert await call.tool("check_availability", mode="pickup", requested_time="19:30") == AVAILABLE
    items = [
        {
            "id": 3,
            "quantity": 2,
            "unit_price": 9.5,
            "selected_options": [
                {"name": "Size", "choice": "Large", "extra_price": 2},
                {"name": "Dough", "choice_id": 7, "extra_price": 0},
            ],
        }
    ]
    answer = await call.tool("confirm_order", order_type="pickup", total=23.0, items=items)
    assert answer == {
        "success": True,
        "order_id": "order-9",
        "message": text_of(call, "tools", "confirm_order", "on_success", "return", "message"),
        "heure_estimee": "19:30",
    }
    assert call.business.taken() == [
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
                "total": 23.0,
                "orderType": "pickup",
                "estimatedReadyAt": "2026-01-15T18:30:00Z",
                "items": [
                    {
                        "menuItemId": "uuid-pizza",
                        "name": "Margherita",
                        "quantity": 2,
                        "unitPrice": 9.5,
                        "totalPrice": 19.0,
                        "selectedOptions": [
                            {"name": "Size", "choice": "Large", "extra_price": 2},
                            {"name": "Dough", "choice": "Thick dough", "extra_price": 0},
                        ],
                    }
                ],
            },
        ),
    ]

    assert await call.tool("end_call") == {"status": "ok"}
    assert call.controls.told == [("hang_up",)]
    await call.end("agent_hung_up", seconds=95.4)
    assert call.business.taken() == [
        (
            "PATCH",
            "/api/calls",
            {
                "id": "record-1",
                "endedAt": "2026-01-15T18:01:35.400Z",
                "durationSec": 95,
                "outcome": "order_placed",
                "transcript": call.transcript(),
            },
        )
    ]


async def test_a_new_customer_reserves_a_table(source: Source) -> None:  # V4, V5, V10
    unknown = {name: value for name, value in KNOWN.items() if name not in {"customerContext", "voice"}}
    call = restaurant(source, **{"GET /api/ai": unknown, "POST /api/availability/check": {"available": True}})
    settings = await call.begin()
    assert settings.voice == call.config["openai"]["voice"]
    assert await call.handler.started() == text_of(call, "greeting", "unknown_customer")
    await call.tool("check_availability", mode="reservation", party_size=4, seating_preference="window")
    answer = await call.tool(
        "confirm_reservation", customer_name="Ada", party_size=4, reservation_time="20:00", notes="birthday"
    )
    assert answer == {
        "success": True,
        "reservation_id": "table-4",
        "message": text_of(call, "tools", "confirm_reservation", "on_success", "return", "message"),
    }
    await call.end()

    agent_id = call.config["agent"]["id"]
    assert call.business.taken()[2:] == [
        (
            "POST",
            "/api/calls",
            {"restaurantId": agent_id, "callerNumber": PHONE, "startedAt": BEGIN_TEXT},
        ),
        (
            "POST",
            "/api/availability/check",
            {"restaurantId": agent_id, "mode": "reservation", "partySize": 4, "seatingPreference": "window"},
        ),
        (
            "POST",
            "/api/reservations",
            {
                "restaurantId": agent_id,
                "callId": "record-1",
                "customerName": "Ada",
                "customerPhone": PHONE,
                "partySize": 4,
                "reservationTime": "2026-01-15T19:00:00Z",
                "status": "confirmed",
                "notes": "birthday",
            },
        ),
        (
            "PATCH",
            "/api/calls",
            {
                "id": "record-1",
                "endedAt": BEGIN_TEXT,
                "durationSec": 0,
                "outcome": "reservation_placed",
                "transcript": [],
            },
        ),
    ]


async def test_an_order_is_looked_up_before_it_is_cancelled(source: Source) -> None:  # V7, V9
    call = restaurant(source)
    await call.begin()
    await call.handler.started()
    call.business.taken()
    lookup = (
        "GET",
        f"/api/orders/status?restaurantId={call.config['agent']['id']}&phone={PHONE_IN_QUERY}",
        None,
    )
    steps = call.config["tools"]["cancel_order"]["pre_steps"]

    assert await call.tool("cancel_order", order_number="42") == {
        "success": True,
        "message": text_of(call, "tools", "cancel_order", "on_success", "return", "message"),
    }
    assert call.business.taken() == [
        lookup,
        ("PATCH", "/api/orders", {"id": "o-2", "status": "cancelled"}),
    ]
    assert await call.tool("cancel_order", order_number=41) == steps[1]["fail_return"]
    assert call.business.taken() == [lookup]
    assert await call.tool("cancel_order", order_number=43) == steps[0]["fail_return"]
    assert call.business.taken() == [lookup]


async def test_a_blocked_caller_gets_no_session_and_leaves_no_record(source: Source) -> None:  # V2, V3
    call = restaurant(source, **{"GET /api/blocked-phones/check": {"blocked": True}})
    assert await call.handler.open() == Refused(None)
    assert [method + address.partition("?")[0] for method, address, _ in call.business.taken()] == [
        "GET/api/blocked-phones/check"
    ]


async def test_a_call_that_came_to_nothing_leaves_a_message(source: Source) -> None:  # V5, V8
    call = restaurant(source)
    await call.begin()
    await call.handler.started()
    call.business.taken()
    said = [f"line {number}" for number in range(1, 9)]
    await call.hear(*said)
    await call.end(seconds=30)

    message, record = call.business.taken()
    content = call.config["lifecycle"]["on_no_action"]["body"]["content"]
    before, _, after = content.partition("{{transcript_summary}}")
    method, address, body = message
    assert (method, address) == ("POST", "/api/messages")
    assert isinstance(body, dict)
    written = body.pop("content")
    assert body == {
        "restaurantId": call.config["agent"]["id"],
        "callId": "record-1",
        "callerPhone": PHONE,
        "category": "info_request",
        "isUrgent": False,
    }
    assert isinstance(written, str)
    lines = written.removeprefix(before).removesuffix(after).split("\n")
    assert [line.partition(": ")[2] for line in lines] == said[-6:]
    assert len({line.partition(": ")[0] for line in lines}) == 2
    assert record == (
        "PATCH",
        "/api/calls",
        {
            "id": "record-1",
            "endedAt": "2026-01-15T18:00:30.000Z",
            "durationSec": 30,
            "outcome": "info_only",
            "transcript": call.transcript(),
        },
    )


async def test_a_call_without_a_word_is_abandoned_and_leaves_no_message(source: Source) -> None:  # V5
    call = restaurant(source)
    await call.begin()
    await call.handler.started()
    call.business.taken()
    await call.end()
    [(method, address, body)] = call.business.taken()
    assert (method, address) == ("PATCH", "/api/calls")
    assert isinstance(body, dict)
    assert (body["outcome"], body["transcript"]) == ("abandoned", [])


async def test_the_switchboard_takes_a_message_and_passes_calls_on(source: Source) -> None:  # V2, V4, V5, V6
    replies: dict[str, Any] = {
        "POST /api/calls": {"id": "record-1"},
        "PATCH /api/calls": None,
        "POST /api/transfers": {"queued": True},
        "POST /api/messages": {"id": "message-1"},
    }
    call = scene(source("switchboard"), replies)
    settings = await call.begin()
    assert call.business.taken() == []
    told: str = call.config["session"]["instructions"]
    assert settings.instructions == told.replace("{{agent.name}}", call.config["agent"]["name"])
    assert [tool["name"] for tool in settings.tools][:2] == ["transfer_call", "leave_message"]
    assert await call.handler.started() == call.config["greeting"]["unknown_customer"]
    await call.hear("An invoice is wrong.")
    assert await call.tool("leave_message", content="Call me back", caller_name="Ada") == {"id": "message-1"}
    assert await call.tool("transfer_call", department="accounts") == {"queued": True}
    await call.end("transferred", seconds=12)
    assert call.business.taken() == [
        ("POST", "/api/calls", {"callerNumber": PHONE, "startedAt": BEGIN_TEXT}),
        (
            "POST",
            "/api/messages",
            {
                "callId": "record-1",
                "callerName": "Ada",
                "callerPhone": PHONE,
                "content": "Call me back",
            },
        ),
        ("POST", "/api/transfers", {"callId": "record-1", "department": "accounts"}),
        (
            "PATCH",
            "/api/calls",
            {
                "id": "record-1",
                "endedAt": "2026-01-15T18:00:12.000Z",
                "durationSec": 12,
                "outcome": "transferred",
            },
        ),
    ]


async def test_a_patient_of_the_practice_books_and_cancels(source: Source) -> None:  # V2, V4, V6, V8
    replies: dict[str, Any] = {
        "GET /api/ai-config": {
            "systemPrompt": "You keep the calendar.",
            "tools": None,
            "patientContext": {"id": "p-1", "name": "Ada Lovelace"},
        },
        "POST /api/slots/check": {"slotId": "s-1", "free": True},
        "POST /api/appointments": OutboundReply(201, b'{"id": "a-1"}'),
        "PATCH /api/appointments/a%2F1": OutboundReply(204, b""),
    }
    call = scene(source("medical"), replies)
    settings = await call.begin()
    assert settings.voice == ("sage" if source is original else "marin")
    assert settings.tools == ()
    assert await call.handler.started() == text_of(
        call, "greeting", "known_customer", session__patientContext__name="Ada Lovelace"
    )
    await call.tool("check_availability", practitioner="Dr. A", date="2026-02-01", type="first visit")
    assert await call.tool("confirm_appointment", practitioner="Dr. A", type="first visit") == {"id": "a-1"}
    assert await call.tool("cancel_appointment", appointment_id="a/1") == {
        "success": True,
        "message": text_of(call, "tools", "cancel_appointment", "on_success", "return", "message"),
    }
    await call.end()
    agent_id = call.config["agent"]["id"]
    assert call.business.taken() == [
        ("GET", f"/api/ai-config?cabinetId={agent_id}&callerPhone={PHONE_IN_QUERY}", None),
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
        ("PATCH", "/api/appointments/a%2F1", {"status": "cancelled"}),
    ]
