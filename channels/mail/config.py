"""The mail agent's config: mailboxes, rules, profiles, tools and the pipeline, as one frozen model (M3-M5).

The models hold what the file says, with defaults for what it leaves out. What one part asks of another (a
profile that is there, a tool that somebody registers, a file that can be read) is checked where the file is
loaded.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, cast
from urllib.parse import urlsplit

import pydantic
import re2
from pydantic_core import PydanticCustomError

from adapters.models.providers import model_names
from adapters.models.tools import Verdict
from channels.http_tools.documents import (
    Compiled,
    Document,
    HttpTool,
    ObjectSchema,
    Text,
    ToolName,
    names_a_key,
    version_choice,
)
from channels.mail.addresses import ascii_address, normal_address, normal_domain
from flow_engine.documents.findings import reading_beside
from flow_engine.values import JsonValue

SCHEMA_ID: Final = "urn:flow-engine:schema:mail-config:1.0"
DEFAULT_MODEL: Final = "gemini/gemini-2.5-pro"
MAIL_TOOLS: Final = frozenset({"send_reply", "create_draft", "escalate", "search_thread"})
"""What every mail agent may be allowed to call, beside the tools of the config (M11)."""

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
IMAP_PORTS: Final = {"implicit": 993, "starttls": 143, "none": 143}
SMTP_PORTS: Final = {"implicit": 465, "starttls": 587, "none": 25}

Tls = Literal["implicit", "starttls", "none"]

_KEYWORD: Final = re.compile(r"[A-Za-z0-9!#$&'+,./:;<=>?@^_`|~-]{1,64}")
_TOKENS: Final = re.compile(r"https?://[^/?#\s@]+(?:/[^?#\s]*)?(?:\?[^#\s]*)?", re.IGNORECASE)
_ENGINE: Final = re.compile(r"https?://[^/?#\s@]+(?:/[^?#\s]*)?", re.IGNORECASE)
_RE2_ERROR = cast("type[Exception]", re2.error)
_PATTERN_MEMORY: Final = 8 << 20
"""Bytes that one regular expression may take."""


def _accepts(what: str, read: Callable[[str], str | None]) -> pydantic.AfterValidator:
    """Text as `read` gives it back; where that is None it is refused, with `what` as accepted."""

    def check(text: str) -> str:
        found = read(text)
        if found is None:
            raise PydanticCustomError("not_accepted", "accepted is {what}", {"what": what})
        return found

    return pydantic.AfterValidator(check)


def _address_or_domain(text: str) -> str | None:
    found = normal_address(text) if "@" in text else normal_domain(text)
    return found if found is not None and "." in found else None


def _host(text: str) -> str | None:
    try:
        text.encode("idna")
    except UnicodeError:  # what no connection can be made to
        return None
    return text


def _token_url(text: str) -> str | None:
    """As it was given, path and query included (RFC 6749, section 3.2)."""
    if not _TOKENS.fullmatch(text):
        return None
    try:
        url = urlsplit(text)
        is_sound = url.port != 0 and (url.scheme == "https" or url.hostname in LOOPBACK)
    except ValueError:  # a port that is none, brackets that do not close
        return None
    return text if is_sound else None


@dataclass(frozen=True, slots=True)
class SearchPattern:
    """A regular expression of RE2: found in time linear to the text, case-sensitive unless `(?i)`. One that
    RE2 refuses is an error of the config."""

    text: str
    compiled: Any

    def is_found(self, value: str) -> bool:
        return self.compiled.search(value) is not None


def _pattern(value: object, info: pydantic.ValidationInfo) -> SearchPattern:
    if not isinstance(value, str) or not value:
        raise PydanticCustomError("string_type", "accepted is text, a regular expression of RE2")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        return SearchPattern(value, re2.compile(value, options))
    except _RE2_ERROR as error:
        told: object = error.args[0] if error.args else ""
        reason = told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)
        raise PydanticCustomError(
            "pattern", "accepted is a regular expression of RE2: {reason}", {"reason": reason}
        ) from None


MailAddress: TypeAlias = Annotated[Text, _accepts("one address such as info@example.com", normal_address)]
_AN_OWN_ADDRESS = "one address such as info@example.com, with ASCII before the @"
OwnAddress: TypeAlias = Annotated[Text, _accepts(_AN_OWN_ADDRESS, ascii_address)]
Pattern: TypeAlias = Annotated[SearchPattern, Compiled(_pattern)]
HeaderName: TypeAlias = Annotated[str, pydantic.Field(pattern=r"^[!-9;-~]+$", max_length=200)]
_A_KEYWORD = "an IMAP keyword: letters, digits and signs in ASCII, without spaces"
Keyword: TypeAlias = Annotated[
    Text, _accepts(_A_KEYWORD, lambda text: text if _KEYWORD.fullmatch(text) else None)
]
ModelText: TypeAlias = Annotated[Text, pydantic.AfterValidator(model_names)]
Environment: TypeAlias = Annotated[Text, pydantic.Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_AN_ORIGIN = "an address such as https://api.example.com"
Origin: TypeAlias = Annotated[
    Text, _accepts(_AN_ORIGIN, lambda text: text.rstrip("/") if _ENGINE.fullmatch(text) else None)
]
TokenUrl: TypeAlias = Annotated[
    Text, _accepts("an https:// address, or http:// on loopback, without #", _token_url)
]
Domain: TypeAlias = Annotated[
    Text,
    _accepts(
        "a domain such as example.com, without @", lambda text: None if "@" in text else normal_domain(text)
    ),
]
Seconds: TypeAlias = Annotated[float, pydantic.Field(gt=0, le=86_400, allow_inf_nan=False, strict=True)]
Count: TypeAlias = Annotated[int, pydantic.Field(ge=0, le=1_000_000_000, strict=True)]


# --- mailboxes -------------------------------------------------------------------------------------


class OAuth2(Document):
    """XOAUTH2 by a refresh token (RFC 6749). Secrets are in the environment, under the names given here; one
    that is missing there is an error when it is used, not at the load."""

    token_url: TokenUrl
    client_id: Text
    client_secret_env: Environment | None = None
    refresh_token_env: Environment
    scope: Text | None = None


class Server(Document):
    """A mail server; `port` follows `tls` where it is left out. Certificates are always checked, one that is
    invalid is an error; `tls: none` is refused but for this machine."""

    host: Annotated[Text, _accepts("the name or address of a host, such as imap.example.com", _host)]
    port: Annotated[int, pydantic.Field(ge=1, le=65_535, strict=True)] | None = None
    tls: Tls = "implicit"
    password_env: Environment | None = None
    oauth2: OAuth2 | None = None

    @pydantic.field_validator("tls")
    @classmethod
    def _open_on_loopback_only(cls, tls: Tls, info: pydantic.ValidationInfo) -> Tls:
        host = info.data.get("host")
        if tls == "none" and host is not None and host not in LOOPBACK:
            raise PydanticCustomError(
                "tls_needed", "accepted is 'implicit' or 'starttls'; 'none' with a host on loopback only"
            )
        return tls


def _secret_faults(fields: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    secrets = sum(fields.get(name) is not None for name in ("password_env", "oauth2"))
    if secrets > 1:
        yield PydanticCustomError("two_secrets", "accepted is `password_env` or `oauth2`, not both")
    if not secrets and fields.get("user") is not None:
        yield PydanticCustomError("no_secret", "`password_env` or `oauth2` is required with a user")


def _imap_faults(fields: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    """One without a user is told of its user: it needs a secret all the same."""
    return _secret_faults({**fields, "user": ""})


class Imap(Server):
    """Where mails come from. `poll_s` are the seconds between two looks where the server has no IDLE, and
    the longest silence of an IDLE that is believed."""

    user: Text
    poll_s: Seconds = 60.0

    _one_secret = pydantic.model_validator(mode="wrap")(reading_beside(_imap_faults))

    @property
    def at_port(self) -> int:
        return self.port or IMAP_PORTS[self.tls]


class Smtp(Server):
    """Where replies go out. Without a user nothing is authenticated."""

    user: Text | None = None

    _one_secret = pydantic.model_validator(mode="wrap")(reading_beside(_secret_faults))

    @property
    def at_port(self) -> int:
        return self.port or SMTP_PORTS[self.tls]


class Folders(Document):
    inbox: Text = "INBOX"
    drafts: Text = "Drafts"
    sent: Text = "Sent"


def _address_faults(fields: Mapping[str, object]) -> Iterator[PydanticCustomError]:
    imap = fields.get("imap")
    user = cast("dict[str, object]", imap).get("user") if isinstance(imap, dict) else None
    if "address" not in fields and isinstance(user, str) and ascii_address(user) is None:
        yield PydanticCustomError(
            "address_missing",
            "`address` is required here, as the IMAP user is no address with ASCII before the @",
        )


class MailboxConfig(Document):
    """One mailbox. `address` is what replies come from, the IMAP user where that is an address; mails from
    it or from `aliases` are its own. Without `smtp` everything that would be sent is left as a draft."""

    name: Annotated[Text, pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,99}$")]
    imap: Imap
    smtp: Smtp | None = None
    folders: Folders = Folders()
    address: OwnAddress = pydantic.Field(default="", validate_default=False)
    display_name: Text | None = None
    aliases: tuple[MailAddress, ...] = ()

    _has_an_address = pydantic.model_validator(mode="wrap")(reading_beside(_address_faults))

    @property
    def own_address(self) -> str:
        """What replies are from, in its normal form."""
        return self.address or ascii_address(self.imap.user) or ""

    @property
    def own_addresses(self) -> frozenset[str]:
        return frozenset({self.own_address, *self.aliases})


# --- rules -----------------------------------------------------------------------------------------


class Match(Document):
    """What a rule asks of a mail: all of it (M4). A condition that is not given asks for nothing."""

    all: bool = False
    sender_email: MailAddress = ""
    sender_domain: Domain = ""
    subject_contains: Annotated[
        Text, _accepts("text, not only spaces", lambda text: text if text.strip() else None)
    ] = ""
    header_match: Annotated[dict[HeaderName, Pattern], pydantic.Field(min_length=1)] = pydantic.Field(
        default_factory=dict[str, SearchPattern]
    )
    forwarded_from: Annotated[
        Text, _accepts("an address such as info@example.com, or a domain", _address_or_domain)
    ] = ""

    @pydantic.field_validator("all", mode="before")
    @classmethod
    def _is_true(cls, value: object) -> object:
        if value is not True:
            raise PydanticCustomError("all_true", "accepted is true")
        return value

    @pydantic.model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not self.model_fields_set:
            raise PydanticCustomError(
                "empty_match",
                "accepted is at least one of {names}",
                {"names": ", ".join(sorted(type(self).model_fields))},
            )
        return self


class Rule(Document):
    """One line of the routing. `trust: any` sends although the match can be forged; `label` is set as a
    keyword without asking a model."""

    name: Text
    match: Match
    route: Literal["pipeline", "agent"]
    profile: Text | None = None
    trust: Literal["any"] | None = None
    label: Keyword | None = None


class Routing(Document):
    rules: tuple[Rule, ...] = ()


# --- agents ----------------------------------------------------------------------------------------


class FlowChoice(Document):
    """The flow of the engine that goes along with a thread: version `version`, or what `tag` of `flow_id`
    points to. The key of the engine's API is in the environment, under the name `api_key_env`."""

    engine_url: Origin
    version: Text | None = None
    flow_id: Text | None = None
    tag: Text | None = None
    api_key_env: Annotated[Environment, pydantic.AfterValidator(names_a_key)] = pydantic.Field(
        default="FLOW_ENGINE_API_KEY", validate_default=True
    )

    _one_version = pydantic.model_validator(mode="wrap")(reading_beside(version_choice))


