"""The rules about where outbound calls may go, without a network."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.outbound.policy import AllowList, Target, parse_target, redirect_target
from flow_engine.errors import CorrectTheInput
from flow_engine.ports.outbound import OutboundRefused

NOTHING = AllowList()

UNREADABLE = [
    "",
    "example.com/no-scheme",
    "//example.com/",
    "http:///no-host",
    "http:example.com",
    "file:///etc/passwd",
    "gopher://example.com/",
    "ftp://example.com/",
    "unix:///var/run/docker.sock",
    "javascript:alert(1)",
    "http://example.com/\ud800",
    "http://\udfff.example.com/",
    "http://user@example.com/",
    "http://user:secret@example.com/",
    "http://example.com@127.0.0.1/",
    "http://example.com:80@127.0.0.1/",
    "http://example.com\\@127.0.0.1/",
    "http://127.0.0.1\\.example.com/",
    "http://127.1/",
    "http://127.0.1/",
    "http://2130706433/",
    "http://017700000001/",
    "http://0177.0.0.1/",
    "http://0x7f000001/",
    "http://0x7f.0.0.1/",
    "http://0x7f.1/",
    "http://127.0.0.0x1/",
    "http://1.1.1.1.1/",
    "http://256.256.256.256/",
    "http://%31%32%37.0.0.1/",
    "http://127.0.0.1%2eexample.com/",
    "http://127.0.0.1%00.example.com/",
    "http://[::1%25lo]/",
    "http://[fe80::1%25eth0]/",
    "http://[2606:4700::1%25eth0]/",
    "http://[127.0.0.1]/",
    "http://[::1/",
    "http://①②⑦.⓪.⓪.①/",
    "http://ⓛocalhost/",
    "http://example.com:0/",
    "http://example.com:65536/",
    "http://example.com:99999/",
    "http://example.com:-80/",
    "http://example.com:80:80/",
    "http://example.com:a/",
    "http://example.com../",
    "http://.example.com/",
    "http://exa mple.com/",
    "http://example.com\t.evil.test/",
    "http://example.com\r\nHost: evil.test/",
    "http://exa*mple.com/",
    "http://-example.com/",
    f"http://{'a' * 64}.com/",
    f"http://{'a.' * 130}com/",
    f"http://example.com/{'a' * 70_000}",
]


@pytest.mark.parametrize("url", UNREADABLE)
def test_a_url_with_more_than_one_reading_is_refused_before_anything_is_resolved(url: str) -> None:  # F45
    with pytest.raises(OutboundRefused):
        parse_target(url)


FORBIDDEN_LITERALS = [
    "http://127.0.0.1/",
    "http://127.255.255.254/",
    "http://127.0.0.1./",
    "http://127。0。0。1/",
    "http://0.0.0.0/",
    "http://0.1.2.3/",
    "http://10.0.0.1/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.1.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://169.254.170.2/",
    "http://100.64.0.1/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://192.0.0.192/",
    "http://198.18.0.1/",
    "http://203.0.113.9/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://240.0.0.1/",
    "http://[::]/",
    "http://[::1]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::127.0.0.1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::ffff:169.254.169.254]/",
    "http://[64:ff9b::127.0.0.1]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b:1::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[2001:0:7f00:1::]/",
    "http://[2001:db8::1]/",
    "http://[fe80::1]/",
    "http://[fec0::1]/",
    "http://[fc00::1]/",
    "http://[fd00:ec2::254]/",
    "http://[ff02::1]/",
]


@pytest.mark.parametrize("url", FORBIDDEN_LITERALS)
def test_an_address_that_is_not_public_is_refused(url: str) -> None:  # F45
    target = parse_target(url)
    with pytest.raises(OutboundRefused):
        NOTHING.decide(target.host, target.port, [target.host])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.com", Target("http", "example.com", 80, b"/")),
        ("HTTPS://EXAMPLE.com./a?b=c#d", Target("https", "example.com", 443, b"/a?b=c")),
        ("http://straße.de:8080/ü", Target("http", "xn--strae-oqa.de", 8080, b"/%C3%BC")),
        ("http://_dmarc.my-host_1.internal/", Target("http", "_dmarc.my-host_1.internal", 80, b"/")),
        ("http://[2606:4700:0::1111]:81/", Target("http", "2606:4700::1111", 81, b"/")),
        ("http://[::ffff:8.8.8.8]/", Target("http", "8.8.8.8", 80, b"/")),
        ("http://localhost./", Target("http", "localhost", 80, b"/")),
    ],
)
def test_a_readable_url_has_one_spelling(url: str, expected: Target) -> None:  # F45
    assert parse_target(url) == expected


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://example.com:80/", "example.com"),
        ("https://example.com:80/", "example.com:80"),
        ("https://[2606:4700::1111]/", "[2606:4700::1111]"),
        ("https://[2606:4700::1111]:8443/", "[2606:4700::1111]:8443"),
    ],
)
def test_the_host_header_names_the_port_only_when_it_is_not_the_default(url: str, authority: str) -> None:
    assert parse_target(url).authority == authority  # F45


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::8.8.8.8"])
def test_public_addresses_are_accepted(address: str) -> None:  # F45
    assert [IPv6Address(a) if ":" in a else IPv4Address(a) for a in NOTHING.decide("h", 80, [address])] == [
        ip_address(address)
    ]


@pytest.mark.parametrize("addresses", [["8.8.8.8", "10.0.0.1"], ["::1", "8.8.8.8"], ["8.8.8.8", "nonsense"]])
def test_one_forbidden_address_refuses_the_whole_name(addresses: list[str]) -> None:  # F45
    with pytest.raises(OutboundRefused):
        NOTHING.decide("mixed.example", 80, addresses)


def test_a_refusal_names_the_setting_but_not_the_inner_address() -> None:  # F45
    with pytest.raises(OutboundRefused, match="FLOW_ENGINE_OUTBOUND_ALLOW") as refused:
        NOTHING.decide("crm.example", 80, ["10.1.2.3"])
    assert "10.1.2.3" not in str(refused.value)


@given(st.ip_addresses())
def test_whatever_is_accepted_is_a_global_unicast_address(address: IPv4Address | IPv6Address) -> None:  # F45
    try:
        NOTHING.decide("h", 80, [str(address)])
    except OutboundRefused:
        return
    judged = (isinstance(address, IPv6Address) and address.ipv4_mapped) or address
    assert judged.is_global
    assert not judged.is_multicast


@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:0:0", "64:ff9b::"]))
def test_an_ipv4_address_inside_an_ipv6_address_is_judged_as_itself(v4: IPv4Address, prefix: str) -> None:
    embedded = str(IPv6Address(int(IPv6Address(prefix)) | int(v4)))  # F45

    def accepted(address: str) -> bool:
        try:
            return bool(NOTHING.decide("h", 80, [address]))
        except OutboundRefused:
            return False

    assert accepted(embedded) == accepted(str(v4))


ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=60)


@given(ANY_TEXT, st.sampled_from(["", "http://", "https://[", "http://a@", "http://127."]))
def test_any_text_is_read_or_refused(text: str, prefix: str) -> None:  # F45
    try:
        target = parse_target(prefix + text)
    except OutboundRefused:
        return
    assert parse_target(f"{target.scheme}://{target.authority}{target.path.decode()}") == target


class TestAllowList:
    @pytest.mark.parametrize(
        ("entries", "host", "port", "address"),
        [
            ("crm.internal", "crm.internal", 8080, "10.0.0.5"),
            ("CRM.internal.", "crm.internal", 80, "10.0.0.5"),
            ("crm.internal:8080", "crm.internal", 8080, "10.0.0.5"),
            ("straße.de", "xn--strae-oqa.de", 80, "10.0.0.5"),
            ("localhost:8080", "localhost", 8080, "::1"),
            ("127.0.0.1:8080", "127.0.0.1", 8080, "127.0.0.1"),
            ("127.0.0.1", "any.example", 1, "127.0.0.1"),
            ("10.0.0.0/8", "any.example", 80, "10.255.0.1"),
            ("10.0.0.0/8", "any.example", 80, "::ffff:10.255.0.1"),
            ("::ffff:10.0.0.1", "any.example", 80, "10.0.0.1"),
            ("fd00::/8", "any.example", 80, "fd12::1"),
            ("::1", "::1", 80, "::1"),
            ("[::1]", "::1", 80, "::1"),
            ("[::1]:8080", "::1", 8080, "::1"),
            (" a.example , ,10.0.0.0/8, ", "b.example", 80, "10.0.0.1"),
        ],
    )
    def test_lets_its_entries_through(self, entries: str, host: str, port: int, address: str) -> None:  # F45
        assert AllowList.parse(entries).decide(host, port, [address])

    @pytest.mark.parametrize(
        ("entries", "host", "port", "address"),
        [
            ("", "127.0.0.1", 80, "127.0.0.1"),
            ("crm.internal:8080", "crm.internal", 8081, "10.0.0.5"),
            ("crm.internal", "evil.crm.internal", 80, "10.0.0.5"),
            ("crm.internal", "crm.internal.evil.example", 80, "10.0.0.5"),
            ("127.0.0.1:8080", "127.0.0.1", 8081, "127.0.0.1"),
            ("[::1]:8080", "::1", 8081, "::1"),
            ("10.0.0.0/8", "any.example", 80, "11.0.0.1, 172.16.0.1"),
            ("10.0.0.0/8", "any.example", 80, "64:ff9b::10.0.0.1"),
            ("127.0.0.1", "::1", 80, "::1"),
        ],
    )
    def test_lets_nothing_else_through(self, entries: str, host: str, port: int, address: str) -> None:  # F45
        with pytest.raises(OutboundRefused):
            AllowList.parse(entries).decide(host, port, address.split(", "))

    def test_reports_every_bad_entry_with_its_index(self) -> None:  # F45
        bad = [
            "*",
            ".example.com",
            "http://a.example",
            "10.1.2.3/8",
            "10.0.0.0/33",
            "a:0",
            "a:65536",
            "a:b",
            "127.1",
            "0x7f.0.0.1",
            "[::1",
            "[1.2.3.4]x",
            "[fe80::1%25eth0]",
            "fe80::1%eth0",
            "user@a.example",
            "a b",
        ]
        with pytest.raises(CorrectTheInput) as refused:
            AllowList.parse("good.example," + ",".join(bad))
        assert [finding.pointer for finding in refused.value.findings] == [
            f"/{index}" for index in range(1, len(bad) + 1)
        ]
        assert all(
            entry in finding.message for entry, finding in zip(bad, refused.value.findings, strict=True)
        )

    @given(ANY_TEXT)
    def test_is_read_or_refused_whatever_the_text(self, text: str) -> None:  # F45
        try:
            AllowList.parse(text)
        except CorrectTheInput:
            return


class TestRedirectTarget:
    HERE = Target("https", "a.example", 8443, b"/deep/path?q=1")

    @pytest.mark.parametrize(
        ("location", "expected"),
        [
            (b"/x", Target("https", "a.example", 8443, b"/x")),
            (b"y?z", Target("https", "a.example", 8443, b"/deep/y?z")),
            (b"//b.example/x", Target("https", "b.example", 443, b"/x")),
            (b"https://b.example:1/x", Target("https", "b.example", 1, b"/x")),
        ],
    )
    def test_is_read_relative_to_where_the_answer_came_from(self, location: bytes, expected: Target) -> None:
        assert redirect_target(self.HERE, location) == expected  # F45

    @pytest.mark.parametrize(
        "location",
        [
            b"http://a.example:8443/",
            b"file:///etc/passwd",
            b"//user:pw@b.example/",
            b"https://127.1/",
            b"https://b.example:99999/",
            b"https://b.example/\x00",
            b"https://a..b/",
        ],
    )
    def test_is_refused_by_the_rules_of_a_first_url(self, location: bytes) -> None:  # F45
        with pytest.raises(OutboundRefused):
            redirect_target(self.HERE, location)
