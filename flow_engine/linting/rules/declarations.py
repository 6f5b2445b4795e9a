"""Rules about what a version declares and its tasks use: variables, checkpoints (F39), humans and how they
are found, and what the end of a contact does (F30).
"""

import re
from collections.abc import Iterator

from flow_engine.conditions.language import Reference
from flow_engine.conditions.language import atoms as atoms_of_tree
from flow_engine.documents import MINER_SETTINGS, AiHelper, ClosureConfig
from flow_engine.documents.base import property_name
from flow_engine.documents.findings import listed, quoted
from flow_engine.errors import pointer
from flow_engine.linting.codes import Findings, LintFinding
from flow_engine.linting.inspection import Inspection, Rule
from flow_engine.linting.version_graph import usable_values

# --- variables ----------------------------------------------------------------------------------


_WORD = re.compile(r"\w+")
_COMPUTED_KEY = re.compile(r"\$(?:vars|values)\s*\[\s*[^'\"\s]")


def enums(inspection: Inspection) -> Findings:
    for number, variable in enumerate(inspection.version.variables):
        place = pointer("variables", number, "enumValues")
        if variable.type != "enum":
            if variable.enum_values:
                told = f"{quoted(variable.name)} is of type {variable.type!r} and takes other values too"
                yield LintFinding(place, "value_ignored", f"{told}: only an 'enum' has a list of them")
            continue
        if not usable_values(variable):
            yield LintFinding(
                place,
                "enum_cannot_match",
                f"enum {quoted(variable.name)} has no values, so that no value can ever be stored in it",
            )
            continue
        seen: dict[str | int | float, int] = {}
        for index, value in enumerate(variable.enum_values):
            if isinstance(value, str) and not value.strip():
                yield LintFinding(
                    f"{place}/{index}",
                    "enum_cannot_match",
                    f"a blank value of enum {quoted(variable.name)} can never be stored: blank is no value",
                )
            elif seen.setdefault(value, index) != index:
                yield LintFinding(
                    f"{place}/{index}",
                    "enum_value_repeated",
                    f"{quoted(value)} is a value of enum {quoted(variable.name)} already, "
                    f"the one at {place}/{seen[value]} is always found first",
                )


def unused_variables(inspection: Inspection) -> Findings:
    """A name in prose counts as a use: the model sees the memory under the same names."""
    if any(_COMPUTED_KEY.search(placed.source) for placed in inspection.templates):
        return  # which variables a computed key reads cannot be known
    version = inspection.version
    parameters = [use.parameter for use in inspection.tool_parameters]
    used = {use.key for placed in inspection.templates for use in placed.template.uses}
    used |= {required.variable_id for task in version.tasks for required in task.transition_parameters}
    used |= {p.assignment_value for p in parameters if p.assignment_strategy == "variable"}
    atoms = (atom for condition in inspection.read_conditions for atom in atoms_of_tree(condition.tree))
    used |= {atom.path[0] for atom in atoms if isinstance(atom, Reference) and atom.root == "vars"}
    unused = [
        (number, variable)
        for number, variable in enumerate(version.variables)
        if variable.id not in used and variable.name not in used
    ]
    if not unused:
        return
    criteria = [criterion for card in version.scorecards for criterion in card.criteria]
    described = (*version.checkpoints, *version.reasons_of_contact, *version.results, *criteria)
    texts = [placed.source for placed in inspection.templates] + [each.prompt for each in described]
    texts += [p.assignment_value for p in parameters if p.assignment_strategy == "prompt"]
    prose = "\n".join(texts)
    words = set(_WORD.findall(prose))
    for number, variable in unused:
        names = [name for name in (variable.id, variable.name) if name.strip()]
        if not any(name in words if _WORD.fullmatch(name) else name in prose for name in names):
            yield LintFinding(
                pointer("variables", number),
                "unused_variable",
                f"no task requires {quoted(variable.name)}, no condition reads it, no tool takes it and no "
                "prompt names it",
            )