class ModelSettings(Document):
    """How the model is asked. `max_tokens` bounds one answer, in tokens."""

    model: ModelText = DEFAULT_MODEL
    max_tokens: Annotated[int, pydantic.Field(ge=1, le=1_000_000, strict=True)] = 4096
    temperature: Annotated[float, pydantic.Field(ge=0, le=2, allow_inf_nan=False, strict=True)] = 0.3


class Profile(ModelSettings):
    """One agent (M5). `tools` are what it may call; listing `send_reply` is the permission to send, to the
    people of the thread and to `allowed_recipients`."""

    name: Text | None = None
    max_iterations: Annotated[int, pydantic.Field(ge=1, le=100, strict=True)] = 10
    system_prompt_file: Text
    tools: tuple[Text, ...]
    preprocessor: Text = "default"
    approval: dict[str, Verdict] = pydantic.Field(default_factory=dict[str, Verdict])
    allowed_recipients: tuple[MailAddress, ...] = ()
    flow: FlowChoice | None = None


class AgentConfig(Document):
    profiles: dict[Text, Profile] = pydantic.Field(default_factory=dict[str, Profile])


class MailTool(HttpTool):
    """A declarative HTTP tool. `parameters` is the JSON Schema of its arguments; defaults there are filled
    in before the call."""

    type: Literal["http"] = "http"
    parameters: ObjectSchema = pydantic.Field(default_factory=lambda: {"type": "object", "properties": {}})


