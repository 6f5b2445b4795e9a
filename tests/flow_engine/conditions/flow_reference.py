"""What a conversation may do, read again from the document: a small second engine without charts or guards.

Everything here is by the sentences of docs/flow-document.md, on plain JSON. Conditions are judged by the
second reading of `expressions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from flow_engine.conditions import language as lang
from flow_engine.conditions.evaluation import Facts
from tests.flow_engine.conditions import expressions
from tests.flow_engine.documents.samples import JsonObject, aio_task, minimal_version

CHANNEL = "phone"
TASKS = (*expressions.TASKS, "third")
TENANT = {**expressions.facts().tenant, "timezone": "Europe/Rome"}
CONTACT = dict(expressions.facts().contact)

_read = lru_cache(maxsize=4096)(lang.parse)


class Reference:
    """One conversation: the task that it is in, its values, and its counts."""

    def __init__(self, raw: JsonObject, now: datetime) -> None:
        self.raw = raw
        self.tasks: dict[str, JsonObject] = {each["_id"]: each for each in raw["tasks"]}
        self.task: str = raw["firstTask"]
        self.memory: dict[str, Any] = {}
        self.entries = {self.task: 1}
        self.refusals: dict[str, int] = {}
        self.entered_at = now
        self.watched = ""
        self.ready: dict[str, int] = {}
        self.stalled: set[str] = set()
        self.advance(now, None)

    # --- what holds ---------------------------------------------------------------------------

    def facts(self, now: datetime) -> Facts:
        known: dict[str, Any] = {"entries": dict(self.entries), "refusals": dict(self.refusals)}
        return expressions.facts(dict(self.memory), tenant=TENANT, contact=CONTACT, now=now, **known)

    def holds(self, when: str | None, facts: Facts) -> bool:
        return when is None or expressions.truth(_read(when), facts) is True

    def ways(self, task: str) -> list[str]:
        own, others = self.tasks[task]["connectedTasks"], self.raw.get("globalTasks", [])
        excluded = self.tasks[task].get("excludedGlobalTasks", [])
        every = [*own, *(each for each in others if each not in excluded)]
        return [each for each in dict.fromkeys(every) if each != task]

    def way(self, source: str, target: str) -> JsonObject:
        return self.tasks[source].get("connectionConditions", {}).get(target, {})

    def conditions(self, source: str, target: str) -> tuple[str | None, str | None]:
        """That of the connection, then the task's own."""
        own = self.tasks[target].get("entryCondition", {})
        return self.way(source, target).get("when"), own.get("when")

    def required(self, target: str) -> list[str]:
        return [p["variableId"] for p in self.tasks[target]["transitionParameters"] if p["required"]]

    def asked(self, target: str, facts: Facts) -> bool:
        """Whether it comes to the conditions: the channel has the task, and nothing is missing."""
        channels = self.tasks[target].get("channels")
        return (channels is None or CHANNEL in channels) and all(
            each in facts.memory for each in self.required(target)
        )

    def opens(self, source: str, target: str, facts: Facts) -> bool:
        conditions = self.conditions(source, target)
        return self.asked(target, facts) and all(self.holds(each, facts) for each in conditions)

    def tools(self, facts: Facts) -> list[str]:
        chosen = self.tasks[self.task].get("mcpToolSelection", [])
        return [
            tool["toolName"]
            for selection in chosen
            for tool in selection["selectedTools"]
            if self.holds(tool.get("when"), facts)
        ]

    def checkpoints(self, facts: Facts) -> list[str]:
        of_version = {each["_id"]: each.get("when") for each in self.raw["checkpoints"]}
        return [
            point["_id"]
            for point in self.tasks[self.task]["enabledCheckpoints"]
            if self.holds(point.get("when", of_version[point["_id"]]), facts)
        ]

    def suggested(self, facts: Facts) -> list[str]:
        left_aside = self.stalled if self.watched == self.task else set[str]()
        return [
            target
            for target in self.ways(self.task)
            if ("advance" in self.way(self.task, target) or target in left_aside)
            and self.opens(self.task, target, facts)
        ]

    # --- what happens -------------------------------------------------------------------------

    def enter(self, target: str, now: datetime) -> None:
        self.task, self.entered_at = target, now
        self.entries[target] = self.entries.get(target, 0) + 1

    def advance(self, now: datetime, before: Facts | None) -> None:
        """Go on by what came to hold since `before`; from what is reached by that, by all that holds."""
        passed = {self.task}
        while target := next((each for each in self.leading_on(now, before) if each not in passed), None):
            self.enter(target, now)
            passed.add(target)
            before = None

    def leading_on(self, now: datetime, before: Facts | None) -> Iterator[str]:
        facts = self.facts(now)
        for target in self.ways(self.task):
            by_itself = self.way(self.task, target).get("advance") == "auto"
            held = before is not None and self.opens(self.task, target, before)
            if by_itself and not held and self.opens(self.task, target, facts):
                yield target

    def written(self, values: JsonObject, now: datetime) -> None:
        before = self.facts(self.entered_at)
        self.memory |= values
        self.advance(now, before)

    def changed(self, target: str, now: datetime) -> bool:
        left, before = self.task, self.facts(self.entered_at)
        done = target in self.ways(left) and self.opens(left, target, self.facts(now))
        if done:
            before = self.facts(now)
            self.enter(target, now)
        else:
            self.refusals[target] = self.refusals.get(target, 0) + 1
        self.advance(now, before)
        return done

    def heard(self, now: datetime, stalled_after: int) -> None:
        """A turn of the user that says nothing of use."""
        if self.watched != self.task:
            self.watched, self.ready, self.stalled = self.task, {}, set()
        facts = self.facts(now)
        for target in self.ways(self.task):
            if self.required(target) and self.opens(self.task, target, facts):
                self.ready[target] = self.ready.get(target, 0) + 1
                if self.ready[target] == stalled_after:
                    self.stalled.add(target)
        self.advance(now, self.facts(self.entered_at))


