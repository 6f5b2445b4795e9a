"""Who is calling: API keys with a tenant and scopes (F43)."""

from __future__ import annotations

import hashlib
from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache, partial
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, cast, get_args, overload

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from flow_engine.documents.findings import reading_beside, told_of_file
from flow_engine.errors import CallTheOperator, CorrectTheInput, pointer

Scope = Literal["designer", "agent", "tools", "chat", "gateway", "workspace", "operator", "privacy", "admin"]
ALL_SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
LOCAL_TENANT = "default"
Headers = Iterable[tuple[bytes, bytes]]
"""Of a request, as ASGI has them: names in lower case, values in Latin-1."""
_LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))


@overload
def header(headers: Headers, name: bytes) -> str | None: ...
@overload
def header(headers: Headers, name: bytes, default: str) -> str: ...
def header(headers: Headers, name: bytes, default: str | None = None) -> str | None:
    """The first header of that name."""
    for known, value in headers:
        if known == name:
            return value.decode("latin-1")
    return default


@dataclass(frozen=True, slots=True)
class Principal:
    """`admin` may do whatever the other scopes may."""

    tenant_id: str
    scopes: frozenset[Scope]
    name: str

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or "admin" in self.scopes


LOCAL = Principal(LOCAL_TENANT, ALL_SCOPES, "local")
ANYONE = Principal("", frozenset(), "anyone")


SHORTEST_KEY = 16
"""Characters of an API key, blanks around it not counted."""

_NO_KEY = hashlib.sha256(b"").hexdigest()


def _long_enough(key: str) -> str:
    if len(key.strip()) < SHORTEST_KEY:
        raise ValueError(f"a key has at least {SHORTEST_KEY} characters that are no blanks around it")
    if key != key.strip():
        raise ValueError("a key has no blanks around it: they are lost in a header")
    return key


def _of_a_key(digest: str) -> str:
    if digest.lower() == _NO_KEY:
        raise ValueError("this is the SHA-256 of an empty text")
    return digest


def _secret_faults(fields: Mapping[str, object]) -> Iterator[str]:
    if (fields.get("key") is None) == (fields.get("sha256") is None):
        yield "give either 'key' or 'sha256'"


class _KeyEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    key: Annotated[str, AfterValidator(_long_enough)] | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$"), AfterValidator(_of_a_key)] | None = None
    tenant: Annotated[str, Field(min_length=1)]
    scopes: tuple[Scope, ...]
    name: str = "key"

    _one_secret = model_validator(mode="wrap")(reading_beside(_secret_faults))

    @property
    def digest(self) -> str:
        return _digest(self.key, self.sha256)


def _digest(key: str | None, sha256: str | None) -> str:
    return (sha256 or hashlib.sha256((key or "").encode()).hexdigest()).lower()


def _keys_twice(fields: Mapping[str, object]) -> Iterator[str]:
    """The same key twice would be that of the later entry's tenant."""
    first: dict[str, int] = {}
    entries = fields.get("keys")
    twice: list[str] = []
    for here, entry in enumerate(cast("list[object]", entries) if isinstance(entries, list) else ()):
        given = cast("dict[str, object]", entry) if isinstance(entry, dict) else {}
        secrets = {name: text for name in ("key", "sha256") if isinstance(text := given.get(name), str)}
        if not secrets:
            continue
        there = first.setdefault(_digest(secrets.get("key"), secrets.get("sha256")), here)
        if there != here:
            twice.append(f"{pointer('keys', here)} has the key of {pointer('keys', there)}")
    if twice:
        yield ", ".join(twice)


class _KeysFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    keys: tuple[_KeyEntry, ...]

    _each_key_once = model_validator(mode="wrap")(reading_beside(_keys_twice))


class Keyring:
    """Keys by their SHA-256: the keys themselves are not kept, and a look-up leaks no timing of them. In 64
    hexadecimal digits, of the key in UTF-8."""

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        self._principals = dict(principals)

    @classmethod
    def parse(cls, text: bytes, named: str = "the file of API keys") -> Keyring:
        """Read `{"keys": [{"key" | "sha256", "tenant", "scopes"}]}`. Raises CallTheOperator, which tells of
        it as `named`. `sha256` in 64 hexadecimal digits, keys of at least 16 characters. A byte order mark,
        as editors on Windows write it, says nothing."""
        try:
            entries = _KeysFile.model_validate_json(text.removeprefix(BOM_UTF8)).keys
        except ValidationError as error:
            told = told_of_file(error, _KeysFile, None)
            raise CallTheOperator("api_keys_unreadable", f"{named} is not valid: {told}") from None
        return cls({e.digest: Principal(e.tenant, frozenset(e.scopes), e.name) for e in entries})

    def tenants(self) -> frozenset[str]:
        return frozenset(principal.tenant_id for principal in self._principals.values())

    def authenticate(self, headers: Headers) -> Principal:
        scheme, _, presented = header(headers, b"authorization", "").partition(" ")
        key = presented.strip(" \t").encode("latin-1")  # the bytes as they came: a header has no encoding
        if scheme.lower() != "bearer" or not key:
            raise CorrectTheInput("key_missing", "send 'Authorization: Bearer <key>'")
        principal = self._principals.get(hashlib.sha256(key).hexdigest())
        if principal is None:
            raise CorrectTheInput("key_unknown", "this API key is not known here")
        return principal


