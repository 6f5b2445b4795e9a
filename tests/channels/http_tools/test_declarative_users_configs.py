"""The tools of configs that users have, unchanged, against an API that answers from a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest
from pydantic import TypeAdapter

from adapters.outbound.fake import Answer, RecordedCall, ScriptedOutbound
from channels.http_tools.body_builders import default_builders
from channels.http_tools.documents import BuiltinTool, HttpTool, LifecycleCall, ToolConfig, check_builders
from channels.http_tools.expressions import Condition
from channels.http_tools.http_calls import HttpCaller
from channels.http_tools.json_paths import JsonPath
from channels.http_tools.scope import Scope
from channels.http_tools.tools import CallContext, ToolExecutor
from flow_engine.ports.outbound import OutboundReply
from flow_engine.values import JsonValue
from tests.channels.voice.config.original_configs import original

pytestmark = pytest.mark.anyio

TOOLS: TypeAdapter[dict[str, ToolConfig]] = TypeAdapter(dict[str, ToolConfig])
API = "http://localhost:3000/api"
CALLER = "+33612345678"
NOW = datetime(2026, 11, 20, 18, 0, tzinfo=UTC)


class Agent:
    """One call with one of the configs."""

    def __init__(self, kind: str, answers: Mapping[str, Sequence[Answer]], **ctx: JsonValue) -> None:
        config = original(kind)
        self.outbound = ScriptedOutbound(answers)
        self.context = CallContext(
            ctx={"agent_id": config["agent"]["id"], "caller_phone": CALLER, "call_id": "c-1", **ctx},
            agent=config["agent"],
            root={"base_url": config["base_url"]},
            specials=lambda: {"caller_phone": CALLER, "now_iso": "2026-11-20T18:00:00Z"},
        )
        self.executor = ToolExecutor(
            TOOLS.validate_python(config["tools"]),
            HttpCaller(self.outbound, {}),
            default_builders(lambda: NOW),
        )
        self.hung_up = False

    def hang_up(self) -> None:
        self.hung_up = True

    def transfer(self, target: str) -> None:
        raise AssertionError("none of the configs transfers a call by itself")

    async def run(self, name: str, **arguments: JsonValue) -> JsonValue:
        return await self.executor.run(name, json.dumps(arguments), self.context, self)

    @property
    def last(self) -> RecordedCall:
        return self.outbound.calls[-1]


def ok(value: JsonValue) -> list[Answer]:
    return [OutboundReply(200, json.dumps(value).encode())]


@pytest.mark.parametrize(("kind", "tools"), [("restaurant", 11), ("switchboard", 3), ("medical", 5)])
def test_every_tool_is_read(kind: str, tools: int) -> None:  # V1
    read = TOOLS.validate_python(original(kind)["tools"])
    assert len(read) == tools
    assert isinstance(read["end_call"], BuiltinTool)
    assert sum(isinstance(tool, HttpTool) for tool in read.values()) == tools - 1
    assert check_builders(original(kind), default_builders(lambda: NOW)) == []


def test_the_calls_conditions_and_paths_around_the_tools_are_read() -> None:  # V5, V9
    config = original("restaurant")
    lifecycle = config["lifecycle"]
    calls = {
        name: LifecycleCall.model_validate(lifecycle[name]) for name in ("on_start", "on_end", "on_no_action")
    }
    condition = calls["on_no_action"].condition
    assert condition is not None
    assert condition.holds(Scope(ctx={"had_conversation": True}))
    assert not condition.holds(Scope(ctx={"had_conversation": True, "order_placed": True}))
    assert not condition.holds(Scope())
    block_if = Condition.parse(config["pre_call_checks"][0]["block_if"])
    assert block_if.holds(Scope(), {"blocked": True})
    assert not block_if.holds(Scope(), {"blocked": False})
    assert not block_if.holds(Scope(), None)
    for path in config["session"]["response_mapping"]["ctx_init"].values():
        JsonPath.parse(path)


async def test_an_order_is_placed() -> None:  # V6, V10
    check: JsonValue = {
        "available": True,
        "estimatedTime": "20:30",
        "estimatedTimeISO": "2026-11-20T19:30:00Z",
    }
    agent = Agent(
        "restaurant",
        {f"{API}/availability/check": ok(check), f"{API}/orders": ok({"id": "o-1"})},
        item_map={"3": {"id": "uuid-3", "name": "Margherita"}},
    )
    assert await agent.run("check_availability", mode="pickup", party_size=2) == check
    assert agent.last.json() == {"restaurantId": agent.context.agent["id"], "mode": "pickup", "partySize": 2}
    answer = await agent.run(
        "confirm_order", order_type="pickup", total=9.5, items=[{"id": 3, "quantity": 1, "unit_price": 9.5}]
    )
    assert isinstance(answer, dict)
    assert (answer["success"], answer["order_id"], answer["heure_estimee"]) == (True, "o-1", "20:30")
    assert agent.last.json() == {
        "restaurantId": agent.context.agent["id"],
        "callId": "c-1",
        "customerPhone": CALLER,
        "total": 9.5,
        "orderType": "pickup",
        "estimatedReadyAt": "2026-11-20T19:30:00Z",
        "items": [
            {
                "menuItemId": "uuid-3",
                "name": "Margherita",
                "quantity": 1,
                "unitPrice": 9.5,
                "totalPrice": 9.5,
                "selectedOptions": [],
            }
        ],
    }
    assert agent.context.ctx["order_placed"] is True


async def test_a_table_is_reserved() -> None:  # V6, V10
    agent = Agent("restaurant", {f"{API}/reservations": ok({"id": "r-1"})}, customer_id="cu-1")
    answer = await agent.run(
        "confirm_reservation", customer_name="Jean", party_size=4, reservation_time="20:00"
    )
    assert isinstance(answer, dict)
    assert answer["reservation_id"] == "r-1"
    assert "heure" not in answer
    body = agent.last.json()
    assert isinstance(body, dict)
    assert (body["reservationTime"], body["status"]) == ("2026-11-20T19:00:00Z", "confirmed")
    assert agent.context.ctx["reservation_placed"] is True


@pytest.mark.parametrize(
    ("number", "status", "success"),
    [(42, "pending", True), ("42", "confirmed", True), (42, "delivered", False), (7, "pending", False)],
)
async def test_an_order_is_cancelled_only_where_it_may_be(
    number: JsonValue, status: str, success: bool
) -> None:  # V7
    orders: JsonValue = {"orders": [{"orderNumber": 42, "id": "uuid-42", "status": status}]}
    agent_id = original("restaurant")["agent"]["id"]
    agent = Agent(
        "restaurant",
        {
            f"{API}/orders/status?restaurantId={agent_id}&phone=%2B33612345678": ok(orders),
            f"{API}/orders": ok({}),
        },
    )
    answer = await agent.run("cancel_order", order_number=number)
    assert isinstance(answer, dict)
    assert answer["success"] is success
    assert [call.method for call in agent.outbound.calls] == (["GET", "PATCH"] if success else ["GET"])
    if success:
        assert agent.last.json() == {"id": "uuid-42", "status": "cancelled"}


async def test_a_failing_lookup_gives_what_the_config_says() -> None:  # V6
    agent_id = original("restaurant")["agent"]["id"]
    url = f"{API}/reservations/lookup?restaurantId={agent_id}&phone=%2B33700000000"
    agent = Agent("restaurant", {url: [OutboundReply(500, b"")]})
    assert await agent.run("lookup_reservation", customer_phone="+33700000000") == {
        "found": False,
        "reservations": [],
    }


async def test_an_appointment_is_cancelled_by_its_segment() -> None:  # V8
    base = original("medical")["base_url"]
    agent = Agent("medical", {f"{base}/api/appointments/..%2Fa%3Fb": ok({})})
    answer = await agent.run("cancel_appointment", appointment_id="../a?b")
    assert isinstance(answer, dict)
    assert answer["success"] is True


async def test_a_call_is_handed_on_and_ended() -> None:  # V6
    base = original("switchboard")["base_url"]
    agent = Agent("switchboard", {f"{base}/api/transfers": ok({"queued": True})})
    assert await agent.run("transfer_call", department="support") == {"queued": True}
    assert agent.last.json() == {"callId": "c-1", "department": "support"}
    assert agent.context.ctx["transferred"] is True
    assert await agent.run("end_call") == {"status": "ok"}
    assert agent.hung_up