# --- random documents ---------------------------------------------------------------------------

_LIKELY = (
    "has(vars.name)",
    "not has(vars.name)",
    "vars.age > 1",
    "vars.age <= 1 or not has(vars.age)",
    "vars.vip",
    "vars.size in ['S', 42]",
    "entries('third') < 2",
    "entries('menu') >= 2",
    "refusals('a task') > 0",
    "channel == 'phone'",
    "now > '2026-01-15T23:40:00Z'",
    "true",
    "true",
    "false",
)
_likely = st.sampled_from(_LIKELY)
_whens = st.one_of(_likely, _likely, _likely, expressions.trees.map(lang.text_of))


def _maybe(name: str, strategy: st.SearchStrategy[Any], without: int = 1) -> st.SearchStrategy[JsonObject]:
    """One time of `without` and one it is there."""
    nothing: st.SearchStrategy[JsonObject] = st.just({})
    return st.one_of(*[nothing] * without, strategy.map(lambda value: {name: value}))


def _merged(*parts: st.SearchStrategy[JsonObject]) -> st.SearchStrategy[JsonObject]:
    def merge(given: Iterable[JsonObject]) -> JsonObject:
        return {key: value for part in given for key, value in part.items()}

    return st.tuples(*parts).map(merge)


def _with_when(fixed: JsonObject) -> st.SearchStrategy[JsonObject]:
    return _merged(st.just(fixed), _maybe("when", _whens))


_POINT = {"_id": "known", "name": "known", "prompt": "The caller is known"}
_ways = _merged(_maybe("when", _whens), _maybe("advance", st.sampled_from(["suggest", "auto", "auto"])))


def _tasks(task_id: str) -> st.SearchStrategy[JsonObject]:
    tools = st.tuples(*(_with_when({"toolName": name, "toolParameters": []}) for name in ("look", "book")))
    needed = st.sampled_from([[], [], [], ["name"], ["age", "vip"]])
    others = [each for each in TASKS if each != task_id]
    return _merged(
        st.just(aio_task(task_id)),
        st.lists(st.sampled_from(TASKS), unique=True, min_size=2, max_size=3).map(
            lambda ids: {"connectedTasks": ids}
        ),
        st.dictionaries(st.sampled_from(others), _ways, min_size=1).map(
            lambda ways: {"connectionConditions": ways}
        ),
        _maybe("entryCondition", _whens.map(lambda when: {"when": when}), without=3),
        needed.map(
            lambda ids: {"transitionParameters": [{"variableId": id, "required": True} for id in ids]}
        ),
        _maybe("channels", st.sampled_from([["chat"], ["phone", "chat"]]))
        if task_id == "third"
        else st.just({}),
        tools.map(
            lambda chosen: {
                "mcpToolSelection": [{"mcpServerName": "desk", "selectedTools": list(chosen)}],
            }
        ),
        _with_when(_POINT).map(lambda point: {"enabledCheckpoints": [point]}),
    )


def document_of(
    tasks: list[JsonObject],
    point: JsonObject = _POINT,
    everywhere: list[str] | None = None,
    stalled_after: int = 3,
) -> JsonObject:
    """A version of these tasks over the variables of the random conditions. `point` is its checkpoint,
    `everywhere` are its global tasks."""
    included = [{"toolName": name} for name in ("look", "book")]
    return minimal_version(
        variables=[
            {"_id": s.id, "name": s.name, "type": s.type, "prompt": s.name, "enumValues": [*s.enum_values]}
            for s in expressions.VARIABLES
        ],
        tasks=tasks,
        firstTask=tasks[0]["_id"],
        globalTasks=everywhere or [],
        checkpoints=[point],
        aiHelpers=[{"name": "convMiner", "stalledAfter": stalled_after}],
        mcpServers=[{"name": "desk", "url": "https://desk.example.com", "includedTools": included}],
    )


documents = st.builds(
    document_of,
    st.tuples(*map(_tasks, TASKS)).map(list),
    _with_when(_POINT),
    st.lists(st.sampled_from(TASKS), unique=True, max_size=1),
    st.integers(0, 3),
)

steps: st.SearchStrategy[list[tuple[str, Any]]] = st.lists(
    st.one_of(
        st.tuples(st.just("write"), expressions.memories),
        st.tuples(st.just("write"), expressions.memories),
        st.tuples(st.just("change"), st.sampled_from(TASKS)),
        st.tuples(st.just("change"), st.sampled_from(TASKS)),
        st.tuples(st.just("turn"), st.none()),
        st.tuples(st.just("turn"), st.none()),
        st.tuples(st.just("wait"), st.sampled_from([30, 900])),
    ),
    max_size=8,
)
