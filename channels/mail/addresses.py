"""Mail addresses: how a header that lists them is read, and when two of them are the same (M4).

1. A display name never counts. Where an entry has an address in angle brackets, that is its address and
   everything before it is the name, whatever stands in it.
2. Two addresses are the same in any case of letters, and a domain is the same in Unicode and in ASCII (IDNA).
3. What is no address stays in the list, without one: a From that cannot be read is not a From with fewer
   addresses. Reading takes time in proportion to the length of the header.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

MOST_ADDRESSES = 2_000
"""Of one header; the rest is not read."""

_LOCAL = r"(?:[^\s@<>()\[\],;:\\\"\x00-\x1f\x7f]+|\"[^\"\\\x00-\x1f\x7f]{1,62}\")"
_DOMAIN = r"[^\s@<>()\[\],;:\\\"\x00-\x20\x7f.]+(?:\.[^\s@<>()\[\],;:\\\"\x00-\x20\x7f.]+)*"
_ADDRESS = re.compile(rf"({_LOCAL})@({_DOMAIN})\.?")
_LONGEST = 320
_SEPARATORS = {",", ";"}


@dataclass(frozen=True, slots=True)
class Address:
    """One entry of an address list. `email` is in its normal form, empty for an entry that has none;
    `name` is as it was written, encoded words and all."""

    name: str
    email: str

    @property
    def domain(self) -> str:
        """After the last @, empty without an address."""
        return domain_of(self.email)


def normal_address(text: str) -> str | None:
    """The address in lower case with its domain in ASCII; None for what is no single address, or has more
    than 320 characters."""
    found = _ADDRESS.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if found is None:
        return None
    domain = normal_domain(found[2])
    return None if domain is None else f"{found[1].lower()}@{domain}"


def ascii_address(text: str) -> str | None:
    """As `normal_address`, and None for one whose local part is not ASCII, which no header can carry."""
    found = normal_address(text)
    return found if found is not None and found.isascii() else None


def normal_domain(text: str) -> str | None:
    """The domain in lower-case ASCII; None for what is none, or has more than 253 characters."""
    domain = text.strip().rstrip(".").lower()
    if not domain or len(domain) > 253 or not re.fullmatch(_DOMAIN, domain):
        return None
    if domain.isascii():
        return domain
    try:
        return domain.encode("idna").decode("ascii").lower()
    except UnicodeError:
        return None


def domain_of(email: str) -> str:
    return email.rpartition("@")[2]


def read_addresses(header: str) -> tuple[Address, ...]:
    """The entries of one header, those of its groups included; at most `MOST_ADDRESSES`."""
    found: list[Address] = []
    for entry in _entries(header):
        if len(found) == MOST_ADDRESSES:
            break
        found.append(entry)
    return tuple(found)


def _entries(header: str) -> Iterator[Address]:
    """Cut at the commas that are in no quotes, comments and angle brackets; a `name:` opens a group."""
    name: list[str] = []
    angle: list[str] | None = None
    closed: str | None = None
    comments, is_quoted, is_escaped = 0, False, False
    for character in header:
        target = name if angle is None else angle
        if is_escaped:
            is_escaped = False
            if not comments:
                target.append(character)
        elif character == "\\" and (is_quoted or comments):
            is_escaped = True
        elif character == '"' and not comments:
            is_quoted = not is_quoted
            target.append(character)
        elif is_quoted:
            target.append(character)
        elif character == "(":
            comments += 1
        elif character == ")" and comments:
            comments -= 1
        elif comments:
            continue
        elif angle is None and character == "<":
            angle = []
        elif angle is not None and character == ">":
            closed, angle = "".join(angle) if closed is None else "", None
        elif angle is None and character in _SEPARATORS:
            yield from _entry("".join(name), closed)
            name, closed = [], None
        elif angle is None and character == ":":
            name = []
        else:
            target.append(character)
    yield from _entry("".join(name), closed if angle is None else "".join(angle))


def _entry(name: str, angle: str | None) -> Iterator[Address]:
    written = name.strip()
    if angle is not None:
        is_quoted = len(written) >= 2 and written[0] == written[-1] == '"'
        yield Address(written[1:-1] if is_quoted else written, normal_address(angle.rpartition(":")[2]) or "")
    elif written:
        yield Address("", normal_address(written) or "")
