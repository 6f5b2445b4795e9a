"""REST: sessions, decisions and tokens under `/v1/chat`, the agents table under `/v1/ai-agents` (C1)."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from channels.chat.accounts import Accounts
from channels.chat.answering import Answering
from channels.chat.frames import MOST_CHARS
from channels.chat.http import Call, Endpoint, json_response
from channels.chat.people import People, PersonsOutcome
from channels.chat.rows import StoredRow
from channels.chat.sessions import Sessions
from channels.chat.table import AgentTable, Change, patched, put
from channels.chat.tokens import DEFAULT_S, LONGEST_S, Tokens
from flow_engine.documents.findings import findings_of
from flow_engine.errors import CorrectTheInput, Finding, RetryLater
from flow_engine.ports.chat import SessionRef
from flow_engine.ports.dialogue import ConversationRef
from flow_engine.ports.models import ModelFailed
from flow_engine.values import JsonValue, utc_text

CHAT: Final = "/v1/chat"
TABLE: Final = "/v1/ai-agents"
_DRY_RUN: Final = "dry-run"


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class TokenBody(_Body):
    user: Annotated[str, Field(min_length=1, max_length=256)]
    ttl_s: Annotated[int, Field(ge=1, le=LONGEST_S)] = DEFAULT_S


class RouteBody(_Body):
    text: Annotated[str, Field(min_length=1, max_length=MOST_CHARS)]
    session: str | None = None


class EndBody(_Body):
    reason: Annotated[str, Field(max_length=500)] | None = None


class HumanBody(_Body):
    """What a person does in a session, or says in it, or both. With a decision on a text of the model `text`
    is what is sent instead (`edited`), `approval_id` the text that is meant."""

    outcome: PersonsOutcome | None = None
    text: Annotated[str, Field(min_length=1, max_length=MOST_CHARS)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    reason: Annotated[str, Field(max_length=500)] | None = None
    approval_id: Annotated[int, Field(ge=1)] | None = None


Read = TypeVar("Read", bound=_Body)


class SessionRoutes:
    def __init__(
        self,
        sessions: Sessions,
        answering: Answering,
        accounts: Accounts,
        tokens: Callable[[], Awaitable[Tokens]],
        people: People,
    ) -> None:
        self._sessions = sessions
        self._answering = answering
        self._accounts = accounts
        self._tokens = tokens
        self._people = people

    def endpoints(self) -> Sequence[Endpoint]:
        one = CHAT + "/sessions/{session}"
        return [
            Endpoint("POST", CHAT + "/tokens", ("chat",), self.token),
            Endpoint("POST", CHAT + "/route", ("chat", "designer"), self.route),
            Endpoint("GET", one, ("chat", "designer"), self.session),
            Endpoint("GET", one + "/decisions", ("chat", "designer"), self.decisions),
            Endpoint("GET", one + "/runs", ("chat", "designer"), self.runs),
            Endpoint("POST", one + "/end", ("chat", "agent"), self.end),
            Endpoint("POST", one + "/human", ("agent",), self.human),
        ]

    async def token(self, call: Call) -> Response:
        body = _read(call, TokenBody)
        token, ends = (await self._tokens()).issue(call.principal.tenant_id, body.user, body.ttl_s)
        return json_response({"token": token, "expires_at": utc_text(ends)}, 201)

    async def route(self, call: Call) -> Response:
        body = _read(call, RouteBody)
        tenant_id = call.principal.tenant_id
        state = None
        if body.session is not None:
            state = await self._sessions.state(SessionRef(tenant_id, body.session))
        conversation = ConversationRef(tenant_id, body.session or _DRY_RUN)
        try:
            decision = await self._answering.decide(tenant_id, body.text, state, conversation)
        except ModelFailed as failure:
            raise RetryLater("model_failed", f"the orchestrator's model: {failure.reason}") from None
        return json_response(decision.reply())

    async def session(self, call: Call) -> Response:
        ref = self._ref(call)
        state = await self._sessions.state(ref)
        body = state.model_dump(mode="json", include={"user", "language", "active_agent", "ended"})
        usage = await self._accounts.usage(ref)
        last = await self._sessions.store.last(ref)
        return json_response({"session": ref.session_id, **body, "last_seq": last, "usage": usage})

    async def decisions(self, call: Call) -> Response:
        ref = await self._known(call)
        return json_response(await self._accounts.decisions(ref))

    async def runs(self, call: Call) -> Response:
        ref = await self._known(call)
        return json_response(await self._accounts.runs(ref))

    async def end(self, call: Call) -> Response:
        body = _read(call, EndBody) if call.body else EndBody()
        await self._sessions.end(self._ref(call), body.reason or "ended_by_api")
        return json_response({"session": call.path("session"), "ended": True})

    async def human(self, call: Call) -> Response:
        body, ref = _read(call, HumanBody), self._ref(call)
        if body.outcome is None and body.text is None:
            message = "accepted is an outcome, a text, or both"
            raise CorrectTheInput("body_invalid", message, [Finding("", "empty", message)])
        state = await self._sessions.state(ref)
        keep = partial(self._sessions.keep, ref)
        task = await self._people.act(ref, state, self._sessions.store, keep, **dict(body))
        return json_response({"session": ref.session_id, **task})

    async def _known(self, call: Call) -> SessionRef:
        """Raises LookElsewhere `session_unknown`; accounts outlive their session."""
        ref = self._ref(call)
        if not await self._accounts.decisions(ref):
            await self._sessions.state(ref)
        return ref

    @staticmethod
    def _ref(call: Call) -> SessionRef:
        return SessionRef(call.principal.tenant_id, call.path("session"))


def _read(call: Call, model: type[Read]) -> Read:
    """Raises CorrectTheInput `json_invalid`, `body_invalid` with every pointer."""
    raw: dict[str, JsonValue] = call.object()
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        findings = list(findings_of(error, model, raw, most=20))
        raise CorrectTheInput("body_invalid", "the body breaks rules of this route", findings) from None


class AgentRoutes:
    """Every route needs a key of scope `designer`; the tenant is the key's."""

    def __init__(self, table: AgentTable) -> None:
        self._table = table

    def endpoints(self) -> Sequence[Endpoint]:
        one = TABLE + "/{name}"
        routes = (
            ("GET", TABLE, self.list),
            ("POST", TABLE, self.create),
            ("POST", TABLE + "/validate", self.validate),
            ("GET", one, self.get),
            ("PUT", one, self.put),
            ("PATCH", one, self.patch),
            ("DELETE", one, self.delete),
            ("GET", one + "/effective", self.effective),
            ("GET", one + "/history", self.history),
        )
        return [Endpoint(method, path, ("designer",), handler) for method, path, handler in routes]

    async def list(self, call: Call) -> Response:
        rows = await self._table.rows(call.principal.tenant_id)
        return json_response([_reply(row) for row in rows.values()])

    async def create(self, call: Call) -> Response:
        row = await self._table.create(call.principal.tenant_id, call.json(), call.principal.name)
        return _sent(row, 201, {"Location": f"{TABLE}/{row.name}"})

    async def validate(self, call: Call) -> Response:
        found = await self._table.findings(call.principal.tenant_id, call.json())
        errors = [{"pointer": f.pointer, "code": f.code, "message": f.message} for f in found]
        return json_response({"valid": not errors, "errors": errors})

    async def get(self, call: Call) -> Response:
        return _sent(await self._table.row(call.principal.tenant_id, call.path("name")))

    async def put(self, call: Call) -> Response:
        return await self._changed(call, put(call.object(), call.path("name")))

    async def patch(self, call: Call) -> Response:
        return await self._changed(call, patched(call.object()))

    async def delete(self, call: Call) -> Response:
        return await self._changed(call, None)

    async def effective(self, call: Call) -> Response:
        agent = await self._table.effective(call.principal.tenant_id, call.path("name"))
        fields = {name: {"value": value, "from": agent.sources[name]} for name, value in agent.fields.items()}
        return json_response(
            {
                "name": agent.name,
                "revision": agent.revision,
                "fields": fields,
                "system_prompt": agent.system_prompt,
            }
        )

    async def history(self, call: Call) -> Response:
        return json_response(await self._table.history(call.principal.tenant_id, call.path("name")))

    async def _changed(self, call: Call, change: Change | None) -> Response:
        who, name = call.principal, call.path("name")
        row = await self._table.change(who.tenant_id, name, change, who.name, call.if_match)
        return Response(status_code=204) if row is None else _sent(row)


def _sent(row: StoredRow, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return json_response(_reply(row), status, {"ETag": f'"{row.revision}"', **(headers or {})})


def _reply(row: StoredRow) -> dict[str, object]:
    return {**row.fields, "revision": row.revision}
