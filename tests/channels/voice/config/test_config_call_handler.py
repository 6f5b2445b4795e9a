"""What a config makes of a call: who is let through, what is said first, what is kept, how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from adapters.models.tools import Approval, read_rules
from channels.voice.call.ports import CustomVoice, Ending, KeysPressed, Refused, SessionSettings, Turn
from channels.voice.config import call_handler, lifecycle
from channels.voice.config.call_handler import (
    ASK_WHETHER_THERE,
    NOT_PUT_THROUGH,
    SAY_GOODBYE,
    open_configured,
)
from channels.voice.config.lifecycle import outcome_of, summary
from channels.voice.config.loader import load_config
from channels.voice.config.models import OutcomeRule
from channels.voice.config.vocabulary import wording
from flow_engine.ports.outbound import OutboundFailed, OutboundReply
from tests.channels.voice.config.original_configs import example
from tests.channels.voice.config.voice_scene import (
    BEGIN,
    BEGIN_TEXT,
    PHONE,
    PHONE_IN_QUERY,
    FakeBusiness,
    Scene,
    scene,
)

pytestmark = pytest.mark.anyio

FAILED = OutboundReply(500, b"stack trace")
UNREACHABLE = OutboundFailed("'localhost' did not answer")


def inline(**fields: Any) -> dict[str, Any]:
    return {
        "version": "2.0",
        "agent": {"id": "agent-1", "name": "Desk", "type": "test", "language": "en-GB"},
        "base_url": "http://business.example",
        "session": {"mode": "inline", "instructions": "Be brief."},
    } | fields


def fetched(reply: Any, *, mapping: Mapping[str, Any] | None = None, **fields: Any) -> Scene:
    session = {
        "mode": "config_url",
        "url": "{{base_url}}/session",
        "response_mapping": mapping
        or {
            "instructions": "$.instructions",
            "tools": "$.tools",
            "voice": "$.voice",
            "ctx_init": {"customer_id": "$.customer.id", "agent_id": "$.nothing"},
        },
    }
    return scene(inline(session=session, **fields), {"GET /session": reply, "POST /calls": {"id": "r"}})


RULES = [
    ("forbid:look_*", "the policy forbids this call of 'look_up'", None),
    ("prompt:look_up", "USER_REJECTED", "'look_up' needs a confirmation, and nobody is there to ask"),
]


class TestTheOperatorsPolicy:
    @pytest.mark.parametrize(("rules", "error", "message"), RULES)
    async def test_a_tool_that_it_does_not_allow_is_not_called(  # D5, V6
        self, rules: str, error: str, message: str | None
    ) -> None:
        tools = {name: {"type": "http", "url": f"{{{{base_url}}}}/{name}"} for name in ("look_up", "order")}
        config = inline(tools=tools)
        call = scene(config, {"GET /order": {"ok": 1}}, approval=Approval(read_rules(rules)))
        with capture_logs() as logged:
            answer = await call.tool("look_up")
        assert isinstance(answer, dict)
        assert (answer["error"], answer.get("message")) == (error, message)
        assert [entry["outcome"] for entry in logged if entry["event"] == "tool_call"] == ["refused"]
        assert await call.tool("order") == {"ok": 1}
        assert [address for _, address, _ in call.business.taken()] == ["/order"]

    async def test_without_rules_every_tool_runs_and_an_unknown_one_is_said_to_be(self) -> None:  # D5, V6
        call = scene(inline(), approval=Approval(read_rules("forbid:*")))
        assert await call.tool("nothing") == {"error": "Fonction inconnue: nothing"}


class TestChecks:
    def config(self, *checks: dict[str, Any]) -> dict[str, Any]:
        written = [
            {"name": f"check-{number}", "url": f"{{{{base_url}}}}/check/{number}", "block_if": "$.no"} | check
            for number, check in enumerate(checks)
        ]
        return inline(pre_call_checks=written)

    async def test_a_message_is_said_to_who_is_blocked(self) -> None:  # V3
        blocking = {
            "on_block": "message",
            "message": "{{agent.name}} is closed until {{ctx.x | default(9)}}.",
        }
        call = scene(self.config(blocking), {"GET /check/0": {"no": True}})
        assert await call.handler.open() == Refused("Desk is closed until 9.")

    async def test_the_first_check_that_says_no_is_the_last_that_is_asked(self) -> None:  # V3
        replies = {"GET /check/0": {"no": False}, "GET /check/1": {"no": 1}, "GET /check/2": {"no": True}}
        call = scene(self.config({}, {}, {}), replies)
        assert await call.handler.open() == Refused(None)
        assert [address for _, address, _ in call.business.taken()] == ["/check/0", "/check/1"]

    @pytest.mark.parametrize("reply", [FAILED, UNREACHABLE, OutboundReply(404, b'{"no": true}'), "no"])
    async def test_a_check_that_cannot_be_asked_lets_the_call_through(self, reply: Any) -> None:  # V3
        call = scene(self.config({}), {"GET /check/0": reply})
        assert isinstance(await call.handler.open(), SessionSettings)


class TestSession:
    async def test_it_is_made_from_the_reply(self) -> None:  # V2, V11
        tool = {"type": "function", "name": "a", "parameters": {"type": "object", "properties": {}}}
        call = fetched(
            {"instructions": "{{now}} Sell.", "tools": [tool], "voice": "ash", "customer": {"id": 7}},
            tools={"a": {"type": "http", "url": "{{base_url}}/a/{{ctx.agent_id}}/{{ctx.customer_id}}"}},
        )
        call.business.replies["GET /a/agent-1/7"] = "found"
        settings = await call.begin()
        assert (settings.instructions, settings.voice, settings.tools) == ("{{now}} Sell.", "ash", (tool,))
        assert await call.tool("a") == "found"

    @pytest.mark.parametrize(
        "reply",
        [
            FAILED,
            UNREACHABLE,
            None,
            "text",
            {"tools": []},
            {"instructions": "  "},
            {"instructions": 7},
            {"instructions": "x", "tools": "none"},
            {"instructions": "x", "tools": [{"name": "a b"}]},
        ],
    )
    async def test_without_one_the_call_ends_with_an_apology_and_no_record(self, reply: Any) -> None:  # V2
        books = {"on_start": {"method": "POST", "url": "{{base_url}}/calls"}}
        call = fetched(reply, lifecycle=books)
        with capture_logs() as logs:
            assert await call.handler.open() == Refused(wording("en").apology)
        assert [entry["reason"] for entry in logs if entry["event"] == "session_failed"]
        assert [method for method, _, _ in call.business.taken()] == ["GET"]

    async def test_one_that_does_not_come_in_time_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        call = fetched({})

        async def never(*_: object, **__: object) -> OutboundReply:
            await asyncio.Event().wait()
            raise AssertionError

        call.business.request = never  # type: ignore[method-assign]
        monkeypatch.setattr(call_handler, "SESSION_WITHIN_S", 0.01)
        assert await call.handler.open() == Refused(wording("en").apology)

    async def test_a_voice_that_there_is_not_is_replaced_by_that_of_the_config(self) -> None:  # V12
        call = fetched({"instructions": "x", "voice": "nova"}, openai={"voice": "echo"})
        with capture_logs() as logs:
            assert (await call.begin()).voice == "echo"
        [warning] = [entry for entry in logs if entry["event"] == "voice_unknown"]
        assert (warning["voice"], warning["used"]) == ("nova", "echo")

    async def test_a_voice_of_the_businesss_own_is_taken_by_its_id(self) -> None:  # V12, voice-smaller
        assert (
            await fetched({"instructions": "x", "voice": {"id": "voice_1"}}).begin()
        ).voice == CustomVoice("voice_1")

    async def test_tools_that_nothing_runs_are_logged(self) -> None:
        call = fetched({"instructions": "x", "tools": [{"name": "a"}]})
        with capture_logs() as logs:
            await call.begin()
        assert [e["tools"] for e in logs if e["event"] == "tools_without_handler"] == [["a"]]
        assert await call.tool("a") == {"error": "Fonction inconnue: a"}  # V6

    async def test_templates_of_the_config_are_filled_for_the_call(self) -> None:  # V8
        tool = {"type": "function", "name": "a", "description": "For {{caller_phone | default('anybody')}}"}
        session = {"mode": "inline", "instructions": "You are {{agent.name}}.", "tools": [tool]}
        for phone, described in ((PHONE, f"For {PHONE}"), (None, "For anybody")):
            settings = await scene(inline(session=session), phone=phone).begin()
            assert settings.instructions == "You are Desk."
            assert [tool["description"] for tool in settings.tools] == [described]

    def test_that_of_a_flow_is_not_in_the_config(self) -> None:
        session = {"mode": "flow", "engine_url": "http://localhost:1", "version": "v"}
        config = load_config(json.dumps(inline(session=session)).encode(), builders=()).config
        with pytest.raises(ValueError, match="flow"):
            open_configured(config, FakeBusiness("", {}), clock=lambda: BEGIN, builders={})


class TestGreeting:
    GREETING: ClassVar = {
        "known_customer": "Greet {{session.customer.name}}",
        "unknown_customer": "Greet somebody",
        "condition_field": "session.customer.name",
    }

    @pytest.mark.parametrize(
        ("customer", "said"),
        [
            ({"name": "Ada"}, "Greet Ada"),
            ({"name": ""}, "Greet "),
            ({"name": False}, "Greet false"),
            ({"name": None}, "Greet somebody"),
            ({}, "Greet somebody"),
            (None, "Greet somebody"),
        ],
    )
    async def test_who_is_known_is_greeted_as_such(self, customer: Any, said: str) -> None:  # V4
        call = fetched({"instructions": "x", "customer": customer}, greeting=self.GREETING)
        await call.begin()
        assert await call.handler.started() == said

    async def test_without_a_condition_nobody_is_known(self) -> None:  # V4
        call = fetched({"instructions": "x"}, greeting=self.GREETING | {"condition_field": None})
        await call.begin()
        assert await call.handler.started() == "Greet somebody"

    async def test_without_a_greeting_the_caller_speaks_first(self) -> None:  # V4
        call = scene(inline())
        await call.begin()
        assert await call.handler.started() is None


class TestBookkeeping:
    CONTEXT = ("caller_phone", "agent_id", "call_start", "call_id", "customer_id", "had_conversation")

    def config(self, **lifecycle: Any) -> dict[str, Any]:
        def call(name: str, **more: Any) -> dict[str, Any]:
            body = {"id": "{{ctx.call_id}}", "outcome": "{{outcome}}"}
            return {"method": "POST", "url": f"{{{{base_url}}}}/{name}", "body": body} | more

        return inline(
            lifecycle={
                "on_start": call("start", store_in_ctx={"call_id": "$.id"}),
                "on_end": call("end"),
                "on_no_action": call("nothing", condition="not ctx.done"),
                "outcome_rules": [
                    {"flag": "done", "outcome": "done", "priority": 1},
                    {"flag": None, "outcome": "nothing", "priority": 2},
                ],
            }
            | lifecycle,
            tools={"do": {"type": "http", "url": "{{base_url}}/do", "on_success_flags": ["done"]}},
        )

    async def test_it_is_kept_in_order(self) -> None:  # V5
        call = scene(self.config(), {f"POST /{name}": {"id": 5} for name in ("start", "nothing", "end")})
        await call.begin()
        await call.handler.started()
        await call.end()
        assert call.business.taken() == [
            ("POST", "/start", {}),
            ("POST", "/nothing", {"id": 5, "outcome": "nothing"}),
            ("POST", "/end", {"id": 5, "outcome": "nothing"}),
        ]

    @pytest.mark.parametrize("broken", [FAILED, UNREACHABLE, OutboundReply(404, b"")])
    async def test_failures_are_logged_and_change_nothing_for_the_caller(self, broken: Any) -> None:  # V5
        greeting = {"unknown_customer": "Hello"}
        config = self.config() | {"greeting": greeting}
        call = scene(config, {f"POST /{name}": broken for name in ("start", "nothing", "end")})
        await call.begin()
        with capture_logs() as logs:
            assert await call.handler.started() == "Hello"
            await call.end()
        assert [entry["lifecycle"] for entry in logs if entry["event"] == "lifecycle_failed"] == [
            "on_start",
            "on_no_action",
            "on_end",
        ]
        assert [body for _, _, body in call.business.taken()] == [
            {},
            {"outcome": "nothing"},
            {"outcome": "nothing"},
        ]

    async def test_a_business_that_hangs_holds_up_neither_the_caller_nor_the_end(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:  # V5
        call = scene(self.config())
        await call.begin()
        asked: list[str] = []

        async def never(method: str, url: str, **_: object) -> OutboundReply:
            asked.append(url.rpartition("/")[2])
            await asyncio.Event().wait()
            raise AssertionError

        call.business.request = never  # type: ignore[method-assign]
        monkeypatch.setattr(lifecycle, "WITHIN_S", 0.01)
        async with asyncio.timeout(30):
            await call.handler.started()
            await call.end()
        assert asked == ["start", "nothing", "end"]

    async def test_the_end_is_told_without_a_header_that_cannot_be_written(self) -> None:  # V5
        told = {"method": "POST", "url": "{{base_url}}/end", "headers": {"X-From": "{{caller_phone}}"}}
        call = scene(inline(lifecycle={"on_end": told}), {"POST /end": None}, phone="Zo\u00eb")
        with capture_logs() as logged:
            await call.begin()
            await call.end()
        assert call.business.taken() == [("POST", "/end", None)]
        assert [line["event"] for line in logged if line["log_level"] == "warning"] == ["header_left_out"]

    async def test_flags_of_tools_decide_the_outcome_and_both_are_logged(self) -> None:  # V5, V6, V14
        replies = {f"POST /{name}": {"id": 5} for name in ("start", "end")} | {"GET /do": None}
        call = scene(self.config(), replies)
        await call.begin()
        await call.handler.started()
        await call.tool("do")
        with capture_logs() as logs:
            await call.end(seconds=61.2)
        assert call.business.taken()[-1] == ("POST", "/end", {"id": 5, "outcome": "done"})
        [entry] = [entry for entry in logs if entry["event"] == "call_outcome"]
        assert entry == {
            "event": "call_outcome",
            "log_level": "info",
            "agent_id": "agent-1",
            "call_id": "call-under-test",
            "outcome": "done",
            "flags": ["done"],
            "duration_ms": 61_200,
        }

    async def test_the_context_is_there_for_every_template(self) -> None:  # V11
        body = {name: f"{{{{ctx.{name}}}}}" for name in (*self.CONTEXT, "transcript", "should_hangup")}
        body |= {name: f"{{{{{name}}}}}" for name in ("now_iso", "call_duration_sec", "transcript_summary")}
        tools = {
            "look": {"type": "http", "method": "POST", "url": "{{base_url}}/look", "body": body},
            "bye": {"type": "builtin", "action": "hangup"},
        }
        call = scene(self.config() | {"tools": tools}, {"POST /look": None, "POST /start": {"id": "r-1"}})
        await call.begin()
        await call.handler.started()
        call.business.taken()
        await call.tool("look")
        known = {
            "caller_phone": PHONE,
            "agent_id": "agent-1",
            "call_start": BEGIN_TEXT,
            "call_id": "r-1",
        }
        assert call.business.taken()[0][2] == known | {
            "had_conversation": False,
            "transcript": [],
            "should_hangup": False,
            "now_iso": BEGIN_TEXT,
            "call_duration_sec": 0,
            "transcript_summary": "",
        }
        await call.hear("Hello?", "Good\nmorning.")
        await call.tool("bye")
        await call.tool("look")
        assert call.business.taken()[0][2] == known | {
            "had_conversation": True,
            "transcript": call.transcript(),
            "should_hangup": True,
            "now_iso": "2026-01-15T18:00:02.000Z",
            "call_duration_sec": 2,
            "transcript_summary": "Caller: Hello?\nAgent: Good morning.",
        }

    async def test_what_was_heard_in_the_end_counts_not_what_was_told_meanwhile(self) -> None:  # V11, V12
        on_end = {"method": "POST", "url": "{{base_url}}/end", "body": {"said": "{{transcript}}"}}
        call = scene(inline(lifecycle={"on_end": on_end}), {"POST /end": None})
        await call.begin()
        await call.hear("Hello", "We are open until", "Thanks")
        cut = (call.turns[0], Turn("assistant", "We are", call.turns[1].at, interrupted=True))
        await call.handler.started()
        await call.handler.ended(Ending(True, "caller_hung_up", 3.0, cut))
        [(_, _, body)] = call.business.taken()
        assert isinstance(body, dict)
        assert [entry["content"] for entry in body["said"]] == ["Hello", "We are"]  # type: ignore[union-attr]

    async def test_a_caller_without_a_number_is_left_out(self) -> None:  # V8
        config = example("switchboard")
        call = scene(config, {"POST /api/calls": {"id": 1}}, phone=None)
        await call.begin()
        await call.handler.started()
        assert call.business.taken() == [("POST", "/api/calls", {"startedAt": BEGIN_TEXT})]


class TestTools:
    async def test_a_call_is_transferred_to_a_number_or_an_address(self) -> None:  # V6
        tools = {"pass_on": {"type": "builtin", "action": "transfer", "target": "{{args.to}}"}}
        call = scene(inline(tools=tools))
        await call.begin()
        await call.tool("pass_on", to="+390612345678")
        assert "error" in str(await call.tool("pass_on", to="the boss"))
        assert call.controls.told == [("transfer", "+390612345678")]

    async def test_a_caller_who_could_not_be_put_through_is_told_so(self) -> None:  # V6
        call = scene(inline())
        await call.begin()
        await call.handler.not_transferred("+390612345678")
        assert call.controls.told == [("instruct", NOT_PUT_THROUGH)]

    async def test_a_transfer_that_failed_takes_its_flags_back(self) -> None:  # voice-6
        pass_on = {"type": "builtin", "action": "transfer", "target": "{{args.to}}"}
        tools = {"pass_on": {**pass_on, "on_success_flags": ["passed_on", "served"]}}
        rules = [
            {"flag": "passed_on", "outcome": "moved", "priority": 1},
            {"flag": "served", "outcome": "served", "priority": 2},
            {"flag": None, "outcome": "stayed", "priority": 3},
        ]
        on_end = {"method": "POST", "url": "{{base_url}}/end", "body": {"outcome": "{{outcome}}"}}
        lifecycle = {"outcome_rules": rules, "on_end": on_end}
        for fails, outcome in ((True, "stayed"), (False, "moved")):
            call = scene(inline(tools=tools, lifecycle=lifecycle), {"POST /end": None})
            await call.begin()
            await call.handler.started()
            await call.tool("pass_on", to="+390612345678")
            await call.tool("pass_on", to="the boss")  # which sets no flags, and takes none back
            if fails:
                await call.handler.not_transferred("+390612345678")
            await call.end()
            assert call.business.taken()[-1][2] == {"outcome": outcome}

    async def test_a_silent_caller_is_asked_twice_then_left(self) -> None:
        call = scene(inline(silence_s=8))
        assert (await call.begin()).silence_s == 8
        await call.handler.silent()
        await call.handler.silent()
        await call.hear("Yes, I am here")
        for _ in range(3):
            await call.handler.silent()
        asked = ("instruct", ASK_WHETHER_THERE)
        assert call.controls.told == [asked] * 4 + [("instruct", SAY_GOODBYE), ("hang_up",)]

    async def test_a_caller_who_presses_keys_is_not_silent(self) -> None:  # V12
        call = scene(inline(silence_s=8))
        await call.begin()
        for _ in range(4):
            await call.handler.silent()
            await call.handler.handler.notice(KeysPressed("(pressed on the keypad: 1)"))
        assert call.controls.told == [("instruct", ASK_WHETHER_THERE)] * 4


class TestLogs:
    async def test_what_templates_became_is_there_for_debugging_only(self) -> None:  # V14
        check = {"name": "c", "url": "{{base_url}}/c", "block_if": "$.no", "on_block": "message"}
        session = {"mode": "inline", "instructions": "Serve {{caller_phone}}."}
        config = inline(
            session=session,
            pre_call_checks=[check | {"message": "Not {{caller_phone}}."}],
            greeting={"unknown_customer": "Hello {{caller_phone}}."},
            tools={"put": {"type": "builtin", "action": "transfer", "target": "{{caller_phone}}"}},
        )
        call = scene(config, {"GET /c": {"no": False}})
        with capture_logs() as logs:
            await call.begin()
            await call.handler.started()
            await call.tool("put")
            await scene(config, {"GET /c": {"no": True}}).handler.open()
        rendered = [entry for entry in logs if entry["event"] == "template_rendered"]
        kinds = ("instructions", "greeting", "target", "message")
        assert [entry[kind] for kind, entry in zip(kinds, rendered, strict=True)] == [
            *(f"Serve {PHONE}.", f"Hello {PHONE}.", PHONE, f"Not {PHONE}."),
        ]
        assert PHONE not in str([entry for entry in logs if entry["log_level"] != "debug"])

    async def test_the_callers_number_is_in_no_log_but_those_for_debugging(self) -> None:  # V14
        config = example("restaurant")
        call = scene(
            config,
            {
                "GET /api/blocked-phones/check": {"blocked": False},
                "GET /api/ai": {"systemPrompt": "x", "tools": []},
                "POST /api/calls": FAILED,
                "GET /api/orders/status": UNREACHABLE,
                "PATCH /api/calls": None,
            },
        )
        with capture_logs() as logs:
            await call.begin()
            await call.handler.started()
            await call.tool("check_order_status", customer_phone=PHONE)
            await call.end()
        events = [entry for entry in logs if entry["log_level"] != "debug"]
        assert {"http_call", "tool_call", "call_outcome", "lifecycle_failed"} <= {e["event"] for e in events}
        written = str(events)
        assert PHONE not in written
        assert PHONE_IN_QUERY not in written
        assert PHONE.lstrip("+") not in written
        assert all(
            (e["agent_id"], e["call_id"]) == (config["agent"]["id"], "call-under-test") for e in events
        )


# --- laws -------------------------------------------------------------------------------------

rules = st.lists(
    st.builds(
        lambda flag, priority: (flag, priority), st.sampled_from([None, "a", "b", "c"]), st.integers(-2, 2)
    ),
    max_size=6,
)


@given(rules, st.dictionaries(st.sampled_from("abc"), st.sampled_from([True, False, None, 0, "x"])))
def test_the_outcome_is_that_of_the_least_priority_that_applies(
    written: list[tuple[str | None, int]], ctx: dict[str, Any]
) -> None:  # V5
    made = tuple(
        OutcomeRule(flag=flag, outcome=str(index), priority=priority)
        for index, (flag, priority) in enumerate(written)
    )
    applying = [
        (priority, index) for index, (flag, priority) in enumerate(written) if flag is None or ctx.get(flag)
    ]
    assert outcome_of(made, ctx) == (str(min(applying)[1]) if applying else None)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text()), max_size=12))
def test_a_summary_is_the_last_six_turns_a_line_each(said: list[tuple[Any, str]]) -> None:  # V8
    turns = [Turn(role, text, BEGIN) for role, text in said]
    lines = summary(turns, wording("it")).split("\n") if turns else []
    assert len(lines) == min(len(turns), 6)
    for line, (role, text) in zip(lines, said[-6:], strict=True):
        assert line == f"{'Cliente' if role == 'user' else 'Agente'}: {' '.join(text.split())}"
