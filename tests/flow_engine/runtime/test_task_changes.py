"""Moving between tasks: each refusal in full, and what a change tells and leaves (F11, F12, F25, F40)."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from flow_engine.errors import CorrectTheInput
from flow_engine.runtime.agent_data import get_refusal
from flow_engine.runtime.rules import RefusalCode, nearest_task, reachable_tasks
from system_prompts.loader import FileSystemPrompts
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version, parameter
from tests.flow_engine.runtime.conversation_steps import Conversation, entries, read
from tests.flow_engine.runtime.test_approvals import answering


def required(*variable_ids: str) -> list[JsonObject]:
    return [{"variableId": variable_id, "required": True} for variable_id in variable_ids]


def hotel(**changes: Any) -> JsonObject:
    """desk → booking (needs the string and the custom one), minibar (the chat only), manager (HUM, closed by
    a condition), itself; booking and manager lead back, the cellar is reached from nowhere."""
    selection = {
        "mcpServerName": "rooms",
        "selectedTools": [
            {"toolName": "find_guest", "toolParameters": [parameter("name", "variable", "var_string")]},
            {"toolName": "free_rooms", "toolParameters": []},
        ],
    }
    included = [{"toolName": name, "uiToolDescription": name} for name in ("find_guest", "free_rooms")]
    tasks = [
        aio_task(
            "desk",
            name="Front desk",
            description="Anything else",
            connectedTasks=["booking", "minibar", "manager", "desk"],
            mcpToolSelection=[selection],
        ),
        aio_task(
            "booking",
            name="Book a room",
            description="Wants a room",
            connectedTasks=["desk"],
            transitionParameters=[
                *required("var_string", "var_custom"),
                {"variableId": "var_date", "required": False},
            ],
        ),
        aio_task("minibar", description="Is thirsty", channels=["chat"], connectedTasks=["desk"]),
        hum_task(
            "manager",
            name="Manager",
            description="Is angry",
            connectedTasks=["desk"],
            routingParameters={"timeout": 90, "agentSkills": ["complaints"], "agentIds": ["m-1"]},
            entryCondition={"when": "vars.var_boolean == true", "reason": "only who has a complaint"},
        ),
        aio_task("cellar", connectedTasks=["desk"]),
    ]
    servers = [{"name": "rooms", "url": "https://rooms.example.com/mcp", "includedTools": included}]
    return minimal_version(**{"tasks": tasks, "firstTask": "desk", "mcpServers": servers, **changes})


BOOKING = {
    "taskId": "booking",
    "name": "Book a room",
    "type": "AIO",
    "description": "Wants a room",
    "requiredVariables": ["a string", "appointment"],
    "missingVariables": ["a string", "appointment"],
    "condition": None,
}
MANAGER = {
    "taskId": "manager",
    "name": "Manager",
    "type": "HUM",
    "description": "Is angry",
    "requiredVariables": [],
    "missingVariables": [],
    "condition": {"met": False, "reason": "only who has a complaint"},
}
MINIBAR = {
    "taskId": "minibar",
    "name": "minibar",
    "type": "AIO",
    "description": "Is thirsty",
    "requiredVariables": [],
    "missingVariables": [],
    "condition": None,
}


ASKED = {
    "task_unknown": "pool",
    "already_in_task": "desk",
    "task_not_connected": "cellar",
    "channel_not_available": "minibar",
    "missing_variables": "booking",
    "condition_not_met": "manager",
    "nothing_to_go_back_to": "back",
}


def refused(talk: Conversation, task: str, command: str | None = None) -> JsonObject:
    """The reply to a change that is refused."""

    def move(runner: Any) -> JsonObject:
        assert not runner.change_task(task)
        assert runner.has_task_validation_error()
        return read(get_refusal(runner, command))

    return talk.step(move)


def refusal(code: str, reason: str, **changes: Any) -> JsonObject:
    """What every refusal at the desk by phone has in common."""
    return {
        "result": False,
        "code": code,
        "reason": reason,
        "command": f"/error {reason}",
        "from": "Front desk",
        "missing": [],
        "reachableTasks": [BOOKING, MANAGER],
        "revision": 2,
        **changes,
    }


class TestRefusalsInFull:
    def test_a_task_that_does_not_exist(self, prompts: FileSystemPrompts) -> None:
        reason = "there is no task 'pool'; reachable tasks: 'Book a room', 'Manager'"
        assert refused(Conversation(prompts, hotel()), "pool") == refusal("task_unknown", reason)  # F12

    @pytest.mark.parametrize("spelled", ["desk", "Front desk", "FRONT_DESK"])
    def test_the_task_that_the_conversation_is_in(self, prompts: FileSystemPrompts, spelled: str) -> None:
        # F12: also one that names itself
        reason = "the conversation is in task 'Front desk' already; reachable tasks: 'Book a room', 'Manager'"
        assert refused(Conversation(prompts, hotel()), spelled) == refusal("already_in_task", reason)

    def test_a_task_that_is_not_connected(self, prompts: FileSystemPrompts) -> None:
        reason = "task 'cellar' cannot follow 'Front desk'; reachable tasks: 'Book a room', 'Manager'"
        assert refused(Conversation(prompts, hotel()), "cellar") == refusal("task_not_connected", reason)

    def test_a_task_of_another_channel(self, prompts: FileSystemPrompts) -> None:
        reason = "task 'minibar' is not available on phone; it is on: chat"
        assert refused(Conversation(prompts, hotel()), "minibar") == refusal("channel_not_available", reason)

    def test_variables_that_are_missing_and_what_can_fill_them(self, prompts: FileSystemPrompts) -> None:
        reason = "task 'Book a room' needs variables that have no value yet: 'a string', 'appointment'"
        tools = ["find_guest", "free_rooms"]
        assert refused(Conversation(prompts, hotel()), "booking") == refusal(  # F12, F18
            "missing_variables",
            reason,
            missing=[
                {
                    "varId": "var_string",
                    "name": "a string",
                    "type": "string",
                    "fillableBy": ["convMiner", *tools],
                    "fillableIn": [],
                },
                {
                    "varId": "var_custom",
                    "name": "appointment",
                    "type": "custom",
                    "fillableBy": tools,
                    "fillableIn": [{"taskId": "desk", "task": "Front desk", "tools": tools}],
                },
            ],
        )

    def test_only_what_is_missing_is_told(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, hotel(), memory={"var_string": "Ada"})
        told = refused(talk, "booking")
        assert [variable["varId"] for variable in told["missing"]] == ["var_custom"]  # F12
        assert told["reachableTasks"] == [{**BOOKING, "missingVariables": ["appointment"]}, MANAGER]
        assert told["reason"] == "task 'Book a room' needs variables that have no value yet: 'appointment'"

    def test_a_condition_that_is_not_met(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, hotel(), memory={"var_boolean": False})
        assert refused(talk, "manager") == refusal(  # F11, F12
            "condition_not_met",
            "only who has a complaint",
            condition={
                "of": "task",
                "when": "vars.var_boolean == true",
                "truth": "false",
                "parts": [
                    {
                        "expression": "vars.var_boolean == true",
                        "truth": "false",
                        "values": {"vars.var_boolean": False},
                    }
                ],
                "wouldHold": ["vars.var_boolean == true"],
            },
        )

    def test_a_condition_of_which_nothing_is_known(self, prompts: FileSystemPrompts) -> None:
        told = refused(Conversation(prompts, hotel()), "manager")["condition"]
        assert (told["truth"], told["parts"][0]["truth"]) == ("unknown", "unknown")  # F11
        assert told["parts"][0]["values"] == {"vars.var_boolean": None}

    def test_back_where_no_digression_was_entered(self, prompts: FileSystemPrompts) -> None:
        reason = (
            "task 'Front desk' was not entered as a digression; reachable tasks: 'Book a room', 'Manager'"
        )
        for spelled in ("back", "BACK", " Back "):  # F4
            told = refused(Conversation(prompts, hotel()), spelled)
            assert told == refusal("nothing_to_go_back_to", reason)

    @pytest.mark.parametrize("code", get_args(RefusalCode))
    def test_every_refusal_says_what_would_have_been_accepted(
        self, prompts: FileSystemPrompts, code: str
    ) -> None:  # F12
        """By the tasks that can be reached, the channels, what can fill a variable, what would hold, or what
        is waited for. A new code needs a row here."""
        if code == "waiting_for_approval":
            waits, asked = answering(prompts, "waiting"), "reception"
        else:
            waits, asked = Conversation(prompts, hotel()), ASKED[code]
        told = refused(waits, asked)
        assert told["code"] == code
        assert told["command"] == f"/error {told['reason']}"
        assert told["reachableTasks"]
        if code == "missing_variables":
            assert all(row["fillableBy"] or row["fillableIn"] for row in told["missing"])
        elif code == "condition_not_met":
            assert told["condition"]["wouldHold"] == ["vars.var_boolean == true"]
        else:
            accepted = ("reachable tasks: 'Book a room', 'Manager'", "it is on: chat", "until then")
            assert any(words in told["reason"] for words in accepted)

    def test_where_nothing_can_be_reached_the_reason_says_so(self, prompts: FileSystemPrompts) -> None:
        lonely = minimal_version(tasks=[aio_task("desk")], firstTask="desk")
        told = refused(Conversation(prompts, lonely), "pool")
        assert told["reason"] == "there is no task 'pool'; reachable tasks: none"  # F12
        assert told["reachableTasks"] == []

    def test_another_command_may_take_the_refusals_place(self, prompts: FileSystemPrompts) -> None:
        told = refused(Conversation(prompts, hotel()), "cellar", "/human_task_failed timeout")
        assert told["command"] == "/human_task_failed timeout"  # F25, D4


class TestTheOrderOfTheRules:
    """Of several reasons the first is told: name, way, channel, variables, condition."""

    def document(self, **changes: Any) -> JsonObject:
        guarded = aio_task(
            "target",
            **{
                "channels": ["chat"],
                "transitionParameters": required("var_string"),
                "entryCondition": {"when": "false", "reason": "never"},
                **changes,
            },
        )
        return minimal_version(
            tasks=[aio_task("start", connectedTasks=["target"]), guarded], firstTask="start"
        )

    @pytest.mark.parametrize(
        ("changes", "memory", "code"),
        [
            pytest.param({}, {}, "channel_not_available", id="all-are-broken"),
            pytest.param({"channels": None}, {}, "missing_variables", id="on-every-channel"),
            pytest.param({"channels": ["phone"]}, {}, "missing_variables", id="on-this-channel"),
            pytest.param({"channels": None}, {"var_string": "x"}, "condition_not_met", id="with-the-value"),
            pytest.param({"channels": []}, {"var_string": "x"}, "channel_not_available", id="on-no-channel"),
            pytest.param(
                {"channels": None, "transitionParameters": []}, {}, "condition_not_met", id="needing-nothing"
            ),
        ],
    )
    def test_the_first_rule_that_is_broken_is_told(
        self, prompts: FileSystemPrompts, changes: JsonObject, memory: JsonObject, code: str
    ) -> None:
        talk = Conversation(prompts, self.document(**changes), memory=memory)
        assert refused(talk, "target")["code"] == code  # F11, F12

    def test_the_connections_condition_is_told_before_the_tasks_own(self, prompts: FileSystemPrompts) -> None:
        raw = self.document(channels=None, transitionParameters=[])
        raw["tasks"][0]["connectionConditions"] = {"target": {"when": "vars.var_number > 3"}}
        talk = Conversation(prompts, raw, memory={"var_number": 3})
        told = refused(talk, "target")
        assert (told["reason"], told["condition"]["of"]) == ("vars.var_number > 3", "connection")  # F11
        talk.load(tools=entries({"var_number": 4}))
        told = refused(talk, "target")
        assert (told["reason"], told["condition"]["of"]) == ("never", "task")

    @pytest.mark.parametrize(
        ("number", "flag", "state"),
        [
            (4, True, {"met": True, "reason": "a large party"}),
            (3, True, {"met": False, "reason": "a large party"}),
            (4, False, {"met": False, "reason": "with a deposit"}),
            (3, False, {"met": False, "reason": "a large party"}),
            (None, None, {"met": False, "reason": "a large party"}),
        ],
    )
    def test_a_reachable_task_tells_the_first_reason_that_closes_it(
        self, prompts: FileSystemPrompts, number: Any, flag: Any, state: JsonObject
    ) -> None:
        raw = self.document(
            channels=None,
            transitionParameters=[],
            entryCondition={"when": "vars.var_boolean == true", "reason": "with a deposit"},
        )
        rule = {"when": "vars.var_number > 3", "reason": "a large party"}
        raw["tasks"][0]["connectionConditions"] = {"target": rule}
        talk = Conversation(prompts, raw, memory={"var_number": number, "var_boolean": flag})
        (target,) = talk.agent_data()["reachableTasks"]
        assert target["condition"] == state  # F11, F12


class TestReachableTasks:
    @pytest.mark.parametrize(
        ("channel", "names"),
        [("phone", ["Book a room", "Manager"]), ("chat", ["Book a room", "minibar", "Manager"])],
    )
    def test_they_are_those_on_the_channel_but_the_present_one(
        self, prompts: FileSystemPrompts, channel: Any, names: list[str]
    ) -> None:
        runner = Conversation(prompts, hotel(), channel=channel).runner()
        found = reachable_tasks(runner.flow, runner.task, runner.guard)
        assert [reachable.task.name for reachable in found] == names  # F11, F28

    @pytest.mark.parametrize("flag", [True, False, None])
    def test_one_that_a_condition_closes_is_listed_and_says_so(
        self, prompts: FileSystemPrompts, flag: bool | None
    ) -> None:
        runner = Conversation(prompts, hotel(), memory={"var_boolean": flag}).runner()
        _, manager = reachable_tasks(runner.flow, runner.task, runner.guard)
        assert manager.open is (flag is True)  # F11

    @pytest.mark.parametrize(
        ("value", "missing"),
        [("Ada", False), ("", False), (0, False), (False, False), ([], False), (None, True)],
    )
    def test_a_variable_is_missing_while_it_has_no_value(
        self, prompts: FileSystemPrompts, value: Any, missing: bool
    ) -> None:
        runner = Conversation(prompts, hotel(), memory={"var_string": value}).runner()
        booking, _ = reachable_tasks(runner.flow, runner.task, runner.guard)
        assert ("var_string" in booking.missing) is missing  # F5, F11
        assert booking.required == ("var_string", "var_custom")


class TestWhatARefusalLeaves:
    def test_it_is_counted_and_told_and_nothing_else_moves(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, hotel())
        before = talk.session
        refused(talk, "booking")
        assert talk.session == before.model_copy(  # F11, F14
            update={"revision": before.revision + 1, "refused": {"booking": 1}}
        )
        assert talk.told == [("task_refused", "call-1", {"code": "missing_variables", "task": "booking"})]
        assert talk.due == []

    def test_refusals_of_a_task_are_counted_under_its_id(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, hotel())
        for asked in ("booking", "Book a room", "BOOK_A_ROOM", "minibar"):
            refused(talk, asked)
        assert talk.session.refused == {"booking": 3, "minibar": 1}  # F14

    @pytest.mark.parametrize("asked", ["pool", "back", ""])
    def test_names_that_no_task_has_are_counted_as_one(self, prompts: FileSystemPrompts, asked: str) -> None:
        talk = Conversation(prompts, hotel())
        refused(talk, asked)
        refused(talk, "no such task")
        assert talk.session.refused == {"": 2}  # F14

    def test_a_long_name_is_told_cut(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, hotel())
        refused(talk, "x" * 512)
        ((_, _, details),) = talk.told
        assert details["task"] == "x" * 200  # F40

    def test_after_a_change_that_was_made_there_is_no_refusal_to_ask_for(
        self, prompts: FileSystemPrompts
    ) -> None:
        runner = Conversation(prompts, hotel(), memory={"var_boolean": True}).runner()
        assert runner.change_task("manager")
        assert not runner.has_task_validation_error()  # F12
        with pytest.raises(LookupError, match="was not refused"):
            get_refusal(runner)


class TestWhatAChangeLeaves:
    def test_the_task_is_entered_counted_and_told(self, prompts: FileSystemPrompts) -> None:
        memory = {"var_string": "Ada", "var_custom": {"room": 7}}
        talk = Conversation(prompts, hotel(), memory=memory)
        talk.change("booking")
        assert talk.session.states.configuration == ("active", "active/booking")  # F10, F14
        assert talk.session.entered == {"desk": 1, "booking": 1}
        assert talk.session.refused == {}
        assert talk.session.contacts["call-1"].tasks == ("Front desk", "Book a room")
        assert talk.session.revision == 2
        assert talk.told == [("task_changed", "call-1", {"from": "Front desk", "to": "Book a room"})]
        assert talk.due == []

    def test_a_transfer_asks_for_its_people_and_plans_its_own_end(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, hotel(), memory={"var_boolean": True})
        talk.change("manager")
        asked_for = {"timeout": 90.0, "skills": ["complaints"], "agents": ["m-1"]}
        assert talk.told == [  # F34, F40
            ("task_changed", "call-1", {"from": "Front desk", "to": "Manager"}),
            ("routing_requested", "call-1", asked_for),
        ]
        assert talk.due == [("routing", "", 90.0)]
        assert talk.session.states.configuration == ("active", "active/manager", "active/manager/routing")

    def test_coming_back_counts_again(self, prompts: FileSystemPrompts) -> None:
        talk = Conversation(prompts, hotel(), memory={"var_boolean": True})
        for task in ("manager", "desk", "manager", "desk"):
            talk.change(task)
        assert talk.session.entered == {"desk": 3, "manager": 2}  # F14
        assert talk.session.revision == 5
        assert talk.session.contacts["call-1"].tasks == (
            *("Front desk", "Manager", "Front desk", "Manager", "Front desk"),
        )


class TestTheNearestTask:
    """Where a contact is put whose channel the task lacks (F28)."""

    def version(self, *tasks: tuple[str, str, list[str]]) -> Any:
        raw = [
            aio_task(name, channels=[channel] if channel else None, connectedTasks=connected)
            for name, channel, connected in tasks
        ]
        return minimal_version(tasks=raw, firstTask=tasks[0][0])

    @pytest.mark.parametrize(
        ("tasks", "nearest"),
        [
            pytest.param([("a", "", ["b"]), ("b", "chat", [])], "a", id="it-is-there-itself"),
            pytest.param([("a", "phone", ["b"]), ("b", "chat", [])], "b", id="the-next"),
            pytest.param(
                [("a", "phone", ["b", "c"]), ("b", "phone", ["d"]), ("c", "chat", []), ("d", "chat", [])],
                "c",
                id="the-nearer-of-two",
            ),
            pytest.param(
                [("a", "phone", ["b"]), ("b", "phone", ["a", "c"]), ("c", "chat", [])], "c", id="round-a-ring"
            ),
            pytest.param(
                [("a", "phone", ["c", "b"]), ("b", "chat", []), ("c", "chat", [])], "c", id="by-their-order"
            ),
            pytest.param([("a", "phone", []), ("b", "phone", []), ("c", "chat", [])], "c", id="any-other"),
        ],
    )
    def test_it_is_the_nearest_along_the_connections_else_any(
        self, prompts: FileSystemPrompts, tasks: Any, nearest: str
    ) -> None:
        flow = Conversation(prompts, self.version(*tasks)).flow
        assert nearest_task(flow, "a", "chat").id == nearest  # F28, D6

    def test_where_no_task_has_the_channel_it_is_refused(self, prompts: FileSystemPrompts) -> None:
        flow = Conversation(prompts, self.version(("a", "phone", ["b"]), ("b", "phone", []))).flow
        with pytest.raises(CorrectTheInput) as raised:
            nearest_task(flow, "a", "chat")
        message = "no task of version 'version-1' is available on 'chat'"
        (finding,) = raised.value.findings
        assert raised.value.code == "channel_not_supported"  # F28
        assert (finding.pointer, finding.code, finding.message) == (
            "/channel",
            "channel_not_supported",
            message,
        )
