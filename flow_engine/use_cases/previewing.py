"""The texts of a task, rendered from what a stored conversation knows for who writes them; nothing is kept.

The document is taken as a draft, so that one in the middle of a change is rendered too: a template that
cannot be used is told with what is wrong in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import orjson
from typing_extensions import TypedDict

from flow_engine.documents import FlowVersion, Task, normalise_name
from flow_engine.errors import CorrectTheInput, Finding, pointer
from flow_engine.json_values import as_object
from flow_engine.masking import Secrets, shown
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.runtime.journal import states_of
from flow_engine.runtime.privacy import values_known, values_stored
from flow_engine.runtime.rendered import texts_scope
from flow_engine.runtime.runner import ConversationalFlowRunner
from flow_engine.templates import Allowance, Template, TemplateScope, compile_template
from flow_engine.use_cases.designing import Designing
from flow_engine.use_cases.history import History
from flow_engine.use_cases.transactor import Transactor
from flow_engine.values import JsonValue
from flow_engine.variables import VariableIndex, VariableSpec
from flow_engine.vocabulary import Channel

Why = Literal["no_variable", "no_value", "not_there"]


class UnknownName(TypedDict):
    """`name` as the template wrote it. `reason` is `no_variable` for one that the document lacks, `no_value`
    for one without a value in the conversation, `not_there` for what contact or tenant do not have."""

    name: str
    reason: Why


class TemplateProblem(TypedDict):
    """What is wrong in a template, by its line from 1; see the linter's table of codes."""

    line: int
    code: str
    message: str


class PreviewedText(TypedDict):
    """`pointer` leads into the document. `whole`: nothing was cut, unknown or broken in it."""

    pointer: str
    text: str
    whole: bool
    unknown: Sequence[UnknownName]
    problems: Sequence[TemplateProblem]


class PreviewReply(TypedDict):
    """`seq` is the entry of the journal that it is rendered after, null for the conversation as it stands.
    `texts`: the version's prompt, the task's, and the descriptions of the tasks that can follow it."""

    conversationId: str
    seq: int | None
    taskId: str
    channel: Channel
    language: str
    texts: Sequence[PreviewedText]


@dataclass(frozen=True, slots=True)
class PreviewOrder:
    """A document, as JSON, or a saved version by id or tag, else the one that was saved last; and a task of
    it by id or name. `seq`: after that entry of the journal."""

    task: str
    document: Mapping[str, object] | None = None
    version_id: str | None = None
    seq: int | None = None


@dataclass(frozen=True, slots=True)
class Previews:
    """Documents of one tenant's flows against its conversations: another's look exactly like unknown ones.
    Raises RetryLater while a store is away."""

    designing: Designing
    history: History
    transactor: Transactor

    async def render(
        self,
        conversation: ConversationRef,
        flow_id: str,
        order: PreviewOrder,
        *,
        author: str,
        reveal: bool,
    ) -> PreviewReply:
        """Sensitive values are masked unless `reveal`. Raises CorrectTheInput `document_invalid` with every
        error of a draft, `task_unknown`; LookElsewhere `flow_unknown`, `version_unknown`,
        `conversation_unknown`, `entry_unknown`."""
        _, submission = await self.designing.submitted(
            conversation.tenant_id, flow_id, order.document, order.version_id, author=author, draft=True
        )
        version = FlowVersion.model_validate(orjson.loads(submission.document))
        place, task = _task(version, order.task)
        runner = await self._runner(conversation, order.seq)
        contact = runner.session.latest_contact
        scope, secrets = _scope(version, task, runner, reveal=reveal), _secrets(version, runner)
        allowance = Allowance()
        following = [t for t in version.ways_from(task) if t != task.id]
        sources = [
            ("/globalPrompt", version.global_prompt),
            (pointer("tasks", place, "prompt"), task.prompt),
            *(
                (pointer("tasks", number, "description"), each.description)
                for number, each in enumerate(version.tasks)
                if each.id in following
            ),
        ]
        return PreviewReply(
            conversationId=conversation.conversation_id,
            seq=order.seq,
            taskId=task.id,
            channel=contact.channel,
            language=runner.session.language,
            texts=[
                _previewed(at, source, scope, allowance, None if reveal else secrets)
                for at, source in sources
            ],
        )

    async def _runner(self, conversation: ConversationRef, seq: int | None) -> ConversationalFlowRunner:
        if seq is None:
            loaded, last = await self.history.state(conversation)
            now = last.at if last else None
        else:
            entries = await self.history.entries_up_to(conversation, seq)
            loaded, now = states_of(entries)[1], entries[-1].at
        return await self.transactor.resume(conversation, loaded, now=now)


