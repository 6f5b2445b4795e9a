"""The tools that coding agents design flows with: read, check, save, test, compare and publish versions.

They are the routes of the designers in a shape for a model: short results that point into the document by
JSON pointers, and never a document where an outline will do. The rules are those of the routes, since both
call the same use cases.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, cast

import orjson
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from api.bodies import Body, Id, Name
from api.mcp_tools import Keyed, Tool, ToolCall, ToolReply
from api.problems import FindingReply, findings_reply
from api.tries import PlayTests
from flow_engine.documents import FlowVersion, VersionDifference, difference
from flow_engine.documents.json_schema import SCHEMA_VERSION
from flow_engine.documents.outlines import VersionOutline, outline
from flow_engine.errors import CorrectTheInput
from flow_engine.idempotency import FinalReply, IdempotencyKey
from flow_engine.ports.flow_store import FlowRecord
from flow_engine.testing.report import ScenarioVerdict
from flow_engine.use_cases import publishing
from flow_engine.use_cases.designing import Designing
from flow_engine.use_cases.submissions import Submission

_Arguments = TypeVar("_Arguments", bound=Body)
_FLOW_ID = Field(description="The flow's id, as `list_flows` and `create_flow` give it.")
_DOCUMENT = Field(
    description="The whole version document as a JSON object. Its schema is at "
    "/schemas/flow-version.json; `_id`, `createdAt` and `createdBy` are set by the server."
)


class NoArguments(Body):
    pass


class CreateFlowArguments(Keyed):
    name: Name = Field(description="What people call the flow.")
    campaign_id: Name = Field(description="The campaign that it belongs to.")


class FlowArguments(Body):
    flow_id: Id = _FLOW_ID


class ReadVersionArguments(FlowArguments):
    version_id: Id | None = Field(
        default=None, description="A version's id or tag; without it the version that was saved last."
    )


class DocumentArguments(FlowArguments):
    document: dict[str, object] = _DOCUMENT


class SaveDraftArguments(Keyed, DocumentArguments):
    parent_version_id: Id | None = Field(
        default=None, description="The version that this document was made from."
    )


class TestVersionArguments(FlowArguments):
    version_id: Id = Field(description="A version's id or tag.")
    tests: Annotated[str, Field(min_length=1, max_length=1_000_000)] = Field(
        description="Flow tests in YAML: `scenarios: [{name, channel, steps: […]}]`."
    )


class DiffVersionsArguments(FlowArguments):
    version_id: Id = Field(description="The version to compare, by id or tag.")
    other_version_id: Id = Field(
        description="The version to compare it with, by id or tag: what it changes is listed."
    )


class PublishVersionArguments(Keyed, FlowArguments):
    version_id: Id = Field(
        description="The version to publish. A draft is saved as a new version that can run."
    )
    tag: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="The tag to point at it, such as `latest` or `production`."
    )


class FlowRow(TypedDict):
    """`tags` are version ids by tag, `versions` counts."""

    flowId: str
    name: str
    campaignId: str
    tags: Mapping[str, str]
    versions: int


class FlowRows(TypedDict):
    flows: Sequence[FlowRow]


class FlowMade(TypedDict):
    flowId: str


class VersionNamed(TypedDict):
    versionId: str


class VersionRead(TypedDict):
    """`document` is the version's JSON as it was saved."""

    versionId: str
    document: Mapping[str, object]


class DocumentVerdict(TypedDict):
    """`errors` are what a save would refuse. Pointers are RFC 6901."""

    ok: bool
    errors: Sequence[FindingReply]
    warnings: Sequence[FindingReply]


