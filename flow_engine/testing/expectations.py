"""What an expectation compares, and how a difference is told: expected, found, and what would do."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson

from flow_engine import errors, json_values, task_types
from flow_engine.runtime import agent_data, memory, rules
from flow_engine.runtime.compiled import TaskPlan
from flow_engine.runtime.prompt import stale_of
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.runtime.times import tenant_zone
from flow_engine.testing.format import ExpectBody, Names, every_of
from flow_engine.values import JsonValue, ValueRejected, canonical, listed

_SHOWN = 160  # characters of a text that a message quotes
_HINTED = 3  # texts that the prompt lacks, beside which the nearest line is told


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the last action. `refusal` is the reply of F12, `problem` what F36 would report.

    `advanced` is the task that the conversation went on to by itself.

    `handler_unasked`: an answer of the customHandler was given, and it was not asked. Replies are JSON
    values.
    """

    kind: str
    command: str | None = None
    advanced: TaskPlan | None = None
    refusal: Mapping[str, Any] | None = None
    problem: errors.FlowEngineError | None = None
    handler_unasked: bool = False


# --- actions ----------------------------------------------------------------------------------


def unexpected(outcome: Outcome, *, foreseen: str = "`expect: {{{key}: {code}}}` after it") -> Iterator[str]:
    """Why an action that nothing is expected of failed; nothing when it did not. Lines for a terminal.
    `foreseen` is how its file would say that it is to fail."""
    refusal, problem = outcome.refusal, outcome.problem
    if refusal is not None:
        yield f"refused with {refusal['code']}: {refusal['reason']}"
        wanted = "the change to be made" if outcome.kind == "change_task" else "it to be taken"
        yield f"expected: {wanted}, or {foreseen.format(key='refused', code=refusal['code'])}"
        tasks = [
            _with_lacks(task["name"], task["missingVariables"], c["reason"] if c and not c["met"] else "")
            for task in refusal.get("reachableTasks", ())
            for c in [task["condition"]]
        ]
        tasks += map(repr, refusal.get("accepted", ()))
        yield f"accepted now: {', '.join(tasks) or 'no task'}"
        for missing in refusal.get("missing", ()):
            fillers = [
                "the dialogue" if by == memory.MINER else f"tool {by!r}" for by in missing["fillableBy"]
            ]
            fillable = " or ".join(fillers) or "nothing in this task"
            yield f"missing: {missing['name']!r} ({missing['type']}), filled by {fillable}"
        for part in refusal.get("condition", {}).get("parts", ()):
            yield f"condition: {part['expression']} is {part['truth']}, with {_json(part['values'])}"
    elif problem is not None:
        yield f"failed with {problem.code}: {problem.detail}"
        yield from _findings(problem)
        yield f"expected: no error, or {foreseen.format(key='error', code=problem.code)}"
        accepted = problem.accepted if isinstance(problem, errors.ReloadAndDecide) else ()
        if accepted:
            yield f"accepted now: {', '.join(accepted)}"
    elif outcome.handler_unasked:
        yield "`closes` is given, but no customHandler was asked: the contact was over already, or the"
        yield "task's closure configuration is for a single contact or has no customHandler"
        yield "accepted: the step without `closes`"


def _findings(problem: errors.FlowEngineError) -> Iterator[str]:
    if isinstance(problem, errors.CorrectTheInput):
        for finding in problem.findings:
            yield f"{finding.pointer} {finding.code}: {finding.message}"


def _with_lacks(name: str, missing: Collection[str], unmet: str) -> str:
    """A task with what keeps it closed, on one line; `unmet` is the reason of its condition, if any."""
    lacks = [f"needs {', '.join(missing)}"] if missing else []
    lacks += [unmet] if unmet else []
    return f"{name!r} ({'; '.join(lacks)})" if lacks else repr(name)


# --- expectations -----------------------------------------------------------------------------


