"""One small version in every notation, as it is written, and what of it is drawn how (F10, F27)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flow_engine.diagrams.drawing import LISTED_NAMES, LONGEST_NAME, drawing_of, first_names, plain
from flow_engine.diagrams.graphviz import dot
from flow_engine.diagrams.mermaid import mermaid
from flow_engine.diagrams.xstate import xstate
from flow_engine.documents import FlowVersion, parse_version
from flow_engine.errors import ReloadAndDecide
from tests.flow_engine.diagrams.drawn import draft
from tests.flow_engine.documents.samples import JsonObject, aio_task, hum_task, minimal_version

MULTI = {"multiContact": True, "conversationTimeLimit": 60, "customHandler": "https://a.example/x"}


def desk(**changes: Any) -> FlowVersion:
    """A task of each type; every kind of condition, connection and closure once."""
    needs = [("var_string", True), ("var_date", False), ("var_phone", True)]
    tasks = [
        aio_task(
            "desk",
            name="Front desk",
            connectedTasks=["book", "boss", "watch"],
            connectionConditions={
                "book": {"when": "vars.var_number > 1", "advance": "auto"},
                "boss": {"advance": "suggest"},
            },
        ),
        aio_task(
            "book",
            name="Book",
            channels=["phone"],
            connectedTasks=["desk"],
            closureConfig=MULTI,
            transitionParameters=[{"variableId": v, "required": required} for v, required in needs],
        ),
        hum_task("boss", name="Boss", connectedTasks=["desk"], entryCondition={"when": "channel == 'phone'"}),
        hum_task("watch", type="AIS", channels=[]),
    ]
    return parse_version(minimal_version(**{"tasks": tasks, "firstTask": "desk", **changes}))


MERMAID = """\
stateDiagram-v2
    [*] --> active
    state active {
        [*] --> t0
        state "Front desk · AIO" as t0
        state "Book · AIO" as t1
        state "Boss · HUM" as t2 {
            state "routing" as t2_routing
            state "connected" as t2_connected
            state "completed" as t2_completed
            state "failed" as t2_failed
            [*] --> t2_routing
            t2_routing --> t2_connected : connected
            t2_connected --> t2_completed : completed
            t2_routing --> t2_failed : failed
            t2_connected --> t2_failed : failed
        }
        state "watch · AIS" as t3 {
            state "ai" as t3_ai
            state "human" as t3_human
            [*] --> t3_ai
            t3_ai --> t3_human : taken over
            t3_human --> t3_ai : released
        }
        t0 --> t1 : by itself · when vars.var#95;number #62; 1 · needs a string, a phone · only on phone
        t0 --> t2 : suggested · when channel #61;#61; #39;phone#39;
        t0 --> t3 : on no channel
        t1 --> t0
        t2 --> t0
    }
    active --> between_contacts : contact ended in Book
    between_contacts --> active : contact resumed in the same task
    between_contacts --> closed : conversation closed
    active --> closed : conversation closed
    closed --> [*]
    classDef AIO fill:#e8f1fd,stroke:#2f6fd0,color:#12305e
    class t0,t1 AIO
    classDef AIS fill:#f1eafd,stroke:#7a4fd0,color:#38206b
    class t3 AIS
    classDef HUM fill:#fdf0e0,stroke:#cf7f1c,color:#5f3806
    class t2 HUM
