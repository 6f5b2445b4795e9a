"""The route that moves live conversations to another version."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter
from starlette.responses import Response
from typing_extensions import TypedDict

from api.bodies import Body, Id
from api.endpoints import FLAG, Call, Endpoint, Parameter, for_designers, json_response
from flow_engine.use_cases.migrations import MigrationOrder, MigrationRow, Migrations

AT_MOST = 1_000


class Migrate(Body):
    """`mapping` goes from tasks of the old version to tasks of the new one, by id or by name."""

    from_version_id: Id
    to_version_id: Id
    mapping: Mapping[str, str] = Field(default_factory=dict[str, str])
    limit: Annotated[int, Field(ge=1, le=AT_MOST)] = AT_MOST


class MigrationReply(TypedDict):
    """`more`: there are further conversations; send the same order again."""

    dryRun: bool
    fromVersionId: str
    toVersionId: str
    counts: Mapping[str, int]
    conversations: Sequence[MigrationRow]
    more: bool


_MIGRATE = TypeAdapter(Migrate)


class MigrationRoutes:
    def __init__(self, migrations: Migrations) -> None:
        self._migrations = migrations

    async def migrate(self, call: Call) -> Response:
        body = call.parse(_MIGRATE)
        dry_run = call.flag("dryRun", default=True)
        order = MigrationOrder(body.from_version_id, body.to_version_id, body.mapping, dry_run, body.limit)
        report = await self._migrations.migrate(call.tenant_id, call.path("flow_id"), order)
        counts = {
            fate: sum(row["verdict"] == fate for row in report.rows) for fate in ("keep", "map", "cannot")
        }
        counts["migrated"] = sum(row["migrated"] for row in report.rows)
        return json_response(
            MigrationReply(
                dryRun=dry_run,
                fromVersionId=order.from_version_id,
                toVersionId=order.to_version_id,
                counts=counts,
                conversations=report.rows,
                more=report.more,
            )
        )

    def endpoints(self) -> list[Endpoint]:
        return [
            for_designers(
                "POST /flows/{flow_id}/migrations",
                self.migrate,
                "Move a version's live conversations to another version, or tell what would happen",
                MigrationReply,
                parameters=(Parameter("dryRun", "false moves them; the default only reports", FLAG),),
                body=_MIGRATE,
                problems=(404, 409),
                body_example={"fromVersionId": "claim-v1", "toVersionId": "claim-v2"},
            )
        ]
