"""Which way a mail goes, and how far it is believed (M2-M4, M15). Pure: nothing is called, nothing is stored.

1. Rules are tried in order, the first that matches wins; every rule is judged all the same, to be explained.
2. Headers of a mail are whatever its sender wrote. Believed is one: the topmost Authentication-Results under
   a name that the config trusts. From is authenticated where it says that DMARC passed for From's domain.
3. A match that anybody could have brought about still routes; sending is then downgraded to a draft.
4. What a machine sent is never answered, whatever the rules say.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import structlog

from channels.mail import addresses, message, ports
from channels.mail.config import MailboxConfig, MailConfig, Match, Rule

Signal = Literal["x-forwarded-from", "reply-to", "body", "sender"]

log: Any = structlog.get_logger("flow_engine.mail")

_STATEMENT_PARTS: Final = re.compile(r"\\.?|[^\\\"();]+|[\"();]", re.DOTALL)
_LEFT_OF_TOKEN: Final = frozenset(' \t\n\r<>()[]{},;:"|\\\u00a0\u200b\u201c\u201d\u201e\u00ab\u00bb')
_LEFT_OF_LOCAL: Final = _LEFT_OF_TOKEN | {"@"}
_RIGHT_OF_TOKEN: Final = _LEFT_OF_TOKEN | frozenset("'`*/?!#&=%$^~+")
_WRAPPED: Final = "'`*"
_LONGEST_LOCAL: Final = 64
_LONGEST_DOMAIN: Final = 253


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    """One rule on one mail. `why` says what held, or the first condition that did not; `signal` is that of
    `forwarded_from`, None where the rule does not ask for it or it does not hold."""

    name: str
    matched: bool
    why: str
    signal: Signal | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What becomes of a mail, decided by the config alone. `rule` and `profile` are None for the default
    route; `sends` says that rule and trust allow to send; `automatic` is why the mail is never answered."""

    rule: str | None
    route: ports.Route
    profile: str | None
    is_authenticated: bool
    sends: bool
    automatic: str | None
    label: str | None
    is_trusted: bool
    """Whether what the sender claims may widen the circle of people that are answered."""
    verdicts: tuple[RuleVerdict, ...]

    @property
    def job(self) -> ports.Job:
        return "agent_process" if self.route == "agent" else "classify"


def judge(config: MailConfig, box: MailboxConfig, mail: message.ParsedMail) -> Judgement:
    """The first rule that matches, trust, and whether the mail was sent by a machine."""
    verdicts = tuple(_verdict(rule, mail) for rule in config.routing.rules)
    is_authenticated = is_aligned(mail, config.trusted_authserv_ids)
    pairs = zip(config.routing.rules, verdicts, strict=True)
    rule, verdict = next(((rule, verdict) for rule, verdict in pairs if verdict.matched), (None, None))
    sends = rule is None or verdict is None or may_send(rule, verdict, mail, is_authenticated)
    return Judgement(
        rule=None if rule is None else rule.name,
        route="pipeline" if rule is None else rule.route,
        profile=None if rule is None else rule.profile,
        is_authenticated=is_authenticated,
        sends=sends,
        automatic=automatic_reason(mail, box.own_addresses),
        label=None if rule is None else rule.label,
        is_trusted=is_authenticated or (rule is not None and rule.trust == "any"),
        verdicts=verdicts,
    )


# --- conditions ------------------------------------------------------------------------------------


def _verdict(rule: Rule, mail: message.ParsedMail) -> RuleVerdict:
    sender = mail.sender
    if sender is None:
        count = len(mail.senders)
        return RuleVerdict(rule.name, False, f"From has {count} addresses, accepted is exactly one")
    held: list[str] = []
    signal: Signal | None = None
    for name, holds, reason in _conditions(rule.match, mail, sender):
        if not holds:
            return RuleVerdict(rule.name, False, f"{name}: {reason}")
        held.append(f"{name}: {reason}")
        if name == "forwarded_from":
            signal = cast("Signal", reason.removeprefix("by "))
    return RuleVerdict(rule.name, True, "; ".join(held), signal)


def _conditions(
    match: Match, mail: message.ParsedMail, sender: addresses.Address
) -> Iterator[tuple[str, bool, str]]:
    """Name, whether it holds, and what was found, for each condition that the rule has."""
    if match.all:
        yield "all", True, "every mail"
    if match.sender_email:
        yield "sender_email", sender.email == match.sender_email, f"From is {sender.email}"
    if match.sender_domain:
        yield "sender_domain", sender.domain == match.sender_domain, f"From's domain is {sender.domain}"
    if match.subject_contains:
        holds = _folded(match.subject_contains) in _folded(mail.subject)
        reason = "contains" if holds else "does not contain"
        yield "subject_contains", holds, f"the subject {reason} {match.subject_contains!r}"
    for name, pattern in match.header_match.items():
        values = mail.values(name)
        holds = any(map(pattern.is_found, values))
        reason = "matches" if holds else "does not match" if values else "is absent, asked for is"
        yield "header_match", holds, f"{name} {reason} {pattern.text!r}"
    if match.forwarded_from:
        signal = _signal(match.forwarded_from, mail, sender)
        reason = "no signal names it" if signal is None else f"by {signal}"
        yield "forwarded_from", signal is not None, reason


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def _signal(wanted: str, mail: message.ParsedMail, sender: addresses.Address) -> Signal | None:
    """The first signal that names the address, or any address of the domain."""

    def named(emails: Iterable[str]) -> bool:
        return any(email == wanted or addresses.domain_of(email) == wanted for email in emails if email)

    if named(each.email for each in mail.forwarded_from):
        return "x-forwarded-from"
    if named(each.email for each in mail.reply_to):
        return "reply-to"
    if named(addresses_in(mail.text)):
        return "body"
    return "sender" if named((sender.email,)) else None


