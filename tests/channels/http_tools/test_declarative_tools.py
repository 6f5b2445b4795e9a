"""The executor: its order, its answers, its permissions, its log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from structlog.testing import capture_logs

from adapters.models.tools import MOST_RESULT_CHARS, Approval, Arguments, Tool, ToolRegistry, Verdict
from adapters.outbound.fake import Answer, RecordedCall, ScriptedOutbound
from channels.http_tools.body_builders import BodyRefused, Builders, default_builders
from channels.http_tools.documents import HttpTool, ToolConfig
from channels.http_tools.http_calls import HttpCaller
from channels.http_tools.scope import Values
from channels.http_tools.tools import CallContext, ToolExecutor, http_tool
from flow_engine.ports.models import ToolCall
from flow_engine.ports.outbound import OutboundFailed, OutboundReply
from flow_engine.values import JsonValue

pytestmark = pytest.mark.anyio

TOOLS: TypeAdapter[dict[str, ToolConfig]] = TypeAdapter(dict[str, ToolConfig])
API = "https://api.example"
NOW = datetime(2026, 11, 20, 18, 0, tzinfo=UTC)
STATUS_URL = f"{API}/orders/status?phone=%2B33612345678"

CANCEL: dict[str, object] = {
    "type": "http",
    "method": "PATCH",
    "url": "{{base_url}}/orders",
    "pre_steps": [
        {
            "description": "Finds the order",
            "method": "GET",
            "url": "{{base_url}}/orders/status",
            "params": {"phone": "{{caller_phone}}"},
            "extract": {"target": "$.orders[?(@.number == {{args.number}})]", "count": "$.count"},
            "fail_if": "target == null",
            "fail_return": {"success": False, "error": "none of {{pre.count}}", "seen": "$.count"},
        },
        {
            "description": "Is it open",
            "condition": "pre.target.status not in ['pending', 'confirmed']",
            "fail_return": {"success": False, "error": "it is {{pre.target.status}}"},
        },
    ],
    "body": {"id": "{{pre.target.id}}", "status": "cancelled", "why": "{{args.why}}"},
    "store_in_ctx": {"cancelled": "$.id", "whole": "$"},
    "on_success_flags": ["order_cancelled"],
    "on_success": {
        "return": {"ok": True, "id": "$.id", "number": "{{args.number}}", "kept": "{{ctx.cancelled}}"}
    },
    "on_error": {"return": {"ok": False, "why": "{{error}}", "order": "{{pre.target.id}}"}},
}
FOUND: JsonValue = {
    "count": 2,
    "orders": [{"number": 41, "id": "a"}, {"number": 42, "id": "b", "status": "pending"}],
}


def reply(value: JsonValue, status: int = 200) -> OutboundReply:
    return OutboundReply(status, json.dumps(value).encode())


@dataclass
class Line:
    """Implements Actions by remembering."""

    done: list[str] = field(default_factory=list[str])

    def hang_up(self) -> None:
        self.done.append("hang up")

    def transfer(self, target: str) -> None:
        self.done.append(f"transfer {target}")


@dataclass
class Call:
    """One call with one config, and everything that came of it."""

    tools: Mapping[str, object]
    answers: Mapping[str, Sequence[Answer]] = field(default_factory=dict[str, Sequence[Answer]])
    builders: Builders = field(default_factory=lambda: default_builders(lambda: NOW))

    def __post_init__(self) -> None:
        self.outbound = ScriptedOutbound(self.answers)
        self.line = Line()
        self.context = CallContext(
            ctx={"agent_id": "a-1", "caller_phone": "+33612345678"},
            agent={"id": "a-1"},
            root={"base_url": API},
            specials=lambda: {"caller_phone": "+33612345678", "now_iso": "2026-11-20T18:00:00Z"},
        )
        caller = HttpCaller(self.outbound, {"agent_id": "a-1", "call_id": "c-1"})
        self.executor = ToolExecutor(TOOLS.validate_python(self.tools), caller, self.builders)

    async def run(self, name: str, arguments: str | Values = "{}") -> JsonValue:
        return await self.executor.run(name, arguments, self.context, self.line)

    def tool(self, name: str, parameters: Mapping[str, object] | None = None) -> Tool:
        """For the registry of an agent that writes."""
        declared = TOOLS.validate_python(self.tools)[name]
        assert isinstance(declared, HttpTool)
        return http_tool(name, declared, parameters or {"type": "object"}, self.outbound, self.context, {})

    @property
    def calls(self) -> list[RecordedCall]:
        return self.outbound.calls


def get(**more: object) -> dict[str, object]:
    return {"type": "http", "url": "{{base_url}}/x"} | more


class TestTheOrder:
    async def test_of_a_cancellation(self) -> None:  # V6, V7
        call = Call({"cancel": CANCEL}, {STATUS_URL: [reply(FOUND)], f"{API}/orders": [reply({"id": "b"})]})
        answer = await call.run("cancel", '{"number": "42"}')
        assert answer == {"ok": True, "id": "b", "number": "42", "kept": "b"}
        assert [(made.method, made.url) for made in call.calls] == [
            ("GET", STATUS_URL),
            ("PATCH", f"{API}/orders"),
        ]
        assert call.calls[1].json() == {"id": "b", "status": "cancelled"}
        assert call.context.ctx["cancelled"] == "b"
        assert call.context.ctx["whole"] == {"id": "b"}
        assert call.context.ctx["order_cancelled"] is True

    async def test_ends_where_fail_if_holds(self) -> None:  # V7
        call = Call({"cancel": CANCEL}, {STATUS_URL: [reply(FOUND)]})
        assert await call.run("cancel", {"number": 7}) == {"success": False, "error": "none of 2", "seen": 2}
        assert len(call.calls) == 1
        assert "order_cancelled" not in call.context.ctx

    async def test_ends_where_a_bare_condition_holds(self) -> None:  # V7
        call = Call({"cancel": CANCEL}, {STATUS_URL: [reply(FOUND)]})
        assert await call.run("cancel", {"number": 41}) == {"success": False, "error": "it is "}
        assert len(call.calls) == 1

    async def test_a_step_that_fails_without_an_answer_tells_what_it_was_for(self) -> None:  # V7
        tools = {
            "named": get(pre_steps=[{"condition": "true", "description": "Is it open"}]),
            "unnamed": get(pre_steps=[{"condition": "false"}, {"condition": "true"}]),
        }
        assert await Call(tools).run("named") == {"error": "Is it open"}
        assert await Call(tools).run("unnamed") == {"error": "step 2 before the call failed"}

    async def test_a_fetch_may_be_checked_by_a_condition_of_its_own(self) -> None:  # V7
        step = {
            "url": "{{base_url}}/s",
            "extract": {"open": "$.open"},
            "condition": "not open or $.full == true",
        }
        tools = {"t": get(pre_steps=[step | {"fail_return": "closed"}])}
        answers = {f"{API}/s": [reply({"open": True, "full": True})]}
        assert await Call(tools, answers).run("t") == "closed"

    async def test_later_steps_see_what_earlier_ones_found(self) -> None:  # V7
        steps = [
            {"url": "{{base_url}}/one", "extract": {"a": "$.a"}},
            {"url": "{{base_url}}/two/{{pre.a}}", "extract": {"b": "$.b"}},
        ]
        call = Call(
            {"t": get(pre_steps=steps, on_success={"return": ["{{pre.a}}", "{{pre.b}}"]})},
            {f"{API}/one": [reply({"a": 1})], f"{API}/two/1": [reply({"b": 2})], f"{API}/x": [reply(None)]},
        )
        assert await call.run("t") == [1, 2]

    async def test_what_a_step_found_is_gone_in_the_next_call(self) -> None:  # V7
        tools = {"cancel": CANCEL, "look": get(on_success={"return": {"seen": "{{pre.target}}", "ok": True}})}
        call = Call(
            tools,
            {STATUS_URL: [reply(FOUND)], f"{API}/orders": [reply({"id": "b"})], f"{API}/x": [reply(1)]},
        )
        await call.run("cancel", {"number": 42})
        assert await call.run("look") == {"ok": True}


class TestTheAnswer:
    async def test_is_the_reply_where_nothing_else_is_said(self) -> None:  # V6
        assert await Call({"t": get()}, {f"{API}/x": [reply([{"a": None}])]}).run("t") == [{"a": None}]

    async def test_is_the_beginning_of_a_long_reply_all_of_which_is_looked_into(self) -> None:  # V6
        long: JsonValue = {"rows": ["x" * 100] * 1_000, "count": 1_000}
        call = Call({"t": get(store_in_ctx={"n": "$.count"})}, {f"{API}/x": [reply(long)]})
        answer = await call.run("t")
        text = json.dumps(long, separators=(",", ":"))
        told = f"{text[:MOST_RESULT_CHARS]}… (cut: the first 50,000 of {len(text):,} characters)"
        assert answer == told
        assert call.context.ctx["n"] == 1_000

    async def test_of_a_failure_is_what_the_config_says(self) -> None:  # V6
        call = Call({"cancel": CANCEL}, {STATUS_URL: [reply(FOUND)], f"{API}/orders": [reply({}, 500)]})
        answer = await call.run("cancel", {"number": 42})
        assert answer == {"ok": False, "why": "the service answered with status 500", "order": "b"}
        assert "order_cancelled" not in call.context.ctx
        assert "cancelled" not in call.context.ctx

    @pytest.mark.parametrize("failure", [reply({}, 404), OutboundFailed("'api.example' broke off")])
    async def test_of_a_failing_step_is_that_of_a_failure(self, failure: Answer) -> None:  # V7
        answer = await Call({"cancel": CANCEL}, {STATUS_URL: [failure]}).run("cancel", {"number": 42})
        assert isinstance(answer, dict)
        assert answer["ok"] is False
        steps: list[object] = [{"url": "{{base_url}}/s"}]
        bare = await Call({"t": get(pre_steps=steps)}, {f"{API}/s": [failure]}).run("t")
        assert bare == {"error": answer["why"]}

    async def test_of_a_failure_is_the_reason_otherwise(self) -> None:  # V6
        answer = await Call({"t": get()}, {f"{API}/x": [reply({}, 503)]}).run("t")
        assert answer == {"error": "the service answered with status 503"}

    async def test_of_a_call_that_lacks_an_argument_names_it(self) -> None:  # V8
        tools = {"t": get(url="{{base_url}}/x/{{args.appointment_id}}")}
        assert await Call(tools).run("t") == {
            "error": "the request needs a value for {{args.appointment_id}}"
        }

    async def test_of_an_unknown_tool(self) -> None:  # V6
        assert await Call({}).run("dance") == {"error": "Fonction inconnue: dance"}

    @pytest.mark.parametrize(
        "arguments", ["{", "[]", "null", '"a"', "[" * 5000, '{"a": NaN}', '{"a": "\\ud800"}']
    )
    async def test_of_arguments_that_are_none(self, arguments: str) -> None:  # V6
        assert await Call({"t": get()}).run("t", arguments) == {"error": "the arguments are no JSON object"}

    @pytest.mark.parametrize("arguments", ["", "  ", "{}"])
    async def test_needs_no_arguments(self, arguments: str) -> None:  # V6
        assert await Call({"t": get()}, {f"{API}/x": [reply(1)]}).run("t", arguments) == 1

    @given(st.text(max_size=40), st.sampled_from(["cancel", "end", "nothing", "move"]))
    async def test_is_there_for_whatever_a_model_writes(self, arguments: str, name: str) -> None:  # V6
        tools = {
            "cancel": CANCEL,
            "end": {"type": "builtin", "action": "hangup"},
            "move": {"type": "builtin", "action": "transfer", "target": "{{args.to}}"},
        }
        call = Call(tools, {STATUS_URL: [reply(FOUND)], f"{API}/orders": [reply({"id": 1})]})
        for text in (arguments, json.dumps({"number": arguments, "to": arguments})):
            json.dumps(await call.run(name, text))

    async def test_stores_null_for_what_the_reply_lacks(self) -> None:  # V6
        call = Call({"t": get(store_in_ctx={"id": "$.id"})}, {f"{API}/x": [reply({"id": 1}), reply({})]})
        await call.run("t")
        assert call.context.ctx["id"] == 1
        await call.run("t")
        assert call.context.ctx["id"] is None


class TestBuiltinTools:
    async def test_hangup(self) -> None:  # V6, V11
        call = Call({"end": {"type": "builtin", "action": "hangup"}})
        assert await call.run("end", '{"reason": "done"}') == {"status": "ok"}
        assert call.line.done == ["hang up"]
        assert call.context.ctx["should_hangup"] is True

    @pytest.mark.parametrize(
        "target", ["+33612345678", "204", "sip:desk@example.com", "sips:desk@example.com:5061"]
    )
    async def test_transfer(self, target: str) -> None:  # V6
        tool = {
            "type": "builtin",
            "action": "transfer",
            "target": "{{ctx.desk}}",
            "on_success_flags": ["transferred"],
        }
        call = Call({"move": tool})
        call.context.ctx["desk"] = target
        assert await call.run("move") == {"status": "ok"}
        assert call.line.done == [f"transfer {target}"]
        assert call.context.ctx["transferred"] is True
        assert "should_hangup" not in call.context.ctx

    @pytest.mark.parametrize(
        "target", [None, "", "x", "+33 6", "<Dial>", "sip:a@b><Hangup/>", "sip:a b@c", "tel:+33", "+33\n1"]
    )
    async def test_transfer_to_what_is_no_target(self, target: JsonValue) -> None:  # V6
        call = Call({"move": {"type": "builtin", "action": "transfer", "target": "{{args.to}}"}})
        answer = await call.run("move", {"to": target})
        assert answer == {"error": "accepted as target is a phone number or a SIP address"}
        assert call.line.done == []


class TestBodyBuilders:
    async def test_build_the_body(self) -> None:  # V10
        def build(args: Values, ctx: Values, session: JsonValue) -> dict[str, JsonValue]:
            return {
                "n": args["n"],
                "agent": ctx["agent_id"],
                "session": session,
                "gone": None,
                "in": [{"a": None}],
            }

        call = Call(
            {"t": get(method="POST", body_builder="mine")},
            {f"{API}/x": [reply(1)]},
            builders={"mine": build},
        )
        call.context.session = {"s": 1}
        await call.run("t", {"n": 2})
        assert call.calls[0].json() == {"n": 2, "agent": "a-1", "session": {"s": 1}, "in": [{}]}

    @pytest.mark.parametrize(
        ("raised", "reason"),
        [
            (BodyRefused("items: accepted is a list"), "items: accepted is a list"),
            (KeyError("+33612345678"), "the request could not be put together"),
        ],
    )
    async def test_that_fail_send_nothing(self, raised: Exception, reason: str) -> None:  # V10
        def build(args: Values, ctx: Values, session: JsonValue) -> dict[str, JsonValue]:
            raise raised

        builders = {"mine": build}
        tool = get(method="POST", body_builder="mine")
        assert await Call({"t": tool}, builders=builders).run("t") == {"error": reason}
        told = tool | {"on_error": {"return": {"ok": False, "why": "{{error}}"}}}
        assert await Call({"t": told}, builders=builders).run("t") == {"ok": False, "why": reason}

    async def test_that_have_a_bug_leave_it_to_the_outermost_layer(self) -> None:  # V10, V14
        def build(args: Values, ctx: Values, session: JsonValue) -> dict[str, JsonValue]:
            raise RuntimeError("a bug")

        tool = get(method="POST", body_builder="mine")
        call = Call({"t": tool}, builders={"mine": build})
        with capture_logs() as logged, pytest.raises(RuntimeError, match="a bug"):
            await call.run("t")
        assert [entry["outcome"] for entry in logged if entry["event"] == "tool_call"] == ["failed"]
        assert call.calls == []


@dataclass
class Policy:
    """Forbids some tools, and remembers what it was asked."""

    forbidden: str
    asked: list[tuple[str, Arguments]] = field(default_factory=list[tuple[str, Arguments]])

    def verdict(self, call: ToolCall) -> Verdict:
        self.asked.append((call.name, call.arguments))
        return "forbid" if call.name == self.forbidden else "allow"


ON_ERROR = {"return": {"success": False, "e": "{{error}}", "why": "$.message", "all": "$"}}


class TestTheAnswerToAnError:
    async def test_reads_the_reply(self) -> None:  # voice-5, V6
        refused = {"message": "Closed on Mondays"}
        call = Call({"t": get(on_error=ON_ERROR)}, {f"{API}/x": [reply(refused, 409)]})
        assert await call.run("t") == {
            "success": False,
            "e": "the service answered with status 409",
            "why": "Closed on Mondays",
            "all": refused,
        }

    async def test_has_nothing_to_read_without_one(self) -> None:  # voice-5
        call = Call({"t": get(on_error=ON_ERROR)}, {f"{API}/x": [OutboundFailed("away")]})
        answer = await call.run("t")
        assert answer == {"success": False, "e": "the service gave no usable reply"}

    async def test_reads_the_reply_of_a_step(self) -> None:  # voice-5
        tool = get(pre_steps=[{"url": f"{API}/check"}], on_error={"return": "$.message"})
        call = Call({"t": tool}, {f"{API}/check": [reply({"message": "No"}, 404)]})
        assert await call.run("t") == "No"


class TestPermission:
    async def test_is_the_registrys_and_asked_before_anything_happens(self) -> None:  # D5, V6, M10
        policy = Policy("cancel")
        call = Call({"cancel": CANCEL, "t": get()}, {f"{API}/x": [reply(1)]})
        registry = ToolRegistry(Approval(policy))
        for name in ("cancel", "t"):
            registry.register(call.tool(name))
        refused = await registry.execute(ToolCall("1", "cancel", {"number": 42}))
        assert refused == {"error": "the policy forbids this call of 'cancel'"}
        assert call.calls == []  # no step of it either
        assert await registry.execute(ToolCall("2", "t", {})) == 1
        assert policy.asked == [("cancel", {"number": 42}), ("t", {})]


class TestTheLog:
    async def test_tells_the_call_and_the_flags_without_values(self) -> None:  # V14
        call = Call(
            {"cancel": CANCEL}, {STATUS_URL: [reply(FOUND)], f"{API}/orders": [reply({"id": "secret"})]}
        )
        with capture_logs() as logs:
            await call.run("cancel", {"number": 42, "why": "+33612345678 secret"})
        told = [entry for entry in logs if entry["log_level"] != "debug"]
        assert [entry["event"] for entry in told] == ["http_call", "http_call", "flags_set", "tool_call"]
        assert {**told[2], "log_level": "", "duration_ms": 0} == {
            "event": "flags_set",
            "log_level": "",
            "tool": "cancel",
            "flags": ["order_cancelled"],
            "duration_ms": 0,
            "agent_id": "a-1",
            "call_id": "c-1",
        }
        assert isinstance(told[2]["duration_ms"], int)
        assert isinstance(told[3]["duration_ms"], int)
        assert {**told[3], "duration_ms": 0} == {
            "event": "tool_call",
            "log_level": "info",
            "tool": "cancel",
            "outcome": "ok",
            "duration_ms": 0,
            "agent_id": "a-1",
            "call_id": "c-1",
        }
        assert "33612345678" not in json.dumps(told)
        assert "secret" not in json.dumps(told)
        (values,) = [entry for entry in logs if entry["event"] == "tool_values"]
        assert values["log_level"] == "debug"
        assert "secret" in json.dumps(values)

    @pytest.mark.parametrize(
        ("name", "outcome", "told"),
        [("t", "failed", "t"), ("end", "ok", "end"), ("+33612345678", "unknown", None)],
    )
    async def test_tells_how_it_ended(self, name: str, outcome: str, told: str | None) -> None:  # V14
        tools = {"t": get(), "end": {"type": "builtin", "action": "hangup"}}
        call = Call(tools, {f"{API}/x": [reply({}, 500)]})
        with capture_logs() as logs:
            await call.run(name)
        (entry,) = [entry for entry in logs if entry["event"] == "tool_call"]
        assert (entry["outcome"], entry["tool"]) == (outcome, told)


class TestForTheToolLoop:
    async def test_a_tool_runs_in_a_registry_which_checks_its_arguments(self) -> None:  # M11
        tools = {"t": get(params={"q": "{{args.q}}"}, description="Looks.")}
        call = Call(tools, {f"{API}/x?q=a": [reply({"n": 1})]})
        registry = ToolRegistry()
        registry.register(call.tool("t", {"type": "object", "required": ["q"]}))
        assert [(spec.name, spec.description) for spec in registry.specs()] == [("t", "Looks.")]
        assert await registry.execute(ToolCall("1", "t", {"q": "a"})) == {"n": 1}
        assert "required" in str(await registry.execute(ToolCall("2", "t", {})))