# --- the pipeline ----------------------------------------------------------------------------------


class Label(Document):
    """What a mail may be classified as; set as an IMAP keyword (RFC 3501) of this name."""

    name: Keyword
    description: Text = ""


class Drafting(Document):
    instructions: Text | None = None


def _drafting(value: object) -> object:
    if isinstance(value, bool):
        return {} if value else None
    if not isinstance(value, dict):
        raise PydanticCustomError("draft", "accepted is true, false, or an object with `instructions`")
    return cast("object", value)


class Pipeline(ModelSettings):
    """Classify, then draft: what happens to a mail that no rule gives to an agent (M2). `draft: true` is
    short for drafts without instructions; None stands for `false`."""

    labels: tuple[Label, ...] = ()
    draft: Annotated[
        Drafting | None,
        pydantic.BeforeValidator(_drafting),
        pydantic.WithJsonSchema({"anyOf": [{"type": "boolean"}, Drafting.model_json_schema()]}),
    ] = Drafting()

    @pydantic.field_validator("labels")
    @classmethod
    def _names_are_unique(cls, labels: tuple[Label, ...]) -> tuple[Label, ...]:
        if len({label.name for label in labels}) < len(labels):
            raise PydanticCustomError("label_twice", "accepted are labels of different names")
        return labels