class LocalOnly:
    """Without keys everybody on this machine may do everything, but only through a local name.

    A web page that lets its own name point to 127.0.0.1 is kept out by that, and one that calls this
    service from the browser of this machine by its `Origin`, unless it is one of `origins`: URLs without a
    path; None for a service that reads no setting of them. `host` is where it listens, which is local too.
    """

    def __init__(self, origins: Collection[str] | None = None, host: str = "localhost") -> None:
        names = _LOCAL_NAMES | {f"[{host}]" if ":" in host else host}
        self._is_local = lru_cache(maxsize=16)(partial(_is_local, names))
        self._origins = frozenset(origins or ())
        self._more = "" if origins is None else " and of the origins in FLOW_ENGINE_CORS_ORIGINS"

    def tenants(self) -> frozenset[str]:
        return frozenset((LOCAL_TENANT,))

    def authenticate(self, headers: Headers) -> Principal:
        if not self._is_local(header(headers, b"host", "")):
            raise CorrectTheInput(
                "host_not_local", "without API keys this service answers to 'localhost' and '127.0.0.1' only"
            )
        origin = header(headers, b"origin")
        if origin is None or origin in self._origins or self._is_local(origin.partition("://")[2]):
            return LOCAL
        raise CorrectTheInput(
            "origin_not_local",
            f"without API keys this service takes calls from pages of this machine{self._more} only",
        )


Authenticator = Keyring | LocalOnly


def authenticator_for(keys: Path | None, host: str, origins: Collection[str] | None = None) -> Authenticator:
    """Of a file of keys, in JSON; without one whoever is on this machine, and pages of `origins`. Raises
    CallTheOperator `keys_required`: without keys the service stays on this machine (F43);
    `api_keys_unreadable` for a file that is not valid."""
    if keys is not None:
        named = f"the file of API keys {keys}"
        try:
            return Keyring.parse(keys.read_bytes(), named)
        except OSError as error:
            raise CallTheOperator("api_keys_unreadable", f"{named}: {error.strerror}") from None
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise CallTheOperator(
            "keys_required",
            f"to listen on {host} set FLOW_ENGINE_API_KEYS_FILE; without keys only loopback is served",
        )
    return LocalOnly(origins, host)


_BY_PROXIES = (b"forwarded", b"via", b"x-real-ip")
_BEGUN_BY_PROXIES = (b"x-forwarded-", *_BY_PROXIES)


def proxy_header(headers: Headers) -> bytes | None:
    """The name of a header that a proxy adds; None where the request has none."""
    for name, _ in headers:
        if name.startswith(_BEGUN_BY_PROXIES) and (name in _BY_PROXIES or name.startswith(b"x-forwarded-")):
            return name
    return None


def refuse_proxied(headers: Headers) -> None:
    """For a service without keys, which a proxy on this machine would make public, whatever its `Host`.

    Raises CorrectTheInput `proxied_without_keys` for headers that a proxy has added to.
    """
    found = proxy_header(headers)
    if found is not None:
        raise CorrectTheInput(
            "proxied_without_keys",
            "without API keys this service answers nothing that comes through a proxy, as by its header "
            f"{found.decode('latin-1')!r}; set FLOW_ENGINE_API_KEYS_FILE to serve others",
        )


def require(principal: Principal, scopes: Sequence[Scope]) -> None:
    """Any one of `scopes` is enough. Raises CorrectTheInput `scope_missing`."""
    if principal.scopes.isdisjoint(scopes) and "admin" not in principal.scopes:
        raise CorrectTheInput(
            "scope_missing", f"this needs a key with one of the scopes: {', '.join(scopes)}"
        )


def _is_local(names: Set[str], authority: str) -> bool:
    name = authority if authority.endswith("]") else authority.rpartition(":")[0] or authority
    return name.lower() in names
