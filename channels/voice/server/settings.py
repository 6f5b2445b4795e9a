"""Every setting of the voice agent, read from the environment."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from adapters.models.tools import Approval, read_rules
from adapters.outbound.policy import AllowList, host_and_port
from adapters.redis_address import checked_redis_url
from channels.voice.carriers.carrier import Carrier
from channels.voice.carriers.sip.webhook import WebhookVerifier
from channels.voice.carriers.table import CARRIERS, CarrierName, CarrierRow, CarrierSettings
from channels.voice.server.public_address import PublicAddress, base_url, parse_proxies
from channels.voice.wires.realtime_urls import DEFAULT_URL
from flow_engine.errors import CallTheOperator, CorrectTheInput
from flow_engine.ports.outbound import OutboundSender, header_key


def _as_told(read: Callable[[str], object], text: str) -> str:
    """The text, which `read` can take; its refusal is an error of the setting."""
    try:
        read(text)
    except CorrectTheInput as wrong:
        raise ValueError("; ".join(each.message for each in wrong.findings)) from wrong
    except CallTheOperator as wrong:
        raise ValueError(wrong.detail) from wrong
    return text


class VoiceSettings(CarrierSettings):
    """An empty variable counts as unset: an empty secret would be one that everybody knows."""

    model_config = SettingsConfigDict(
        env_prefix="FLOW_ENGINE_", frozen=True, extra="ignore", env_ignore_empty=True, populate_by_name=True
    )

    openai_api_key: SecretStr | None = Field(
        default=None, validation_alias="OPENAI_API_KEY", description="Key for the model's server"
    )
    openai_webhook_secret: SecretStr | None = Field(
        default=None,
        validation_alias="OPENAI_WEBHOOK_SECRET",
        description="What OpenAI signs its webhooks with, whsec_...; unset: no SIP calls",
    )
    realtime_url: str = Field(
        default=DEFAULT_URL,
        description="The model's server, wss:// or ws://; SIP calls are steered beside it",
    )
    public_url: str | None = Field(
        default=None,
        description="Where Twilio reaches this agent, https://host; unset: as asked, seen through proxies",
    )
    trusted_proxies: str = Field(
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
    voice_tool_rules: str = Field(
        default="",
        description="What the operator says of tools, decision:tool after commas, such as forbid:refund_*; "
        "prompt refuses too, as nobody can be asked in a call",
    )
    voice_redis_url: SecretStr | None = Field(
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
    outbound_allow: str = Field(
        default="", description="Hosts, host:port or CIDR, comma-separated, that outbound calls may reach"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level logged; debug shows what callers say"
    )

    @field_validator("voice_tool_rules")
    @classmethod
    def _are_rules(cls, text: str) -> str:
        read_rules(text)
        return text

    @field_validator("outbound_allow")
    @classmethod
    def _is_an_allow_list(cls, text: str) -> str:
        return _as_told(AllowList.parse, text)

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, text: str) -> str:
        return _as_told(parse_proxies, text)

    @field_validator("openai_api_key")
    @classmethod
    def _is_a_key(cls, given: SecretStr | None) -> SecretStr | None:
        key = None if given is None else header_key(given.get_secret_value())
        return None if key is None else SecretStr(key)

    @field_validator("openai_webhook_secret")
    @classmethod
    def _is_a_signing_key(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None:
            _as_told(WebhookVerifier.checked, secret.get_secret_value())
        return secret

    @field_validator("voice_redis_url")
    @classmethod
    def _is_redis(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            checked_redis_url(url.get_secret_value())
        return url

    @field_validator("realtime_url")
    @classmethod
    def _is_websocket(cls, url: str) -> str:
        return base_url(url, ("wss", "ws"), query=True)

    @field_validator("public_url")
    @classmethod
    def _is_http(cls, url: str | None) -> str | None:
        return None if url is None else base_url(url)

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
