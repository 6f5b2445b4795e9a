"""M4: every condition on many mails, forged ones too. A row is a condition, a mail, and the verdict."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from channels.mail.routing import judge
from tests.channels.mail.mails import SERVER, config, dmarc, mail, rule

A = "anna@customer.example"
AR = "Authentication_Results"
CUSTOMER = "header.from=customer.example"
FORWARD = {"forwarded_from": "info@leku.example"}
PASS = dmarc()
LEKU = dmarc("leku.example")

# (match, mail's body and headers, matched)
CONDITIONS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"all": True}, {}, True),
    ({"all": True}, {"From": "a@x.example, b@x.example"}, False),
    ({"all": True}, {"From": None}, False),
    ({"all": True}, {"From": "nobody"}, False),
    ({"all": True}, {"From": ["a@x.example", "b@x.example"]}, False),
    ({"all": True}, {"From": ""}, False),
    ({"all": True}, {"From": "<>"}, False),
    ({"all": True}, {"Subject": None}, True),
    ({"all": True}, {"From": "team: a@x.example, b@x.example;"}, False),
    ({"all": True}, {"From": "team: a@x.example;"}, True),
    # sender_email
    ({"sender_email": A}, {}, True),
    ({"sender_email": A.upper()}, {}, True),
    ({"sender_email": A}, {"From": "ANNA@Customer.Example"}, True),
    ({"sender_email": A}, {"From": f"{A} <eve@evil.example>"}, False),
    ({"sender_email": A}, {"From": f'"{A}" <eve@evil.example>'}, False),
    ({"sender_email": A}, {"From": f"eve@evil.example ({A})"}, False),
    ({"sender_email": A}, {"From": f"=?utf-8?q?{A.replace('@', '=40')}?= <eve@evil.example>"}, False),
    ({"sender_email": A}, {"From": "x" + A}, False),
    ({"sender_email": A}, {"From": A + ".evil.example"}, False),
    ({"sender_email": A}, {"From": f"{A}@evil.example"}, False),
    ({"sender_email": A}, {"From": f"eve@evil.example, {A}"}, False),
    ({"sender_email": A}, {"From": f"{A}, {A}"}, False),
    ({"sender_email": A}, {"Sender": "eve@evil.example"}, True),
    ({"sender_email": "eve@evil.example"}, {"Sender": "eve@evil.example"}, False),
    ({"sender_email": A}, {"Reply_To": "eve@evil.example"}, True),
    ({"sender_email": "anna+x@customer.example"}, {}, False),
    ({"sender_email": A}, {"From": f"Anna\r\n <{A}>"}, True),
    ({"sender_email": A}, {"From": f"<{A}>"}, True),
    ({"sender_email": A}, {"From": f"Anna <{A}> (work)"}, True),
    ({"sender_email": A}, {"From": f"Anna <{A}"}, True),
    ({"sender_email": A}, {"From": f'"Smith, Anna" <{A}>'}, True),
    ({"sender_email": "anna@münchen.example"}, {"From": "anna@xn--mnchen-3ya.example"}, True),
    ({"sender_email": "anna@xn--mnchen-3ya.example"}, {"From": "anna@MÜNCHEN.example"}, True),
    # sender_domain
    ({"sender_domain": "customer.example"}, {}, True),
    ({"sender_domain": "CUSTOMER.example"}, {}, True),
    ({"sender_domain": "customer.example"}, {"From": "a@mail.customer.example"}, False),
    ({"sender_domain": "customer.example"}, {"From": "a@customer.example.evil.com"}, False),
    ({"sender_domain": "customer.example"}, {"From": "a@evilcustomer.example"}, False),
    ({"sender_domain": "customer.example"}, {"From": "customer.example@evil.example"}, False),
    ({"sender_domain": "customer.example"}, {"From": "a@customer.example <a@evil.example>"}, False),
    ({"sender_domain": "customer.example"}, {"From": "a@customer.example."}, True),
    ({"sender_domain": "customer.example"}, {"From": '"x@evil.example" <a@customer.example>'}, True),
    ({"sender_domain": "example"}, {}, False),
    # subject_contains
    ({"subject_contains": "question"}, {}, True),
    ({"subject_contains": "QUESTION"}, {}, True),
    ({"subject_contains": "a q"}, {}, True),
    ({"subject_contains": "answer"}, {}, False),
    ({"subject_contains": "question"}, {"Subject": None}, False),
    ({"subject_contains": "léky"}, {"Subject": "=?utf-8?q?L=C3=89KY?="}, True),
    ({"subject_contains": "léky"}, {"Subject": "leky"}, False),
    ({"subject_contains": "leky"}, {"Subject": "léky"}, False),
    ({"subject_contains": "léky"}, {"Subject": "=?iso-8859-2?q?l=E9ky?="}, True),
    ({"subject_contains": "léky"}, {"Subject": "=?utf-8?b?bMOpa3k=?="}, True),
    ({"subject_contains": "žluťoučký"}, {"Subject": "=?utf-8?b?xb5sdcWl?= =?utf-8?b?b3XEjWvDvQ==?="}, True),
    ({"subject_contains": "two words"}, {"Subject": "one two\r\n words"}, True),
    ({"subject_contains": "STRASSE"}, {"Subject": "Straße"}, True),
    ({"subject_contains": "léky"}, {"Subject": "le\u0301ky"}, True),
    ({"subject_contains": "léky"}, {"Subject": "=?utf-8?x?broken?="}, False),
    ({"subject_contains": "hello"}, {"body": "hello"}, False),
    # header_match
    ({"header_match": {"X-Site": "shop"}}, {"X_Site": "my shop"}, True),
    ({"header_match": {"X-Site": "^shop$"}}, {"X_Site": "my shop"}, False),
    ({"header_match": {"x-site": "shop"}}, {"X_SITE": "shop"}, True),
    ({"header_match": {"X-Site": "SHOP"}}, {"X_Site": "shop"}, False),
    ({"header_match": {"X-Site": "(?i)SHOP"}}, {"X_Site": "shop"}, True),
    ({"header_match": {"X-Site": ".*"}}, {}, False),
    ({"header_match": {"X-Site": ""}}, {"X_Site": "x"}, None),
    ({"header_match": {"X-Site": "two"}}, {"X_Site": ["one", "two"]}, True),
    ({"header_match": {"X-Site": "a", "X-Two": "b"}}, {"X_Site": "a"}, False),
    ({"header_match": {"X-Site": "a", "X-Two": "b"}}, {"X_Site": "a", "X_Two": "b"}, True),
    ({"header_match": {"X-Site": "é"}}, {"X_Site": "=?utf-8?q?caf=C3=A9?="}, True),
    ({"header_match": {"X-Site": "a b"}}, {"X_Site": "a\r\n b"}, True),
    ({"header_match": {"X-Site": "(a+)+$"}}, {"X_Site": "a" * 20_000 + "!"}, False),
    ({"header_match": {"Subject": "^A q"}}, {}, True),
    ({"header_match": {"To": "pharmacy"}}, {}, True),
    # forwarded_from
    (FORWARD, {}, False),
    (FORWARD, {"X_Forwarded_From": "info@leku.example"}, True),
    (FORWARD, {"X_Forwarded_From": "INFO@Leku.Example"}, True),
    (FORWARD, {"X_Forwarded_From": "x@y.example, Leku <info@leku.example>"}, True),
    (FORWARD, {"X_Forwarded_From": '"info@leku.example" <eve@evil.example>'}, False),
    (FORWARD, {"Reply_To": "info@leku.example"}, True),
    (FORWARD, {"Reply_To": "other@y.example, info@leku.example"}, True),
    (FORWARD, {"Reply_To": "info@leku.example.evil.com"}, False),
    (FORWARD, {"body": "From: info@leku.example"}, True),
    (FORWARD, {"body": "<info@leku.example>"}, True),
    (FORWARD, {"body": "> wrote info@LEKU.example."}, True),
    (FORWARD, {"body": "mailto:info@leku.example, thanks"}, True),
    (FORWARD, {"body": "(info@leku.example)"}, True),
    (FORWARD, {"body": "**info@leku.example**"}, True),
    (FORWARD, {"body": "xinfo@leku.example"}, False),
    (FORWARD, {"body": "an.info@leku.example"}, False),
    (FORWARD, {"body": "info@leku.example.evil.com"}, False),
    (FORWARD, {"body": "info@leku.example-evil.com"}, False),
    (FORWARD, {"body": "info@leku.example@evil.com"}, False),
    (FORWARD, {"body": "eve@info@leku.example"}, False),
    (FORWARD, {"body": "info+x@leku.example"}, False),
    (FORWARD, {"body": "info @ leku.example"}, False),
    (FORWARD, {"body": "<p>info@leku.<b>example</b></p>", "Content_Type": "text/html"}, True),
    (FORWARD, {"body": "<!-- info@leku.example --><p>x", "Content_Type": "text/html"}, False),
    (FORWARD, {"body": "<a href='mailto:info@leku.example'>x</a>", "Content_Type": "text/html"}, False),
    (FORWARD, {"From": "info@leku.example"}, True),
    (FORWARD, {"From": '"info@leku.example" <eve@evil.example>'}, False),
    (FORWARD, {"Sender": "info@leku.example"}, False),
    (FORWARD, {"Subject": "info@leku.example"}, False),
    (FORWARD, {"To": "info@leku.example"}, False),
    (FORWARD, {"From": "info@leku.example, b@x.example"}, False),
    # several conditions
    ({"all": True, "sender_email": A}, {}, True),
    ({"all": True, "sender_email": A}, {"From": "eve@evil.example"}, False),
    ({"sender_domain": "customer.example", "subject_contains": "question"}, {}, True),
    ({"sender_domain": "customer.example", "subject_contains": "answer"}, {}, False),
    ({**FORWARD, "sender_email": A}, {"Reply_To": "info@leku.example"}, True),
    ({**FORWARD, "sender_email": "b@x.example"}, {"Reply_To": "info@leku.example"}, False),
]


@pytest.mark.parametrize(("match", "fields", "matched"), CONDITIONS)
def test_a_condition_holds_or_not_and_says_why(
    match: dict[str, Any], fields: dict[str, Any], matched: bool | None
) -> None:
    if matched is None:  # refused at the load
        with pytest.raises(ValueError, match="RE2"):
            config([rule(match)])
        return
    settings = config([rule(match)])
    verdict = judge(settings, settings.every_mailbox[0], mail(**fields))
    assert verdict.verdicts[0].matched is matched  # M4
    assert verdict.verdicts[0].why
    assert (verdict.rule, verdict.route) == (("r1", "agent") if matched else (None, "pipeline"))  # M2


# (match, mail's headers, trust, sends)
TRUST: list[tuple[dict[str, Any], dict[str, Any], bool, bool]] = [
    ({"all": True}, {}, False, False),
    ({"subject_contains": "question"}, {}, False, False),
    ({"sender_email": A}, {}, False, False),
    ({"all": True}, {AR: PASS}, True, True),
    ({"sender_email": A}, {AR: PASS}, True, True),
    ({"all": True}, {AR: PASS.upper()}, True, True),
    ({"all": True}, {AR: f"{SERVER} 1; dmarc=pass {CUSTOMER}"}, True, True),
    ({"all": True}, {AR: f"{SERVER} (x; y);\r\n dmarc=pass (p=none) {CUSTOMER}"}, True, True),
    ({"all": True}, {AR: f'"{SERVER}"; dmarc=pass header.from="customer.example"'}, True, True),
    ({"all": True}, {AR: dmarc(server="mx.evil.example")}, False, False),
    ({"all": True}, {AR: dmarc(server=f"{SERVER}.evil.example")}, False, False),
    ({"all": True}, {AR: f"=?utf-8?q?{dmarc().replace(' ', '_')}?="}, False, False),
    ({"all": True}, {AR: f"=?utf-8?b?{b64encode(PASS.encode()).decode()}?="}, False, False),
    ({"all": True}, {AR: f"{SERVER}; =?utf-8?q?dmarc=3Dpass?= {CUSTOMER}"}, False, False),
    ({"all": True}, {AR: dmarc("evil.example")}, False, False),
    ({"all": True}, {AR: dmarc("mail.customer.example")}, False, False),
    ({"all": True}, {AR: dmarc(result="fail")}, False, False),
    ({"all": True}, {AR: dmarc(result="none")}, False, False),
    ({"all": True}, {AR: f"{SERVER}; none"}, False, False),
    ({"all": True}, {AR: f"{SERVER}; spf=pass; dkim=pass header.d=customer.example"}, False, False),
    ({"all": True}, {AR: f"{SERVER}; (dmarc=pass {CUSTOMER})"}, False, False),
    ({"all": True}, {AR: f'{SERVER}; x=y reason="dmarc=pass {CUSTOMER}"'}, False, False),
    ({"all": True}, {AR: [dmarc(result="fail"), PASS]}, False, False),
    ({"all": True}, {AR: [PASS, dmarc(result="fail")]}, True, True),
    ({"all": True}, {AR: [dmarc(server="mx.other.example", result="fail"), PASS]}, True, True),
    ({"all": True}, {"ARC_Authentication_Results": f"i=1; {PASS}"}, False, False),
    ({"all": True}, {AR: PASS, "From": "a@customer.example, b@x.example"}, False, True),
    (FORWARD, {AR: PASS, "Reply_To": "info@leku.example"}, True, False),
    (FORWARD, {AR: PASS, "X_Forwarded_From": "info@leku.example"}, True, False),
    (FORWARD, {AR: PASS, "body": "info@leku.example"}, True, False),
    (FORWARD, {AR: LEKU, "From": "info@leku.example"}, True, True),
    (FORWARD, {AR: LEKU, "From": "b@leku.example", "body": "info@leku.example"}, True, True),
    (FORWARD, {"From": "info@leku.example"}, False, False),
    ({**FORWARD, "sender_email": A}, {AR: PASS, "Reply_To": "info@leku.example"}, True, True),
    ({**FORWARD, "sender_domain": "customer.example"}, {AR: PASS, "body": "info@leku.example"}, True, True),
    ({**FORWARD, "subject_contains": "question"}, {AR: PASS, "body": "info@leku.example"}, True, False),
]


@pytest.mark.parametrize(("match", "fields", "authenticated", "sends"), TRUST)
def test_sending_needs_a_sender_who_is_who_he_says(
    match: dict[str, Any], fields: dict[str, Any], authenticated: bool, sends: bool
) -> None:
    settings = config([rule(match)])
    message = mail(**fields)
    found = judge(settings, settings.every_mailbox[0], message)
    assert (found.is_authenticated, found.sends) == (authenticated, sends)  # M4
    unguarded = config([rule(match, trust="any")])
    assert judge(unguarded, unguarded.every_mailbox[0], message).sends


SIGNALS = [
    ({"X_Forwarded_From": "info@leku.example", "Reply_To": "info@leku.example"}, "x-forwarded-from"),
    ({"Reply_To": "info@leku.example", "body": "info@leku.example"}, "reply-to"),
    ({"From": "info@leku.example", "body": "info@leku.example"}, "body"),
    ({"From": "info@leku.example"}, "sender"),
]


@pytest.mark.parametrize(("fields", "signal"), SIGNALS)
def test_the_first_signal_that_holds_is_named(fields: dict[str, Any], signal: str) -> None:
    settings = config([rule(FORWARD)])
    assert judge(settings, settings.every_mailbox[0], mail(**fields)).verdicts[0].signal == signal  # M4


def test_the_first_rule_wins_and_every_rule_is_judged() -> None:
    rules = [
        rule({"sender_email": "b@x.example"}),
        {"name": "r2", "match": {"all": True}, "route": "pipeline"},
        rule({"all": True}, name="r3"),
    ]
    settings = config(rules)
    found = judge(settings, settings.every_mailbox[0], mail())
    assert (found.rule, found.route, found.profile) == ("r2", "pipeline", None)  # M1, M2
    assert [(each.name, each.matched) for each in found.verdicts] == [
        ("r1", False),
        ("r2", True),
        ("r3", True),
    ]


def test_the_default_route_needs_no_trust() -> None:
    settings = config()
    assert judge(settings, settings.every_mailbox[0], mail()).sends


AUTOMATIC: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"Auto_Submitted": "no"}, False),
    ({"Auto_Submitted": "No (person)"}, False),
    ({"Auto_Submitted": "auto-replied"}, True),
    ({"Auto_Submitted": "auto-generated; owner=x"}, True),
    ({"Precedence": "bulk"}, True),
    ({"Precedence": "Junk"}, True),
    ({"Precedence": "list"}, True),
    ({"Precedence": "first-class"}, False),
    ({"List_Id": "<l.example>"}, True),
    ({"Return_Path": "<>"}, True),
    ({"Return_Path": "<anna@customer.example>"}, False),
    ({"X_Auto_Response_Suppress": "All"}, True),
    ({"X_Auto_Response_Suppress": "DR, AutoReply"}, True),
    ({"X_Auto_Response_Suppress": "OOF"}, False),
    ({"From": "Info <INFO@pharmacy.example>"}, True),
    ({"From": "info@pharmacy.example, b@x.example"}, True),
    ({"From": "MAILER-DAEMON@mx.example"}, True),
    ({"Content_Type": "multipart/report; boundary=x"}, True),
    ({"List_Unsubscribe": "<https://x.example>"}, False),
]


@pytest.mark.parametrize(("fields", "automatic"), AUTOMATIC)
def test_mail_of_machines_is_told_apart(fields: dict[str, Any], automatic: bool) -> None:
    settings = config([rule({"all": True})])
    found = judge(settings, settings.every_mailbox[0], mail(**fields))
    assert (found.automatic is not None) is automatic  # M15


def test_the_table_is_long_enough() -> None:
    assert len(CONDITIONS) + len(TRUST) >= 120
