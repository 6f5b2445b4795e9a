"""Mails and configs for tests, written out where only a part of them matters."""

from __future__ import annotations

from typing import Any

from channels.mail.config import MailConfig
from channels.mail.loading import LoadedConfig
from channels.mail.message import ParsedMail, parse_mail
from channels.mail.preprocessing import SHIPPED

OWN = "info@pharmacy.example"
SERVER = "mx.pharmacy.example"


def raw_mail(body: str = "Hello.", **headers: str | list[str] | None) -> bytes:
    """A mail from `anna@customer.example`; names of headers with `_` for `-`, None leaves one out, a list
    gives several."""
    given: dict[str, str | list[str] | None] = {
        "From": "Anna <anna@customer.example>",
        "To": OWN,
        "Subject": "A question",
        "Message-ID": "<1@customer.example>",
        "Date": "Mon, 02 Mar 2026 09:00:00 +0100",
        "Content-Type": "text/plain; charset=utf-8",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [
        f"{name}: {value}"
        for name, values in given.items()
        if values is not None
        for value in (values if isinstance(values, list) else [values])
    ]
    return "\r\n".join([*lines, "", body]).encode("utf-8", "surrogateescape")


def mail(body: str = "Hello.", **headers: str | list[str] | None) -> ParsedMail:
    return parse_mail(raw_mail(body, **headers))


def dmarc(domain: str = "customer.example", result: str = "pass", server: str = SERVER) -> str:
    return f"{server}; spf=pass smtp.mailfrom={domain}; dmarc={result} header.from={domain}"


def config(rules: list[dict[str, Any]] | None = None, **more: Any) -> MailConfig:
    """With a profile `pharmacy` that may call every tool of the mail agent."""
    profile: dict[str, Any] = {
        "system_prompt_file": "prompt.txt",
        "tools": ["send_reply", "create_draft", "escalate", "search_thread"],
        **more.pop("profile", {}),
    }
    return MailConfig.model_validate(
        {
            "mailbox": {
                "name": "main",
                "imap": {"host": "imap.example", "user": OWN, "password_env": "MAIL_PASSWORD"},
            },
            "routing": {"rules": rules or []},
            "agent": {"profiles": {"pharmacy": profile}},
            "trusted_authserv_ids": [SERVER],
            **more,
        }
    )


def rule(match: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "r1", "match": match, "route": "agent", "profile": "pharmacy", **more}


def loaded(settings: MailConfig) -> LoadedConfig:
    return LoadedConfig(settings, dict.fromkeys(settings.agent.profiles, "You answer mails."), SHIPPED)