def differences(
    expected: ExpectBody, outcome: Outcome, runner: ConversationalFlowRunner | None
) -> Iterator[str]:
    """One line or more for each key that does not hold, of the last action and the conversation as it is now,
    in the order of the keys' table. Texts are cut at 160 characters."""
    for key, compare in _OF_OUTCOME.items():
        if key in expected.model_fields_set:
            yield from compare(expected, outcome)
    wanted = [key for key in _OF_STATE if key in expected.model_fields_set]
    if wanted and runner is None:
        problem = outcome.problem
        because = "" if problem is None else f"; the step before failed with {problem.code}"
        yield f"{', '.join(wanted)}: there is no conversation{because}"
        return
    for key in wanted:
        if runner is not None:
            yield from _OF_STATE[key](expected, runner)


OutcomeCheck = Callable[[ExpectBody, Outcome], Iterator[str]]
StateCheck = Callable[[ExpectBody, ConversationalFlowRunner], Iterator[str]]

_OF_OUTCOME: dict[str, OutcomeCheck] = {}
_OF_STATE: dict[str, StateCheck] = {}
"""By key of an expectation: what the last action did, and the conversation as it is now. Differences are
listed in the order in which the keys are defined below."""


def _of_outcome(check: OutcomeCheck) -> OutcomeCheck:
    """Enter a check under its own name, the key."""
    _OF_OUTCOME[check.__name__.removeprefix("_")] = check
    return check


def _of_state(check: StateCheck) -> StateCheck:
    """Enter a check under its own name, the key."""
    _OF_STATE[check.__name__.removeprefix("_")] = check
    return check


