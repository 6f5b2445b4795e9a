"""The list of agents as the business API gives it: `GET {api}/api/sip/agents`.

A JSON list of objects, or an object that holds the list as `agents` or `restaurants`. Each has

    id | restaurantId        letters, digits, '.', '_', '-': it names a file
    name | restaurantName    one line of text
    type                     the template's name, `restaurant` where it is left out
    sipBridge                true: a SIP bridge runs beside the agent, with
    sipDomain                host or host:port of its server
    sipUsername, sipPassword of an account that no other agent has
    publicUrl                where the carrier reaches this agent, https://host[:port][/path]
    phoneNumber              the number that callers dial, by which a shared address finds the agent; no other
                             agent has it
    webhookSecret            what OpenAI signs this agent's webhooks with, whsec_...

Properties beside these are ignored: the list serves others as well.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import orjson
from pydantic import SecretStr

from channels.voice.carriers.call_control import caller_number
from channels.voice.carriers.sip.webhook import WebhookVerifier
from channels.voice.sip_bridge.account import Account, checked_username, server_in
from flow_engine.documents.findings import json_type, listed, quoted
from flow_engine.errors import CallTheOperator, Finding, pointer
from flow_engine.ports.outbound import OutboundFailed, OutboundRefused, OutboundSender
from flow_engine.values import JsonValue

PATH = "/api/sip/agents"
TIMEOUT_S = 20.0
DEFAULT_TYPE = "restaurant"

_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SAFE_NAME_RULE = "must be 1 to 100 of the characters A-Z a-z 0-9 . _ - and begin with a letter or digit"
_LISTS = ("agents", "restaurants")
_MOST_TEXT = 500
# Nothing that ends a line, where the text goes into an environment, a prompt or a log.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class Listed:
    """One agent of the list. `sip` is None where it has no bridge, the rest where it has none of its own.
    `phone_number` has no separators."""

    id: str
    name: str
    type: str
    sip: Account | None = None
    public_url: str | None = None
    webhook_secret: SecretStr | None = None
    phone_number: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry that cannot be used, `id` None where not even that is clear. The problems are JSON Pointers
    into the document that was fetched, and quote nothing of it but ids and types."""

    id: str | None
    problems: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class AgentsList:
    agents: tuple[Listed, ...]
    refused: tuple[Refused, ...]

    @property
    def empty(self) -> bool:
        return not self.agents and not self.refused

    @property
    def complete(self) -> bool:
        """Whether an agent that is not named in it is surely gone."""
        return all(refused.id is not None for refused in self.refused)


class ListUnavailable(Exception):
    """There is no list to go by: not fetched, refused or unreadable. The message is for people, and holds
    nothing of the answer."""


async def fetch_agents(caller: OutboundSender, api_url: str, token: SecretStr | None) -> AgentsList:
    """The list at the URL `api_url`, JSON, as `read_agents` has it. Raises ListUnavailable."""
    headers = {"Accept": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token.get_secret_value()}"
    try:
        reply = await caller.request("GET", api_url + PATH, timeout_s=TIMEOUT_S, headers=headers)
    except (OutboundRefused, OutboundFailed) as error:
        raise ListUnavailable(str(error)) from error
    if reply.status != 200:
        raise ListUnavailable(f"{PATH} answered with status {reply.status}")
    return read_agents(reply.body)


def read_agents(body: bytes) -> AgentsList:
    """Every entry of the JSON is looked at on its own. Raises ListUnavailable when there is no list of
    them."""
    try:
        document: JsonValue = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ListUnavailable(f"{PATH} did not answer with JSON") from error
    place, entries = _entries(document)
    agents: list[Listed] = []
    refused: list[Refused] = []
    taken: dict[Hashable, str] = {}
    for index, entry in enumerate(entries):
        read = _entry(entry, (*place, index), taken)
        if isinstance(read, Listed):
            agents.append(read)
            taken[read.id.casefold()] = read.id
            if read.sip is not None:
                taken[_account(read.sip)] = read.id
            if read.phone_number is not None:
                taken["number", read.phone_number] = read.id
        else:
            refused.append(read)
    return AgentsList(tuple(agents), tuple(refused))


def _entries(document: JsonValue) -> tuple[tuple[str, ...], Sequence[JsonValue]]:
    if isinstance(document, list):
        return (), document
    if isinstance(document, dict):
        for name in _LISTS:
            inner = document.get(name)
            if isinstance(inner, list):
                return (name,), inner
    raise ListUnavailable(f"{PATH} answered with no list; accepted are a list, or an object with 'agents'")


def _account(sip: Account) -> Hashable:
    host, port = sip.server
    return host.casefold(), port, sip.username