def _task(version: FlowVersion, named: str) -> tuple[int, Task]:
    """The task of that id, else of that name, however it is spelled (F4), and its place in the document.
    Raises CorrectTheInput `task_unknown`."""
    for number, task in enumerate(version.tasks):
        if task.id == named:
            return number, task
    for number, task in enumerate(version.tasks):
        if normalise_name(task.effective_name) == normalise_name(named):
            return number, task
    known = ", ".join(repr(task.id) for task in version.tasks[:20]) or "none"
    message = f"the document has no task {named!r}; its tasks are: {known}"
    raise CorrectTheInput("task_unknown", message, [Finding("/task", "unknown_task", message)])


def _specs(version: FlowVersion) -> VariableIndex:
    return VariableIndex(VariableSpec(v.id, v.name, v.type, sensitive=v.sensitive) for v in version.variables)


def _scope(
    version: FlowVersion, task: Task, runner: ConversationalFlowRunner, *, reveal: bool
) -> TemplateScope:
    """As the task's templates would see the conversation in this version."""
    memory = runner.memory if reveal else runner.shown_memory
    specs = _specs(version)
    values: dict[str, JsonValue] = {
        spec.id: memory[spec.id].value if reveal else shown(spec, memory[spec.id].value)
        for spec in specs
        if spec.id in memory
    }
    session = runner.session
    return texts_scope(
        {spec.id: spec.name for spec in specs},
        values,
        session,
        runner.tenant,
        flow={
            "id": version.conversational_flow_id,
            "versionId": version.id,
            "campaignId": session.campaign_id,
        },
        task={"id": task.id, "name": task.effective_name, "type": task.type},
    )


def _secrets(version: FlowVersion, runner: ConversationalFlowRunner) -> Secrets:
    """What neither the conversation's version nor this one shows."""
    own = ((spec, runner.memory[spec.id].value) for spec in _specs(version) if spec.id in runner.memory)
    flow = runner.flow
    return Secrets(
        chain(
            values_stored(flow, runner.loaded),
            values_known(flow, runner.memory),
            (known for known in own if known[0].sensitive),
        )
    )


def _previewed(
    at: str, source: str, scope: TemplateScope, allowance: Allowance, secrets: Secrets | None
) -> PreviewedText:
    template = compile_template(source, lenient=True)
    rendered = template.render(scope, allowance)
    unknown = dict(_unknown(template, scope))
    return PreviewedText(
        pointer=at,
        text=rendered.text if secrets is None else secrets.text(rendered.text),
        whole=rendered.whole,
        unknown=[UnknownName(name=name, reason=why) for name, why in unknown.items()],
        problems=[
            TemplateProblem(line=each.line, code=each.code, message=each.message)
            for each in (*template.problems, *template.suspicions)
        ],
    )


def _unknown(template: Template, scope: TemplateScope) -> Iterator[tuple[str, Why]]:
    """What a template reads that leads to nothing: variables, then paths."""
    for use in template.uses:
        if use.key not in scope.variables:
            yield use.label, "no_variable"
        elif scope.values.get(use.key) is None:
            yield use.label, "no_value"
    roots: Mapping[str, Mapping[str, object]] = {"$contact": scope.contact, "$tenant": scope.tenant}
    for root, *keys in sorted(template.reads):
        value: object = roots.get(root)
        if value is None:
            continue
        for key in keys:
            value = as_object(value).get(key)
        if value is None:
            yield ".".join((root, *keys)), "not_there"
