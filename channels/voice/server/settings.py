"""Every setting of the voice agent, read from the environment."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from adapters.models.tools import Approval, read_rules
from adapters.outbound.policy import AllowList, host_and_port
from adapters.redis_address import checked_redis_url
from channels.voice.carriers.carrier import Carrier
from channels.voice.carriers.sip.webhook import WebhookVerifier
from channels.voice.carriers.table import CARRIERS, CarrierName, CarrierRow, CarrierSettings
from channels.voice.server.public_address import PublicAddress, base_url, parse_proxies
from channels.voice.wires.openai_realtime import DEFAULT_URL
from flow_engine.errors import CallTheOperator, CorrectTheInput
from flow_engine.ports.outbound import OutboundSender, header_key

_Text = TypeVar("_Text", str, SecretStr)


def _taken_by(read: Callable[[str], object]) -> AfterValidator:
    """A text, or a secret, that `read` can take; its refusal is an error of the setting."""

    def checked(given: _Text) -> _Text:
        try:
            read(given.get_secret_value() if isinstance(given, SecretStr) else given)
        except CorrectTheInput as wrong:
            raise ValueError("; ".join(each.message for each in wrong.findings)) from wrong
        except CallTheOperator as wrong:
            raise ValueError(wrong.detail) from wrong
        return given

    return AfterValidator(checked)


def _key(given: SecretStr) -> SecretStr | None:
    key = header_key(given.get_secret_value())
    return None if key is None else SecretStr(key)


class VoiceSettings(CarrierSettings):
    """An empty variable counts as unset: an empty secret would be one that everybody knows."""

    model_config = SettingsConfigDict(
        env_prefix="FLOW_ENGINE_", frozen=True, extra="ignore", env_ignore_empty=True, populate_by_name=True
    )

    openai_api_key: Annotated[SecretStr, AfterValidator(_key)] | None = Field(
        default=None, validation_alias="OPENAI_API_KEY", description="Key for the model's server"
    )
    openai_webhook_secret: Annotated[SecretStr, _taken_by(WebhookVerifier.checked)] | None = Field(
        default=None,
        validation_alias="OPENAI_WEBHOOK_SECRET",
        description="What OpenAI signs its webhooks with, whsec_...; unset: no SIP calls",
    )
    realtime_url: Annotated[str, AfterValidator(partial(base_url, schemes=("wss", "ws"), query=True))] = (
        Field(
            default=DEFAULT_URL,
            description="The model's server, wss:// or ws://; SIP calls are steered beside it",
        )
    )
    public_url: Annotated[str, AfterValidator(base_url)] | None = Field(
        default=None,
        description="Where Twilio reaches this agent, https://host; unset: as asked, seen through proxies",
    )
    trusted_proxies: Annotated[str, _taken_by(parse_proxies)] = Field(
        default="",
        description="Addresses or CIDR, comma-separated, whose X-Forwarded-* headers are believed",
    )
    voice_carrier: CarrierName = Field(
        default="twilio", description="Whose calls and media streams are taken, beside those by SIP"
    )
    voice_max_calls: int = Field(
        default=200, ge=1, le=10_000, description="Calls at once; a caller beyond that hears the busy tone"
    )
    voice_drain_s: float = Field(
        default=60.0, ge=0, le=86_400, description="Seconds that calls may go on after SIGTERM"
    )
    voice_tool_rules: Annotated[str, _taken_by(read_rules)] = Field(
        default="",
        description="What the operator says of tools, decision:tool after commas, such as forbid:refund_*; "
        "prompt refuses too, as nobody can be asked in a call",
    )
    voice_redis_url: Annotated[SecretStr, _taken_by(checked_redis_url)] | None = Field(
        default=None,
        description="The flow engine's Redis, whose notices are followed; unset: the engine is asked",
    )
    voice_redis_cluster: bool = Field(default=False, description="That URL names a node of a Redis Cluster")
    voice_tenant: str = Field(
        default="default",
        min_length=1,
        description="Tenant of the flow engine's key, as the notices name it",
    )
    voice_spool: Path | None = Field(
        default=None,
        description="Directory for on_end requests that have not been answered; unset: kept in memory only",
    )
    outbound_allow: Annotated[str, _taken_by(AllowList.parse)] = Field(
        default="", description="Hosts, host:port or CIDR, comma-separated, that outbound calls may reach"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level logged; debug shows what callers say"
    )

    def approval(self) -> Approval:
        """Who decides on the calls of tools: the operator's rules, and nobody to ask."""
        return Approval(read_rules(self.voice_tool_rules))

    def public_address(self) -> PublicAddress:
        """Raises CorrectTheInput `trusted_proxies_invalid`."""
        return PublicAddress(self.public_url, parse_proxies(self.trusted_proxies))

    @property
    def carrier(self) -> CarrierRow:
        return CARRIERS[self.voice_carrier]

    def open_carrier(self, sender: OutboundSender) -> Carrier:
        """The carrier whose calls are taken, steered through `sender`. Raises CorrectTheInput
        `trusted_proxies_invalid`."""
        return self.carrier.open(self, self.public_address(), sender)

    @property
    def has_model_key(self) -> bool:
        """Whether OpenAI would take a call: another server may want no key."""
        return self.openai_api_key is not None or self.realtime_url != DEFAULT_URL

    def outbound_allowed(self, *named: str | None) -> str:
        """`outbound_allow` and the servers that the operator has named elsewhere, in settings or in a config
        file: naming one is allowing it (F45)."""
        urls = filter(None, (self.realtime_url, *self.carrier.urls(self), *named))
        return ",".join(filter(None, (self.outbound_allow, *map(host_and_port, urls))))


def variable_of(name: str) -> str:
    """The environment variable that a field is read from. Where it has a name of its own, pydantic's errors
    name that instead of the field."""
    field = VoiceSettings.model_fields.get(name)
    if field is None:
        return name
    alias = field.validation_alias
    return alias if isinstance(alias, str) else f"FLOW_ENGINE_{name.upper()}"