def old_and_contested(inspection: Inspection) -> Findings:
    closures = [task.closure_config for task in inspection.version.tasks]
    limits = [c.conversation_time_limit for c in closures if c.multi_contact]
    longest = max((limit for limit in limits if limit is not None), default=None)
    for number, variable in enumerate(inspection.version.variables):
        kind = "custom" if variable.type == "custom" else "a card's" if variable.sensitive == "card" else None
        if variable.precedence is not None and kind is not None:
            yield LintFinding(
                pointer("variables", number, "precedence"),
                "value_ignored",
                f"{quoted(variable.name)} is {kind}: only tools write it, so that nobody contradicts them",
            )
        if variable.fresh_for is not None and longest is not None and variable.fresh_for >= longest:
            yield LintFinding(
                pointer("variables", number, "freshFor"),
                "value_never_old",
                f"{quoted(variable.name)} is old after {variable.fresh_for} seconds, and conversations last "
                f"{longest} at most",
            )


# --- checkpoints --------------------------------------------------------------------------------


def checkpoints(inspection: Inspection) -> Findings:
    enabled_in: dict[str, list[str]] = {}
    required = {checkpoint.id: checkpoint.required for checkpoint in inspection.version.checkpoints}
    for task in inspection.version.tasks:
        for checkpoint in task.enabled_checkpoints:
            enabled_in.setdefault(checkpoint.id, []).append(task.id)
            given = checkpoint.required if "required" in checkpoint.model_fields_set else None
            if given not in (None, required.get(checkpoint.id, given)):
                yield LintFinding(
                    inspection.place_of(checkpoint, "required"),
                    "value_ignored",
                    f"whether {quoted(checkpoint.name)} is required is told by 'checkpoints' of the version, "
                    "where it is the other way",
                )
    for number, checkpoint in enumerate(inspection.version.checkpoints):
        tasks = enabled_in.get(checkpoint.id, [])
        if not tasks:
            yield LintFinding(
                pointer("checkpoints", number),
                "checkpoint_never_enabled",
                f"no task enables checkpoint {quoted(checkpoint.name)}, so that it is never judged",
            )
        elif checkpoint.required and not inspection.reachable.intersection(tasks):
            yield LintFinding(
                pointer("checkpoints", number),
                "required_checkpoint_unreachable",
                f"required checkpoint {quoted(checkpoint.name)} is enabled only in tasks that cannot be "
                f"reached: {listed(inspection.tasks[task_id].effective_name for task_id in tasks)}",
            )


# --- humans -------------------------------------------------------------------------------------


def routing(inspection: Inspection) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        parameters = task.routing_parameters
        if parameters is None or not task.kind.routed:
            continue
        place = pointer("tasks", number, "routingParameters")
        if parameters.timeout <= 0:
            yield LintFinding(
                f"{place}/timeout",
                "routing_timeout_not_positive",
                f"the routing of {inspection.name(task.id)} fails at once: its timeout is "
                f"{parameters.timeout} seconds",
            )
        targets = (*parameters.agent_skills, *parameters.agent_optional_skills, *parameters.agent_ids)
        if task.kind.transfers and not any(name.strip() for name in targets):
            yield LintFinding(
                place,
                "routing_without_target",
                f"{inspection.name(task.id)} names no skill and no agent: nothing says whom to look for",
            )


def approvals(inspection: Inspection) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        if not task.kind.holds:
            continue
        if task.approval_timeout == 0:
            yield LintFinding(
                pointer("tasks", number, "approvalTimeout"),
                "approval_timeout_not_positive",
                f"no text of {inspection.name(task.id)} can be approved: its approvalTimeout is 0 seconds",
            )
        every = inspection.version.channels
        entered = set(every if task.channels is None else task.channels).intersection(every)
        if "phone" in entered:
            place = pointer("tasks", number, "channels" if task.channels else "approval")
            code, told = "approval_on_phone", "on the phone, where nothing can be read first"
            if entered == {"phone"}:
                code, told = (
                    "approval_never_decided",
                    "on the phone only, where no text of it ever waits for a person",
                )
            yield LintFinding(place, code, f"{inspection.name(task.id)} can be entered {told}")