class Limits(Document):
    """Replies are counted over 24 hours, and so are a sender's runs and tokens; `run_*` hold for one run.
    Bodies of mails and drafts are kept with a run for `keep_days`, 0: not after its end."""

    replies_per_correspondent: Count = 10
    replies_per_thread: Count = 5
    max_message_mb: Annotated[float, pydantic.Field(gt=0, le=1_000, strict=True)] = 25
    run_seconds: Seconds = 600.0
    run_tokens: Annotated[int, pydantic.Field(ge=1, strict=True)] = 500_000
    run_tool_calls: Annotated[int, pydantic.Field(ge=1, strict=True)] = 50
    runs_per_sender: Annotated[int, pydantic.Field(ge=1, strict=True)] = 1_000
    tokens_per_sender: Annotated[int, pydantic.Field(ge=1, strict=True)] = 5_000_000
    keep_days: Count = 30

    @property
    def max_message_bytes(self) -> int:
        return int(self.max_message_mb * 1_000_000)


class MailConfig(Document):
    """The whole file. `trusted_authserv_ids` are the names under which one's own servers write
    Authentication-Results; `base_url` is the business's API, whose origin tools may call."""

    mailbox: MailboxConfig | None = None
    mailboxes: tuple[MailboxConfig, ...] = ()
    routing: Routing = Routing()
    agent: AgentConfig = AgentConfig()
    tools: dict[ToolName, MailTool] = pydantic.Field(default_factory=dict[str, MailTool])
    base_url: Origin | None = None
    pipeline: Pipeline = Pipeline()
    trusted_authserv_ids: tuple[Text, ...] = ()
    limits: Limits = Limits()

    @property
    def every_mailbox(self) -> tuple[MailboxConfig, ...]:
        return self.mailboxes if self.mailbox is None else (self.mailbox, *self.mailboxes)

    @property
    def root(self) -> Mapping[str, JsonValue]:
        """What templates of tools see beside the arguments."""
        return {} if self.base_url is None else {"base_url": cast("JsonValue", self.base_url)}