class DesignTools:
    """`play` runs flow tests."""

    def __init__(self, designing: Designing, play: PlayTests) -> None:
        self._designing = designing
        self._flows = designing.flows
        self._play = play

    def tools(self) -> tuple[Tool, ...]:
        return (
            reading_tool(
                "list_flows",
                "List the flows with their tags and how many versions each has.",
                (NoArguments, FlowRows, self.list_flows),
            ),
            writing_tool(
                "create_flow",
                "Create a flow without versions; its first version is saved with save_draft.",
                (CreateFlowArguments, FlowMade, self.create_flow),
            ),
            reading_tool(
                "read_version",
                "Read the whole document of a version. It is long: outline_version is shorter.",
                (ReadVersionArguments, VersionRead, self.read_version),
            ),
            reading_tool(
                "outline_version",
                "Tasks, connections, required variables and tools of a version, with JSON pointers into "
                "its document.",
                (ReadVersionArguments, VersionOutline, self.outline_version),
            ),
            reading_tool(
                "validate_version",
                "Say what publishing this document would say, without saving it. Errors have to be corrected "
                "at their pointers, warnings should be.",
                (DocumentArguments, DocumentVerdict, self.validate_version),
            ),
            reading_tool(
                "lint_version",
                "Check a saved version, draft or not, as validate_version checks a document.",
                (ReadVersionArguments, DocumentVerdict, self.lint_version),
            ),
            *self._for_versions_that_are_made(),
        )

    def _for_versions_that_are_made(self) -> tuple[Tool, ...]:
        return (
            writing_tool(
                "save_draft",
                "Save a document as a draft. A draft never runs, so it may be unfinished: only its schema is "
                "checked. Publish it when validate_version finds no error and its tests pass.",
                (SaveDraftArguments, VersionNamed, self.save_draft),
            ),
            reading_tool(
                "test_version",
                "Play flow tests on a version, draft or not, without a model and without storing anything. A "
                "failure names its line of the YAML.",
                (TestVersionArguments, ScenarioVerdict, self.test_version),
            ),
            reading_tool(
                "diff_versions",
                "List what one version changes of another, by ids: tasks, connections, variables, values.",
                (DiffVersionsArguments, VersionDifference, self.diff_versions),
            ),
            writing_tool(
                "publish_version",
                "Point a tag at a version: conversations that begin by the tag run by it from now on. A "
                "draft is saved as a new version first, and refused with every error that it has.",
                (PublishVersionArguments, VersionNamed, self.publish_version),
            ),
        )

    async def list_flows(self, call: ToolCall, _: NoArguments) -> ToolReply:
        rows = [
            FlowRow(
                flowId=flow.flow_id,
                name=flow.name,
                campaignId=flow.campaign_id,
                tags={entry.tag: entry.version_id for entry in flow.tags},
                versions=len(flow.versions),
            )
            for flow in await self._flows.list_flows(call.principal.tenant_id)
        ]
        lines = [f"{row['flowId']}: {row['name']}, {row['versions']} version(s)" for row in rows]
        return ToolReply(FlowRows(flows=rows), "\n".join(lines) or "There is no flow yet.")

    async def create_flow(self, call: ToolCall, arguments: CreateFlowArguments) -> ToolReply:
        answer = await self._flows.create_flow(
            call.principal.tenant_id,
            name=arguments.name,
            campaign_id=arguments.campaign_id,
            schema_version=SCHEMA_VERSION,
            updated_by=call.principal.name,
            respond=lambda flow: FinalReply(201, orjson.dumps(FlowMade(flowId=flow.flow_id))),
            idempotency=call.idempotency(arguments),
        )
        made = cast("FlowMade", orjson.loads(answer.body))
        return ToolReply(made, f"The flow's id is {made['flowId']}.")

    async def read_version(self, call: ToolCall, arguments: ReadVersionArguments) -> ToolReply:
        flow, version_id = await self._named(call, arguments)
        document = await self._document(call, flow.flow_id, version_id)
        return ToolReply(
            VersionRead(versionId=version_id, document=document), orjson.dumps(document).decode()
        )

    async def outline_version(self, call: ToolCall, arguments: ReadVersionArguments) -> ToolReply:
        flow, version_id = await self._named(call, arguments)
        version = FlowVersion.model_validate(await self._document(call, flow.flow_id, version_id))
        found = outline(version, version_id, publishing.tags_of(flow, version_id))
        lines = [
            f"{task['pointer']} {task['name']} ({task['type']}) → {', '.join(task['to']) or 'nowhere'}"
            for task in found["tasks"]
        ]
        kind = "draft" if version.draft else "version"
        head = f"{kind} {version_id}, first task {found['firstTask']!r}"
        return ToolReply(found, "\n".join((head, *lines)))

    async def validate_version(self, call: ToolCall, arguments: DocumentArguments) -> ToolReply:
        await self._flows.get_flow(call.principal.tenant_id, arguments.flow_id)
        return await self._verdict(call, arguments.flow_id, arguments.document)

    async def lint_version(self, call: ToolCall, arguments: ReadVersionArguments) -> ToolReply:
        flow, version_id = await self._named(call, arguments)
        return await self._verdict(call, flow.flow_id, await self._document(call, flow.flow_id, version_id))

    async def save_draft(self, call: ToolCall, arguments: SaveDraftArguments) -> ToolReply:
        """Raises CorrectTheInput `document_invalid` with pointers into the document (RFC 6901), and what a
        save over the parent raises."""
        await self._flows.get_flow(call.principal.tenant_id, arguments.flow_id)
        draft = await self._checked(call, arguments.flow_id, arguments.document, draft=True)
        version_id = await self._save(
            call,
            arguments.flow_id,
            draft,
            arguments.parent_version_id,
            idempotency=call.idempotency(arguments),
        )
        return ToolReply(VersionNamed(versionId=version_id), f"The draft's id is {version_id}.")

    async def test_version(self, call: ToolCall, arguments: TestVersionArguments) -> ToolReply:
        """Raises CorrectTheInput `document_invalid` for a draft that cannot run, and `tests_invalid` for a
        YAML that cannot, each with pointers into what is wrong (RFC 6901)."""
        document = await self._named_document(call, arguments.flow_id, arguments.version_id)
        checked = await self._checked(call, arguments.flow_id, document, draft=False)
        verdict = await self._play(checked, arguments.flow_id, arguments.tests.encode())
        coverage = verdict["coverage"]
        lines = [
            f"{scenario['name']}: line {failure['line']}, {failure['step']}: {'; '.join(failure['messages'])}"
            for scenario in verdict["scenarios"]
            if (failure := scenario["failure"])
        ]
        counts = f"{verdict['passed']} passed, {verdict['failed']} failed"
        left_out = ", ".join((*coverage["tasks"]["leftOut"], *coverage["transitions"]["leftOut"]))
        reached = f"not walked through: {left_out or 'nothing'}"
        return ToolReply(verdict, "\n".join((counts, *lines, reached)))

    async def diff_versions(self, call: ToolCall, arguments: DiffVersionsArguments) -> ToolReply:
        before = await self._named_document(call, arguments.flow_id, arguments.version_id)
        after = await self._named_document(call, arguments.flow_id, arguments.other_version_id)
        found = difference(before, after)
        lines = [f"{each['change']} {each['what']} {each['id']} {each['path']}" for each in found["changes"]]
        return ToolReply(found, "\n".join(lines) or "Nothing differs.")

    async def publish_version(self, call: ToolCall, arguments: PublishVersionArguments) -> ToolReply:
        """Raises CorrectTheInput `document_invalid` for a draft that cannot run, with pointers into it (RFC
        6901), and what a save over the draft's parent or a move of the tag raises."""
        tenant_id, tag, version_id = call.principal.tenant_id, arguments.tag, arguments.version_id
        publishing.check_tag_name(tag)
        flow = await self._flows.get_flow(tenant_id, arguments.flow_id)
        draft = publishing.find_entry(flow, version_id)
        if draft.draft:
            document = await self._document(call, arguments.flow_id, version_id)
            checked = await self._checked(call, arguments.flow_id, document, draft=False)
            new = tag != publishing.LATEST and all(entry.tag != tag for entry in flow.tags)
            parent, tag_of_save = draft.parent_version_id, tag if new else None
            key = call.idempotency(arguments, "mcp save")
            version_id = await self._save(
                call, arguments.flow_id, checked, parent, tag_of_save, idempotency=key
            )
        await self._flows.move_tag(
            tenant_id,
            arguments.flow_id,
            tag=tag,
            version_id=version_id,
            moved_by=call.principal.name,
            respond=lambda _: FinalReply(200, b""),
            idempotency=call.idempotency(arguments),
        )
        return ToolReply(VersionNamed(versionId=version_id), f"{tag!r} points at {version_id} now.")

    async def _named(self, call: ToolCall, arguments: ReadVersionArguments) -> tuple[FlowRecord, str]:
        return await self._designing.named(call.principal.tenant_id, arguments.flow_id, arguments.version_id)

    async def _named_document(self, call: ToolCall, flow_id: str, name: str) -> Mapping[str, object]:
        flow, version_id = await self._designing.named(call.principal.tenant_id, flow_id, name)
        return await self._document(call, flow.flow_id, version_id)

    async def _document(self, call: ToolCall, flow_id: str, version_id: str) -> Mapping[str, object]:
        return await self._designing.document(call.principal.tenant_id, flow_id, version_id)

    async def _checked(
        self, call: ToolCall, flow_id: str, document: Mapping[str, object], *, draft: bool
    ) -> Submission:
        author = call.principal.name
        return await self._designing.check_as_version(flow_id, document, author=author, draft=draft)

    async def _verdict(self, call: ToolCall, flow_id: str, document: Mapping[str, object]) -> ToolReply:
        errors: Sequence[FindingReply] = ()
        warnings: Sequence[FindingReply] = ()
        try:
            checked = await self._checked(call, flow_id, document, draft=False)
            warnings = findings_reply(checked.warnings)
        except CorrectTheInput as refused:
            if refused.code == "json_invalid":
                raise
            errors = findings_reply(refused.findings)
        lines = [f"error {row['pointer']}: {row['code']} {row['message']}" for row in errors]
        lines += [f"warning {row['pointer']}: {row['code']} {row['message']}" for row in warnings]
        verdict = DocumentVerdict(ok=not errors, errors=errors, warnings=warnings)
        return ToolReply(verdict, "\n".join(lines) or "Nothing to correct.")

    async def _save(
        self,
        call: ToolCall,
        flow_id: str,
        submission: Submission,
        parent_version_id: str | None,
        tag: str | None = None,
        *,
        idempotency: IdempotencyKey | None,
    ) -> str:
        """The id that it was saved under."""
        reply = await self._designing.save(
            call.principal.tenant_id,
            flow_id,
            submission,
            lambda version_id: FinalReply(201, version_id.encode()),
            parent_version_id=parent_version_id,
            tag=tag,
            idempotency=idempotency,
        )
        return reply.body.decode()


_Parts = tuple[type[_Arguments], Any, Callable[[ToolCall, _Arguments], Awaitable[ToolReply]]]
"""Arguments, type of the reply, handler."""


def reading_tool(name: str, description: str, parts: _Parts[_Arguments], *, reads_only: bool = True) -> Tool:
    """A designers' tool that changes nothing. `parts`: types of arguments and reply, and the handler."""
    shape, reply, handler = parts
    arguments = TypeAdapter(shape)
    return Tool(
        name=name,
        title=name.replace("_", " ").capitalize(),
        description=description,
        scopes=("designer",),
        arguments=arguments,
        reply=reply,
        handler=lambda call: handler(call, call.parse(arguments)),
        reads_only=reads_only,
    )


def writing_tool(name: str, description: str, parts: _Parts[_Arguments]) -> Tool:
    """As `reading_tool`, of one that changes something."""
    return reading_tool(name, description, parts, reads_only=False)