def _entry(entry: JsonValue, place: tuple[str | int, ...], taken: Mapping[Hashable, str]) -> Listed | Refused:
    if not isinstance(entry, dict):
        problem = Finding(pointer(*place), "wrong_type", f"must be an object, not {json_type(entry)}")
        return Refused(None, (problem,))
    fields = _Fields(entry, place)
    agent_id = fields.file_name("id", "restaurantId")
    name = fields.template_free("name", "restaurantName")
    kind = DEFAULT_TYPE if entry.get("type") is None else fields.file_name("type")
    sip = fields.sip_account() if fields.flag("sipBridge") else None
    number = fields.phone_number("phoneNumber")
    public_url, secret = fields.public_url("publicUrl"), fields.webhook_secret("webhookSecret")
    if agent_id is not None and agent_id.casefold() in taken:
        fields.complain("id", "duplicate_id", f"is listed before as {taken[agent_id.casefold()]!r}")
    if sip is not None and not fields.problems and (other := taken.get(_account(sip))) is not None:
        problem = f"is the account of {other!r}: a call of it would ring at both"
        fields.complain("sipUsername", "duplicate_account", problem)
    if number is not None and (other := taken.get(("number", number))) is not None:
        fields.complain(
            "phoneNumber", "duplicate_number", f"is the number of {other!r}, which gets its calls"
        )
    if agent_id is None or name is None or kind is None or fields.problems:
        return Refused(agent_id, tuple(fields.problems))
    return Listed(agent_id, name, kind, sip, public_url, secret, number)


class _Fields:
    """Reads one entry and gathers what is wrong with it."""

    def __init__(self, entry: Mapping[str, JsonValue], place: tuple[str | int, ...]) -> None:
        self._entry = entry
        self._place = place
        self.problems: list[Finding] = []

    def complain(self, name: str, code: str, message: str) -> None:
        self.problems.append(Finding(pointer(*self._place, name), code, message))

    def text(self, *names: str) -> str | None:
        """The first of the properties that is there."""
        name = next((each for each in names if self._entry.get(each) is not None), names[0])
        value = self._entry.get(name)
        if value is None:
            self.complain(name, "missing_property", f"is required; accepted are {listed(names)}")
        elif not isinstance(value, str):
            self.complain(name, "wrong_type", f"must be a string, not {json_type(value)}")
        elif problem := next(_unusable(value), None):
            self.complain(name, "not_accepted", problem)
        else:
            return value
        return None

    def file_name(self, *names: str) -> str | None:
        """An unsafe one is complained of, and returned: it still tells which agent is meant."""
        value = self.text(*names)
        if value is not None and not _SAFE_NAME.fullmatch(value):
            self.complain(names[0], "not_accepted", f"{_SAFE_NAME_RULE}, not {quoted(value)}")
        return value

    def template_free(self, *names: str) -> str | None:
        """Text that stays a value in a config, whose texts are templates themselves."""
        value = self.text(*names)
        if value is not None and ("{{" in value or "${env:" in value):
            self.complain(names[0], "not_accepted", "must not hold '{{' or '${env:', which begin a template")
        return value

    def checked(self, name: str, check: Callable[[str], object]) -> str | None:
        """`check` raises ValueError, whose text is told."""
        value = self.text(name)
        try:
            if value is not None:
                check(value)
        except ValueError as error:
            self.complain(name, "not_accepted", str(error))
        return value

    def public_url(self, name: str) -> str | None:
        url = None if self._entry.get(name) is None else self.text(name)
        if url is not None and not is_public_url(url):
            self.complain(name, "not_accepted", "must be https://host[:port][/path], without a query")
        return url and url.rstrip("/")

    def phone_number(self, name: str) -> str | None:
        text = None if self._entry.get(name) is None else self.text(name)
        number = caller_number(text)
        if text is not None and number is None:
            self.complain(name, "not_accepted", "must be a phone number such as +33123456789")
        return number

    def webhook_secret(self, name: str) -> SecretStr | None:
        secret = None if self._entry.get(name) is None else self.text(name)
        try:
            return None if secret is None else SecretStr(WebhookVerifier.checked(secret))
        except CallTheOperator:
            self.complain(name, "not_accepted", "must be whsec_ and base64")
            return None

    def flag(self, name: str) -> bool:
        value = self._entry.get(name)
        if value is not None and not isinstance(value, bool):
            self.complain(name, "wrong_type", f"must be true or false, not {json_type(value)}")
        return value is True

    def sip_account(self) -> Account | None:
        domain, username = self.checked("sipDomain", server_in), self.checked("sipUsername", checked_username)
        password = self.text("sipPassword")
        if domain is None or username is None or password is None:
            return None
        return Account(domain, username, SecretStr(password))


def is_public_url(url: str) -> bool:
    """Whether it is a URL of http or https, with a host, and neither credentials nor a query. False for an
    invalid one."""
    try:
        parts = urlsplit(url)
        usable = parts.port != 0 and parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
    return usable and parts.username is None and "?" not in url and "#" not in url and url.isprintable()


def _unusable(text: str) -> Iterator[str]:
    if not text.strip():
        yield "must not be blank"
    if len(text) > _MOST_TEXT:
        yield f"must have at most {_MOST_TEXT} characters"
    if _UNPRINTABLE.search(text):
        yield "must be one line without control characters"