def negative_numbers(inspection: Inspection) -> Findings:
    """Times, sizes and weights of which there is nothing below zero. Time limits are refused before."""
    for part in inspection.objects:
        for field in part.attributes_with(int, float):
            value = getattr(part, field)
            if type(value) in (int, float) and value < 0 and field in part.model_fields_set:
                name = property_name(field)
                yield LintFinding(
                    inspection.place_of(part, name),
                    "negative_number",
                    f"{quoted(name)} is {value}, below zero",
                )


def values_ignored(inspection: Inspection) -> Findings:
    for number, task in enumerate(inspection.version.tasks):
        for name in ("hideTranscriptionToHuman", "suspendTranscription"):
            value = (task.model_extra or {}).get(name, False)
            if not isinstance(value, bool):
                yield LintFinding(
                    pointer("tasks", number, name),
                    "value_ignored",
                    f"only true and false mean something here, {quoted(value)} counts as false",
                )


def helpers(inspection: Inspection) -> Findings:
    """Settings of `convMiner` that are read as if they were not there; other helpers are not the engine's."""
    for part in inspection.objects:
        settings = (part.model_extra or {}) if isinstance(part, AiHelper) else {}
        for name, value in settings.items() if settings.get("name") == "convMiner" else ():
            accepted, fits = MINER_SETTINGS.get(name, ("", None))
            if fits is not None and not fits(value):
                yield LintFinding(
                    inspection.place_of(part, name),
                    "value_ignored",
                    f"only {accepted} means something here, {quoted(value)} counts as left out",
                )


# --- ends of contacts ---------------------------------------------------------------------------


DAY_S = 24 * 60 * 60
SHORTEST_S = 600
"""A shorter limit was rather meant in minutes or hours: no second contact follows within seconds."""


def multi_contact(inspection: Inspection) -> Findings:
    version = inspection.version
    keeping = [task.effective_name for task in version.tasks if task.closure_config.multi_contact]
    if version.closure_config.multi_contact and not keeping:
        yield LintFinding(
            "/closureConfig/multiContact",
            "multi_contact_never_applies",
            "the version spans several contacts, but every one of its tasks closes the conversation with "
            "the contact, and the task decides",
        )
    elif not version.closure_config.multi_contact and keeping:
        yield LintFinding(
            "/closureConfig/multiContact",
            "multi_contact_unexpected",
            f"the version closes a conversation with its contact, but these tasks keep it: {listed(keeping)}",
        )


def time_limits(inspection: Inspection) -> Findings:
    retention = inspection.version.retention
    for place, closure in _closures(inspection):
        limit = closure.conversation_time_limit
        if not closure.multi_contact or limit is None:
            continue
        if limit < SHORTEST_S:
            yield LintFinding(
                f"{place}/conversationTimeLimit",
                "short_time_limit",
                f"a conversation ends after {limit} seconds, hardly time for another contact",
            )
        if retention is not None and limit > retention.days * DAY_S:
            yield LintFinding(
                f"{place}/conversationTimeLimit",
                "retention_before_time_limit",
                f"a conversation of {limit} seconds is forgotten {retention.days} days after its last step",
            )


def forbidden_handlers(inspection: Inspection) -> Findings:
    for place, closure in _closures(inspection):
        url = closure.custom_handler
        refusal = None if url is None else inspection.environment.url_refusal(url)
        if refusal is not None:
            yield LintFinding(
                f"{place}/customHandler",
                "custom_handler_forbidden",
                f"the engine may not call it: {refusal}",
            )


def _closures(inspection: Inspection) -> Iterator[tuple[str, ClosureConfig]]:
    yield "/closureConfig", inspection.version.closure_config
    for number, task in enumerate(inspection.version.tasks):
        yield pointer("tasks", number, "closureConfig"), task.closure_config


RULES: tuple[Rule, ...] = (
    enums,
    unused_variables,
    old_and_contested,
    checkpoints,
    routing,
    approvals,
    negative_numbers,
    values_ignored,
    helpers,
    multi_contact,
    time_limits,
    forbidden_handlers,
)