def _equality(key: str, found: Callable[[ConversationalFlowRunner], object]) -> StateCheck:
    def compare(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
        wanted, is_now = getattr(expected, key), found(runner)
        if wanted != is_now:
            yield f"{key}: expected {_quoted(wanted)}, found {_quoted(is_now)}"

    return compare


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _quoted(value: object) -> str:
    return _shortened("null" if value is None else repr(value))


def _json(value: JsonValue) -> str:
    return _shortened(orjson.dumps(value).decode())


def _what_happened(outcome: Outcome) -> str:
    if outcome.refusal is not None:
        return f"{outcome.kind} was refused with {outcome.refusal['code']}: {outcome.refusal['reason']}"
    if outcome.problem is not None:
        return f"{outcome.kind} failed with {outcome.problem.code}: {outcome.problem.detail}"
    return f"{outcome.kind} went through"


@_of_outcome
def _refused(expected: ExpectBody, outcome: Outcome) -> Iterator[str]:
    if outcome.refusal is None or outcome.refusal["code"] != expected.refused:
        yield f"refused: expected {expected.refused}, but {_what_happened(outcome)}"


@_of_outcome
def _missing(expected: ExpectBody, outcome: Outcome) -> Iterator[str]:
    if outcome.refusal is None:
        yield f"missing: expected {listed(expected.missing or ())}, but {_what_happened(outcome)}"
        return
    missing = outcome.refusal.get("missing", ())
    found = {variable["varId"] for variable in missing} | {variable["name"] for variable in missing}
    wanted = set(expected.missing or ())
    if not wanted <= found or len(wanted) != len(missing):
        names = listed(variable["name"] for variable in missing)
        yield f"missing: expected {listed(expected.missing or ())}, found {names}"


@_of_outcome
def _error(expected: ExpectBody, outcome: Outcome) -> Iterator[str]:
    problem = outcome.problem
    codes = set[str]() if problem is None else {problem.code}
    if isinstance(problem, errors.CorrectTheInput):
        codes |= {finding.code for finding in problem.findings}
    if expected.error not in codes:
        yield f"error: expected {expected.error}, but {_what_happened(outcome)}"
        if problem is not None:
            yield from _findings(problem)


@_of_outcome
def _command(expected: ExpectBody, outcome: Outcome) -> Iterator[str]:
    if expected.command != outcome.command:
        yield f"command: expected {_quoted(expected.command)}, found {_quoted(outcome.command)}"


@_of_outcome
def _advanced(expected: ExpectBody, outcome: Outcome) -> Iterator[str]:
    plan, wanted = outcome.advanced, expected.advanced
    same = wanted is None if plan is None else wanted is not None and wanted in (plan.id, plan.name)
    if not same:
        found = "the conversation did not go on by itself" if plan is None else f"found {plan.name!r}"
        yield f"advanced: expected {_quoted(wanted)}, {found}"


_OF_STATE["conversation"] = _equality("conversation", lambda runner: runner.session.states.phase)


@_of_state
def _task(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    wanted = runner.flow.task_named(expected.task or "")
    if wanted is None or wanted.id != runner.task.id:
        name = expected.task if wanted is None else wanted.name
        yield f"task: expected {name!r}, found {runner.task.name!r}"


_OF_STATE["type"] = _equality("type", lambda runner: runner.task.type)
_OF_STATE["status"] = _equality("status", lambda runner: runner.status)
_OF_STATE["language"] = _equality("language", lambda runner: runner.session.language)


@_of_state
def _reachable(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    found, name_of = _reachable_now(runner), runner.flow.variables.name_of
    there = [
        _with_lacks(r.task.name, [*map(name_of, r.missing)], "" if r.open or not c else c.reason)
        for r in found.values()
        for c in [r.condition]
    ]
    yield from _tasks("reachable", expected.reachable, found, runner, ", ".join(there))


@_of_state
def _not_reachable(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    found = _reachable_now(runner)
    for plan in map(runner.flow.task_named, expected.not_reachable or ()):
        if plan is not None and plan.id in found:
            channel = runner.session.latest_contact.channel
            yield f"not_reachable: {plan.name!r} can be reached from {runner.task.name!r} on {channel}"


@_of_state
def _unmet(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    found = {task_id: r for task_id, r in _reachable_now(runner).items() if not r.open}
    there = [f"{r.task.name!r} ({r.condition.reason})" for r in found.values() if r.condition]
    yield from _tasks("unmet", expected.unmet, found, runner, ", ".join(there))


@_of_state
def _suggested(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    found = {plan.id: plan.name for plan in runner.suggested}
    yield from _tasks("suggested", expected.suggested, found, runner, listed(found.values()))


def _tasks(
    key: str, wanted: Names | None, found: Collection[str], runner: ConversationalFlowRunner, there: str
) -> Iterator[str]:
    """`wanted` are ids or names, `found` ids."""
    plans = map(runner.flow.task_named, every_of(wanted))
    ids = [plan.id for plan in plans if plan is not None]  # unknown ones were refused with the file
    names = {task_id: plan.name for task_id, plan in runner.flow.tasks.items()}
    yield from compared(key, wanted, ids, found, names, there)


@_of_state
def _checkpoints(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    names = {point.id: point.name for point in runner.flow.document.checkpoints}
    ids = {name: id for id, name in names.items()} | {id: id for id in names}
    wanted, found = expected.checkpoints, runner.loaded.mining.checkpoints.keys()
    there = ", ".join(repr(names.get(id, id)) for id in found)
    yield from compared("checkpoints", wanted, [ids[name] for name in every_of(wanted)], found, names, there)


def _reachable_now(runner: ConversationalFlowRunner) -> Mapping[str, rules.ReachableTask]:
    if runner.session.states.phase != task_types.ACTIVE:
        return {}
    return {r.task.id: r for r in rules.reachable_tasks(runner.flow, runner.task, runner.guard)}


@_of_state
def _mcp_tools(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    wanted, chosen = expected.mcp_tools, runner.task.document.mcp_tool_selection
    tools = [t.tool_name for c in chosen for t in c.selected_tools if runner.holds(t.when)]
    yield from compared("mcp_tools", wanted, every_of(wanted), tools, {}, listed(tools))


def compared(
    key: str,
    wanted: Names | None,
    ids: Collection[str],
    found: Collection[str],
    names: Mapping[str, str],
    there: str,
) -> Iterator[str]:
    """`ids` are of what is wanted, as `found` has them."""
    asked_for, is_there = set(ids), set(found)
    lacking = [names.get(item, item) for item in ids if item not in is_there]
    extra = [names.get(item, item) for item in found if item not in asked_for]
    differences: list[str] = []
    if lacking:
        differences.append(f"not there: {listed(lacking)}")
    if extra and wanted is not None and wanted.exactly is not None:
        differences.append(f"not expected: {listed(extra)}")
    if differences:
        yield f"{key}: {'; '.join(differences)}; there are: {there or 'none'}"


@_of_state
def _memory(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    for name, sent in (expected.memory or {}).items():
        value = cast("JsonValue", sent)
        spec = runner.flow.variables.resolve(name)
        if spec is None:
            continue  # refused with the file
        entry = runner.memory.get(spec.id)
        found = None if entry is None else entry.value
        try:
            wanted = canonical(spec, value, timezone=tenant_zone(runner.tenant))
        except ValueRejected as refused:
            yield f"memory: {spec.name!r} can never hold {_json(value)}: {refused.message}"
            continue
        if not json_values.same_json(wanted, found):
            author = "" if entry is None or entry.updated_by is None else f", written by {entry.updated_by!r}"
            yield f"memory: {spec.name!r}: expected {_json(wanted)}, found {_json(found)}{author}"


@_of_state
def _stale(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    found = stale_of(runner.flow, runner.memory, runner.now)
    yield from _variables("stale", expected.stale, found, runner)


@_of_state
def _conflicts(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    yield from _variables("conflicts", expected.conflicts, runner.conflicts, runner)


def _variables(
    key: str, wanted: Names | None, found: Collection[str], runner: ConversationalFlowRunner
) -> Iterator[str]:
    """`wanted` are ids or names, `found` ids."""
    specs = map(runner.flow.variables.resolve, every_of(wanted))
    ids = [spec.id for spec in specs if spec is not None]
    names = {spec.id: spec.name for spec in runner.flow.variables}
    yield from compared(key, wanted, ids, found, names, listed(names[id] for id in found))


@_of_state
def _prompt_contains(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    prompt = _prompt(runner)
    if prompt is None:
        yield "prompt_contains: the conversation is closed and has no prompt"
        return
    lacking = [text for text in expected.prompt_contains or () if text not in prompt]
    for number, text in enumerate(lacking):
        near = _nearest_line(text, prompt) if number < _HINTED else ""
        hint = f"; the nearest line is {_quoted(near)}" if near else ""
        yield f"prompt_contains: {_quoted(text)} is not in the prompt{hint}"


def _nearest_line(text: str, prompt: str) -> str:
    """The line with most words of a text, empty where none has half of them. Linear: a prompt may be long."""
    words = {*text.split()}
    shared, line = max(
        ((len(words.intersection(line.split())), line) for line in prompt.splitlines()),
        key=lambda found: found[0],
        default=(0, ""),
    )
    return line if shared and 2 * shared >= len(words) else ""


@_of_state
def _prompt_lacks(expected: ExpectBody, runner: ConversationalFlowRunner) -> Iterator[str]:
    prompt = _prompt(runner)
    for text in expected.prompt_lacks or ():
        if prompt is None:
            yield "prompt_lacks: the conversation is closed and has no prompt"
        elif text in prompt:
            before = prompt.index(text)
            line = prompt[prompt.rfind("\n", 0, before) + 1 :].partition("\n")[0]
            yield f"prompt_lacks: {_quoted(text)} is in the prompt, in the line {_quoted(line)}"


def _prompt(runner: ConversationalFlowRunner) -> str | None:
    return None if runner.session.closed else agent_data.compose_prompt(runner).text