"""

TABLE = '<table border="0" cellborder="0" cellspacing="0" cellpadding="1">'
AI, HUMAN, SUPERVISED = (
    'fillcolor="#eaf2fe", color="#2f6fd0", fontcolor="#12305e"',
    'fillcolor="#fef2e3", color="#cf7f1c", fontcolor="#5f3806"',
    'fillcolor="#f3edfe", color="#7a4fd0", fontcolor="#38206b"',
)


def box(number: int, name: str, kind: str, line: str, colours: str, *small: str) -> str:
    rows = [f'<b>{name}</b> <font point-size="9" color="{line}"> {kind}</font>']
    rows += [f'<font point-size="9">{text}</font>' for text in small]
    cells = "".join(f"<tr><td>{row}</td></tr>" for row in rows)
    return f"    t{number} [label=<{TABLE}{cells}</table>>, {colours}]"


def label(text: str) -> str:
    return f'<{TABLE}<tr><td width="8"></td><td>{text}</td></tr></table>>'


DOT = [
    box(0, "Front desk", "AIO", "#2f6fd0", AI),
    box(1, "Book", "AIO", "#2f6fd0", AI, "needs a string, a phone", "only on phone"),
    box(
        *(2, "Boss", "HUM", "#cf7f1c", HUMAN),
        "routing &#8594; connected &#8594; completed &#124; failed",
        "when channel &#61;&#61; &#39;phone&#39;",
    ),
    box(3, "watch", "AIS", "#7a4fd0", SUPERVISED, "ai &#8644; human", "on no channel"),
    "  }",
    '  start -> t0 [color="#333a44"]',
    f"  t0 -> t1 [label={label('by itself when vars.var&#95;number &#62; 1')}]",
    f"  t0 -> t2 [label={label('suggested')}]",
    "  t0 -> t3",
    "  t1 -> t0",
    "  t2 -> t0",
    '  between [label="between contacts", fillcolor="#eef7f1", color="#3f8f63"]',
    f"  t3 -> between [ltail=cluster_active, style=dashed, label={label('contact ended in Book')}]",
    "  between -> t3 [lhead=cluster_active, style=dashed, "
    f"label={label('contact resumed in the same task')}]",
    f"  between -> closed [style=dashed, label={label('conversation closed')}]",
    f"  t3 -> closed [ltail=cluster_active, style=dashed, label={label('conversation closed')}]",
    "}",
]


def guard(kind: str, **params: object) -> JsonObject:
    return {"type": kind, "params": params}


XSTATE: JsonObject = {
    "id": "version:version-1",
    "initial": "active",
    "states": {
        "active": {
            "initial": "task:desk",
            "on": {"conversation_closed": "closed"},
            "states": {
                "task:desk": {
                    "description": "Front desk",
                    "meta": {"taskId": "desk", "type": "AIO", "channels": None},
                    "on": {
                        "enter:book": {
                            "target": "task:book",
                            "meta": {"advance": "auto"},
                            "guard": guard(
                                "and",
                                guards=[
                                    guard("hasVariables", required=["var_string", "var_phone"]),
                                    guard("channelIs", channels=["phone"]),
                                    guard("conditionHolds", when="vars.var_number > 1"),
                                ],
                            ),
                        },
                        "enter:boss": {
                            "target": "task:boss",
                            "meta": {"advance": "suggest"},
                            "guard": guard("conditionHolds", when="channel == 'phone'"),
                        },
                        "enter:watch": {
                            "target": "task:watch",
                            "guard": guard("channelIs", channels=[]),
                        },
                    },
                },
                "task:book": {
                    "description": "Book",
                    "meta": {"taskId": "book", "type": "AIO", "channels": ["phone"]},
                    "on": {
                        "enter:desk": {"target": "task:desk"},
                        "contact_ended": "#between_contacts",
                    },
                },
                "task:boss": {
                    "description": "Boss",
                    "meta": {"taskId": "boss", "type": "HUM", "channels": None},
                    "on": {"enter:desk": {"target": "task:desk"}},
                    "initial": "routing",
                    "states": {
                        "routing": {"on": {"human_connected": "connected", "human_failed": "failed"}},
                        "connected": {"on": {"human_completed": "completed", "human_failed": "failed"}},
                        "completed": {},
                        "failed": {},
                    },
                },
                "task:watch": {
                    "description": "watch",
                    "meta": {"taskId": "watch", "type": "AIS", "channels": []},
                    "on": {},
                    "initial": "ai",
                    "states": {
                        "ai": {"on": {"human_taken_over": "human"}},
                        "human": {"on": {"human_released": "ai"}},
                    },
                },
                "back": {"type": "history", "history": "shallow", "target": "task:desk"},
            },
        },
        "between_contacts": {
            "id": "between_contacts",
            "on": {"contact_resumed": "active.back", "conversation_closed": "closed"},
        },
        "closed": {"type": "final"},
    },
}


class TestNotations:
    def test_mermaid(self) -> None:
        assert mermaid(desk()) == MERMAID  # F27

    def test_graphviz(self) -> None:
        lines = dot(desk()).splitlines()
        begins = next(number for number, line in enumerate(lines) if line.startswith("    t0 "))
        assert lines[begins:] == DOT  # F27
        assert "  nslimit=2" not in lines

    def test_xstate(self) -> None:
        assert orjson.loads(orjson.dumps(xstate(desk()))) == XSTATE  # F10, F27

    def test_there_and_back_is_one_line_of_graphviz_unless_a_way_says_something(self) -> None:
        tasks = [aio_task("a", connectedTasks=["b"]), aio_task("b", connectedTasks=["a"])]
        assert "  t0 -> t1 [dir=both]" in dot(desk(tasks=tasks, firstTask="a")).splitlines()
        tasks[1]["connectionConditions"] = {"a": {"when": "vars.var_boolean == true"}}
        lines = dot(desk(tasks=tasks, firstTask="a")).splitlines()
        assert "  t0 -> t1" in lines
        assert f"  t1 -> t0 [label={label('when vars.var&#95;boolean &#61;&#61; true')}]" in lines

    def test_a_digression_is_no_dead_end(self) -> None:  # F27
        version = desk(
            tasks=[aio_task("a", connectedTasks=["b"]), aio_task("b", returns=True)], firstTask="a"
        )
        assert 'state "b · AIO, returns" as t1' in mermaid(version)
        assert " AIO, returns</font>" in dot(version)
        active: Any = xstate(version)["states"]
        metas = [active["active"]["states"][name]["meta"] for name in ("task:a", "task:b")]
        assert [meta.get("returns") for meta in metas] == [None, True]

    @pytest.mark.parametrize(("tasks", "bounded"), [(60, False), (61, True)])
    def test_the_layout_of_many_tasks_is_bounded(self, tasks: int, bounded: bool) -> None:
        many = [aio_task(f"t{number}") for number in range(tasks)]
        assert ("  nslimit=2" in dot(desk(tasks=many, firstTask="t0")).splitlines()) is bounded


class TestTheWayToBetweenContacts:
    @pytest.mark.parametrize(
        ("several", "words"),
        [
            ((), None),
            (("a", "b", "c"), "contact ended"),
            (("a", "b"), "contact ended, but for c"),
            (("a",), "contact ended in a"),
        ],
    )
    def test_it_names_the_fewer_tasks(self, several: tuple[str, ...], words: str | None) -> None:
        tasks = [aio_task(name, **({"closureConfig": MULTI} if name in several else {})) for name in "abc"]
        version = desk(tasks=tasks, firstTask="a")
        text = mermaid(version)
        assert ("between_contacts" in text) is (words is not None)  # F10
        if words is not None:
            assert drawing_of(version).end_of_contact == words
            assert f"    active --> between_contacts : {words}\n" in text
        assert ("between_contacts" in xstate(version)["states"]) is (words is not None)  # type: ignore[operator]


class TestDrafts:
    """What is not there yet is drawn as far as it goes, and told (F8, F27)."""

    @pytest.mark.parametrize(
        ("changes", "gaps"),
        [
            ({"tasks": [aio_task("a")]}, ("the first task is not set",)),
            ({"tasks": [aio_task("a")], "firstTask": "b"}, ("there is no task 'b'",)),
            (
                {"tasks": [aio_task("a", connectedTasks=["x", "a", "x"])], "firstTask": "a"},
                ("there is no task 'x'",),
            ),
            (
                {"tasks": [aio_task("a"), aio_task("a")], "firstTask": "a"},
                ("two tasks have the id 'a'",),
            ),
            ({"tasks": [aio_task("a")], "firstTask": "a"}, ()),
        ],
        ids=["no-first-task", "unknown-first-task", "unknown-connection", "twice", "whole"],
    )
    def test_gaps_are_told_and_keep_it_from_being_a_machine(
        self, changes: JsonObject, gaps: tuple[str, ...]
    ) -> None:
        version = draft(**changes)
        assert drawing_of(version).gaps == gaps
        if not gaps:
            assert xstate(version)["id"]
            return
        with pytest.raises(ReloadAndDecide) as raised:
            xstate(version)
        assert raised.value.code == "draft_incomplete"
        assert raised.value.detail == f"this draft is not a machine yet: {'; '.join(gaps)}"
        assert raised.value.accepted == ("mermaid", "svg")

    def test_a_missing_task_is_a_box_without_a_type(self) -> None:
        text = mermaid(draft(tasks=[aio_task("a", connectedTasks=["x"])], firstTask="a"))
        assert '        state "x · missing" as t1\n' in text
        assert "        t0 --> t1\n" in text
        assert text.endswith("    class t1 missing\n")

    def test_of_nothing_there_is_nothing_to_draw(self) -> None:
        for notation in (mermaid, dot, xstate):
            with pytest.raises(ReloadAndDecide) as raised:
                notation(draft())
            assert raised.value.code == "nothing_to_draw"
            assert raised.value.accepted == ("a version with at least one task",)


class TestLabels:
    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("Front desk", "Front desk"),
            ("two\nlines\tand  blanks ", "two lines and blanks"),
            ("", "–"),
            ("\x00\u2028", "–"),
            ("x" * LONGEST_NAME, "x" * LONGEST_NAME),
            ("x" * (LONGEST_NAME + 1), "x" * (LONGEST_NAME - 1) + "…"),
            ("👩\u200d⚕️", "👩\u200d⚕️"),
            ("\u202eback", "back"),
        ],
    )
    def test_a_label_is_one_short_line(self, text: str, line: str) -> None:
        assert plain(text) == line  # F27

    @settings(max_examples=30)
    @given(st.text(max_size=300))
    def test_whatever_the_name_it_is_one_line_of_bounded_length(self, text: str) -> None:
        line = plain(text)
        assert 1 <= len(line) <= LONGEST_NAME
        assert line.splitlines() == [line]

    @pytest.mark.parametrize("more", [0, 1, 100])
    def test_of_many_names_the_rest_is_counted(self, more: int) -> None:
        names = [str(number) for number in range(LISTED_NAMES + more)]
        shown = ", ".join(names[:LISTED_NAMES])
        assert first_names(names) == (f"{shown} and {more} more" if more else shown)