def addresses_in(text: str) -> Iterator[str]:
    """Every whole address that stands in a text, in its normal form, of 64 characters before the @ at most;
    takes time linear to the text."""
    at = text.find("@")
    while at >= 0:
        left = at
        while left > 0 and at - left <= _LONGEST_LOCAL and text[left - 1] not in _LEFT_OF_LOCAL:
            left -= 1
        right = at + 1
        while (
            right < len(text)
            and right - at <= _LONGEST_DOMAIN
            and text[right] != "@"
            and text[right] not in _RIGHT_OF_TOKEN
        ):
            right += 1
        if "@" not in (text[left - 1 : left], text[right : right + 1]):
            local, domain = text[left:at].lstrip(_WRAPPED), text[at + 1 : right].rstrip(".-_")
            normal = addresses.normal_address(f"{local}@{domain}")
            if normal is not None:
                yield normal
        at = text.find("@", at + 1)


# --- trust -----------------------------------------------------------------------------------------


def may_send(rule: Rule, verdict: RuleVerdict, mail: message.ParsedMail, is_authenticated: bool) -> bool:
    """What a match by this rule allows: False where sending is downgraded to a draft."""
    if rule.trust == "any":
        return True
    if not is_authenticated or mail.sender is None:
        return False
    if verdict.signal in (None, "sender"):
        return True
    names_sender = bool(rule.match.sender_email or rule.match.sender_domain)
    wanted = rule.match.forwarded_from
    return names_sender or mail.sender.domain == (addresses.domain_of(wanted) or wanted)


def is_aligned(mail: message.ParsedMail, trusted: Sequence[str]) -> bool:
    """Whether the topmost Authentication-Results (RFC 8601) of a trusted server says that DMARC passed for
    From; False where no trusted server says anything."""
    names = {name.strip().rstrip(".").lower() for name in trusted}
    if mail.sender is None:
        return False
    for value in mail.values("Authentication-Results"):
        statements = _statements(value)
        server = (next(statements).split() or [""])[0].strip('"').rstrip(".").lower()
        if server in names:
            found = [properties for method, properties in map(_result, statements) if method == "dmarc"]
            return bool(found) and all(
                properties.get("") == "pass" and properties.get("header.from") == mail.sender.domain
                for properties in found
            )
    return False


def _result(statement: str) -> tuple[str, dict[str, str]]:
    """RFC 8601: a method with its properties; its own result is under ``."""
    method, *words = re.sub(" ?= ?", "=", " ".join(statement.split())).split() or [""]
    name, _, result = method.partition("=")
    properties = {"": result.strip('"').lower()}
    for word in words:
        key, equals, value = word.partition("=")
        domain = addresses.normal_domain(value.strip('"').rpartition("@")[2]) if equals else None
        properties.setdefault(key.lower(), domain or "")
    return name.partition("/")[0].lower(), properties


def _statements(header: str) -> Iterator[str]:
    """Cut at semicolons outside of quotes, comments left out."""
    found: list[str] = []
    depth, is_quoted = 0, False
    for match in _STATEMENT_PARTS.finditer(header):
        part = match[0]
        if part == "(" and not is_quoted:
            depth += 1
        elif part == ")" and depth:
            depth -= 1
            found.append(" ")
        elif depth:
            continue
        elif part == ";" and not is_quoted:
            yield "".join(found)
            found = []
        else:
            is_quoted ^= part == '"'
            found.append(part.removeprefix("\\"))
    yield "".join(found)


# --- what a machine sent ---------------------------------------------------------------------------


def automatic_reason(mail: message.ParsedMail, own_addresses: frozenset[str]) -> str | None:
    """Why the mail is automatic: RFC 3834, lists, bounces and one's own mail; None for a person's."""
    return next(_automatic_reasons(mail, own_addresses), None)


def _automatic_reasons(mail: message.ParsedMail, own_addresses: frozenset[str]) -> Iterator[str]:
    for value in mail.values("Auto-Submitted"):
        kind = _first_word(value)
        if kind != "no":
            yield f"Auto-Submitted: {kind}"
    for value in mail.values("Precedence"):
        if (kind := _first_word(value)) in ("bulk", "junk", "list"):
            yield f"Precedence: {kind}"
    if mail.values("List-Id"):
        yield "List-Id"
    if any(value.replace(" ", "") in ("<>", "") for value in mail.values("Return-Path")):
        yield "Return-Path is null"
    for value in mail.values("X-Auto-Response-Suppress"):
        for kind in value.split(","):
            if kind.strip().lower() in ("all", "autoreply"):
                yield f"X-Auto-Response-Suppress: {kind.strip()}"
    if any(sender.email in own_addresses for sender in mail.senders):
        yield "From is the mailbox itself"
    if mail.content_type == "multipart/report":
        yield "multipart/report"
    if any(sender.email.startswith("mailer-daemon@") for sender in mail.senders):
        yield "From mailer-daemon"


def _first_word(value: str) -> str:
    """Before parameters and comments, in lower case."""
    return re.split(r"[;(\s]", value.strip(), maxsplit=1)[0].lower()
