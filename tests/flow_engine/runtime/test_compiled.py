"""A version made ready to run: its tasks, their names, its languages and its lifetime (F4, F8, F13, F16)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.documents.checks import LONGEST_S
from flow_engine.errors import CorrectTheInput, Finding, ReloadAndDecide
from flow_engine.runtime.compiled import DAY_S, CompiledFlow, compile_flow
from flow_engine.task_types import TASK_KINDS
from flow_engine.variables import VariableSpec
from tests.flow_engine.documents.samples import (
    JsonObject,
    aio_task,
    full_routing,
    hum_task,
    minimal_version,
    parameter,
)


def compiled(**changes: Any) -> CompiledFlow:
    return compile_flow(minimal_version(**changes), "hash")


def multi_contact(limit_s: float) -> JsonObject:
    return {
        "multiContact": True,
        "conversationTimeLimit": limit_s,
        "customHandler": "https://hooks.example.com",
    }


class TestPlans:
    """What a step needs of a task, worked out once."""

    def task(self, raw: JsonObject, **changes: Any) -> JsonObject:
        """The plan of a task, without its document, beside a second task that it leads to."""
        others = [hum_task("operator", connectedTasks=[raw["_id"]])]
        flow = compiled(tasks=[raw, *others], firstTask=raw["_id"], **changes)
        plan = flow.tasks[raw["_id"]]
        return {name: getattr(plan, name) for name in plan.__slots__ if name != "document"}

    def test_a_task_that_says_nothing_more_than_it_must(self) -> None:
        assert self.task(aio_task("reception")) == {  # F4, F11
            "id": "reception",
            "name": "reception",
            "type": "AIO",
            "connected": (),
            "channels": None,
            "required": (),
            "tools": (),
            "transfer_tags": (),
            "advances": (),
            "kind": TASK_KINDS["AIO"],
        }

    def test_a_task_that_says_everything(self) -> None:
        selections = [
            {
                "mcpServerName": "agenda",
                "selectedTools": [
                    {"toolName": "book", "toolParameters": [parameter("who", "variable", "var_string")]},
                    {"toolName": "cancel", "toolParameters": []},
                ],
            },
            {"mcpServerName": "weather", "selectedTools": [{"toolName": "today", "toolParameters": []}]},
        ]
        servers = [
            {"name": "agenda", "url": "https://agenda.example.com/mcp"},
            {"name": "weather", "url": "https://weather.example.com/mcp"},
        ]
        for server, tools in zip(servers, (["book", "cancel"], ["today"]), strict=True):
            server["includedTools"] = [{"toolName": tool, "uiToolDescription": tool} for tool in tools]  # type: ignore[assignment]
        raw = hum_task(
            "visit",
            type="AIS",
            name="Book a visit",
            channels=["phone", "chat"],
            connectedTasks=["operator"],
            mcpToolSelection=selections,
            routingParameters=full_routing(),
            transitionParameters=[
                {"variableId": "var_phone", "required": True},
                {"variableId": "var_date", "required": False},
                {"variableId": "var_string", "required": True},
            ],
        )
        assert self.task(raw, mcpServers=servers) == {  # F11, F12, F25
            "id": "visit",
            "name": "Book a visit",
            "type": "AIS",
            "connected": ("operator",),
            "channels": frozenset({"phone", "chat"}),
            "required": ("var_phone", "var_string"),
            "tools": ("book", "cancel", "today"),
            "transfer_tags": (
                ("skills", ("radiology",)),
                ("optional_skills", ("english",)),
                ("agents", ("agent-7",)),
            ),
            "advances": (),
            "kind": TASK_KINDS["AIS"],
        }

    def test_the_routing_of_a_task_without_a_human_is_not_asked_for(self) -> None:
        raw = aio_task("reception", routingParameters=full_routing())
        assert self.task(raw)["transfer_tags"] == ()  # F25

    def test_a_list_of_no_channel_is_not_all_channels(self) -> None:
        assert self.task(aio_task("reception", channels=[]))["channels"] == frozenset()  # F11


class TestNames:
    FLOW = compiled(
        tasks=[
            aio_task("t1", name="Visita Perché", connectedTasks=["T2"]),
            aio_task("T2", name="Österreich Straße", connectedTasks=["t1"]),
            aio_task("just an id", connectedTasks=["t1"]),
        ],
        firstTask="t1",
    )

    @pytest.mark.parametrize(
        ("asked", "found"),
        [
            ("t1", "t1"),
            ("Visita Perché", "t1"),
            ("visita perche", "t1"),
            ("VISITA_PERCHÉ", "t1"),
            ("visita_perche", "t1"),
            ("Visita Perche\u0301", "t1"),
            ("T2", "T2"),
            ("osterreich strasse", "T2"),
            ("ÖSTERREICH_STRASSE", "T2"),
            ("just an id", "just an id"),
            ("Just_An_Id", "just an id"),
        ],
    )
    def test_a_task_is_found_by_id_or_by_its_name_however_spelled(self, asked: str, found: str) -> None:
        task = self.FLOW.task_named(asked)
        assert task is not None
        assert task.id == found  # F4

    @pytest.mark.parametrize("asked", ["", " ", "t2 ", "visita", "perché", "Visita  Perché  bis", "t1/"])
    def test_what_names_no_task_finds_none(self, asked: str) -> None:
        assert self.FLOW.task_named(asked) is None  # F12

    def test_an_id_goes_before_the_name_of_another_task(self) -> None:
        tasks = [aio_task("b", name="first"), aio_task("a", name="second")]
        flow = compiled(tasks=tasks, firstTask="b")
        assert [flow.names[name] for name in ("a", "b", "first", "second")] == ["a", "b", "b", "a"]  # F4


class TestLanguages:
    FLOW = compiled(supportedLanguages=["en-US", "it-IT", "it-CH", "de"], defaultLanguage="en-US")

    @pytest.mark.parametrize(
        ("asked", "spoken"),
        [
            ("it-IT", "it-IT"),
            ("it-CH", "it-CH"),
            ("IT-ch", "it-CH"),
            ("it_CH", "it-CH"),
            ("it", "it-IT"),
            ("IT", "it-IT"),
            ("en", "en-US"),
            ("de", "de"),
            ("de-AT", "de"),
            ("en-GB", "en-US"),
            ("it-SM", "it-IT"),
            ("fr", None),
            ("fr-FR", None),
            ("i", None),
            ("ital", None),
            ("-IT", None),
            ("", None),
            (None, None),
        ],
    )
    def test_a_tag_means_itself_or_one_of_its_language(self, asked: str | None, spoken: str | None) -> None:
        assert self.FLOW.supported_language(asked) == spoken  # F28, F33

    @pytest.mark.parametrize(
        ("asked", "spoken"), [("it", "it-CH"), ("it-SM", "it-CH"), ("it-IT", "it-IT"), ("en-GB", "en-US")]
    )
    def test_who_speaks_a_kind_of_a_language_goes_on_in_it(self, asked: str, spoken: str) -> None:
        assert self.FLOW.supported_language(asked, "it-CH") == spoken  # F33: a detector says 'it'

    def test_the_kind_without_a_region_goes_before_that_of_another_region(self) -> None:
        flow = compiled(supportedLanguages=["de-CH", "de", "en-US"], defaultLanguage="en-US")
        assert [flow.supported_language(asked) for asked in ("de-AT", "de")] == ["de", "de"]  # F28

    @settings(max_examples=30)
    @given(st.text(max_size=12))
    def test_whatever_is_asked_for_only_a_supported_language_is_spoken(self, asked: str) -> None:
        assert self.FLOW.supported_language(asked) in {None, "en-US", "it-IT", "it-CH", "de"}  # F33


class TestLifetime:
    """The expiry of every key of a conversation: the longest time limit, but a day at least (F16)."""

    @pytest.mark.parametrize(
        ("of_the_flow", "of_the_task", "lifetime_s"),
        [
            pytest.param(None, None, DAY_S, id="without-limits"),
            pytest.param(60, None, DAY_S, id="less-than-a-day"),
            pytest.param(DAY_S, None, DAY_S, id="a-day"),
            pytest.param(DAY_S + 1, None, DAY_S + 1, id="a-second-more"),
            pytest.param(None, 200_000, 200_000, id="of-a-task"),
            pytest.param(300_000, 200_000, 300_000, id="the-longer-of-both"),
            pytest.param(200_000, 300_000, 300_000, id="the-longer-is-the-tasks"),
            pytest.param(DAY_S + 0.9, None, DAY_S, id="whole-seconds"),
            pytest.param(LONGEST_S, None, LONGEST_S, id="the-longest"),
        ],
    )
    def test_it_is_the_longest_limit_and_a_day_at_least(
        self, of_the_flow: float | None, of_the_task: float | None, lifetime_s: int
    ) -> None:
        document: JsonObject = {}
        if of_the_flow is not None:
            document["closureConfig"] = multi_contact(of_the_flow)
        if of_the_task is not None:
            document["tasks"] = [aio_task(closureConfig=multi_contact(of_the_task))]
        flow = compiled(**document)
        assert (flow.lifetime_s, type(flow.lifetime_s)) == (lifetime_s, int)  # F16

    def test_the_limit_of_a_single_contact_counts_too(self) -> None:
        single = {"multiContact": False, "conversationTimeLimit": 900_000}
        assert compiled(closureConfig=single).lifetime_s == 900_000  # F16
        assert compiled(tasks=[aio_task(closureConfig=single)]).lifetime_s == 900_000

    @pytest.mark.parametrize(
        ("days", "lifetime_s"), [(1, DAY_S), (1.5, 129_600), (3, 3 * DAY_S), (3650, 5 * DAY_S)]
    )
    def test_retention_makes_it_shorter_and_never_longer(self, days: float, lifetime_s: int) -> None:
        flow = compiled(closureConfig=multi_contact(5 * DAY_S), retention={"days": days})
        assert (flow.lifetime_s, type(flow.lifetime_s)) == (lifetime_s, int)  # journal: retention

    def test_without_longer_limits_retention_changes_nothing(self) -> None:
        assert compiled(retention={"days": 90}).lifetime_s == DAY_S  # F16


class TestVariables:
    def test_they_keep_their_order_and_what_mining_asks_for(self) -> None:
        assert list(compiled().variables) == [  # F5
            VariableSpec("var_string", "a string", "string", prompt="a string"),
            VariableSpec("var_number", "a number", "number", prompt="a number"),
            VariableSpec("var_boolean", "a boolean", "boolean", prompt="a boolean"),
            VariableSpec("var_date", "a date", "date", prompt="a date"),
            VariableSpec("var_phone", "a phone", "phone", prompt="a phone"),
            VariableSpec("var_enum", "size", "enum", prompt="size", enum_values=("S", "M", 42)),
            VariableSpec("var_custom", "appointment", "custom"),
        ]

    @pytest.mark.parametrize(
        ("when", "by_the_clock"),
        [
            (None, False),
            ("has(vars.var_string)", False),
            ("channel == 'phone'", False),
            ("now < '2026-06-01'", True),
            ("not (today > '2026-06-01')", True),
        ],
    )
    def test_a_flow_knows_whether_time_alone_can_change_a_condition(
        self, when: str | None, by_the_clock: bool
    ) -> None:
        entry: JsonObject = {} if when is None else {"entryCondition": {"when": when}}
        flow = compiled(tasks=[aio_task(connectedTasks=["operator"]), hum_task(**entry)])
        assert flow.by_the_clock is by_the_clock  # F11
        assert set(flow.conditions) == ({when} if when else set())


class TestRefusals:
    def test_a_draft_is_kept_and_never_run(self) -> None:
        with pytest.raises(ReloadAndDecide) as raised:
            compiled(draft=True)
        assert raised.value.code == "version_is_draft"  # F8
        assert raised.value.detail == (
            "version 'version-1' is a draft: drafts are kept and listed, only saved versions run"
        )
        assert raised.value.accepted == ("a version saved with draft: false",)

    def test_a_condition_that_cannot_be_read_is_refused_where_it_stands(self) -> None:
        tasks = [aio_task(connectedTasks=["operator"]), hum_task(entryCondition={"when": "1 =="})]
        with pytest.raises(CorrectTheInput) as raised:
            compiled(tasks=tasks)
        (finding,) = raised.value.findings
        assert raised.value.code == "document_invalid"  # F9
        assert raised.value.detail == "version 'version-1' has a condition that cannot be read"
        assert (finding.pointer, finding.code) == ("/tasks/1/entryCondition/when", "condition_syntax")

    def test_what_is_no_document_is_refused_with_what_is_wrong(self) -> None:
        with pytest.raises(CorrectTheInput) as raised:
            compiled(draft="maybe")
        assert raised.value.code == "document_invalid"  # F2
        assert raised.value.findings == (Finding("/draft", "wrong_type", "must be a boolean, not a string"),)

    def test_the_hash_and_the_ids_are_those_of_the_version(self) -> None:
        flow = compile_flow(minimal_version(), "sha256:abc")
        assert (flow.version_id, flow.flow_id, flow.content_hash) == ("version-1", "flow-1", "sha256:abc")
