"""What is accepted as the address of a Redis."""

import re
from typing import Final
from urllib.parse import urlsplit

_SCHEMES: Final = ("redis", "rediss")
_DATABASE = re.compile(r"(/[0-9]*)?\Z")


def checked_redis_url(url: str) -> str:
    """The URL itself. Raises ValueError, which names no part of it: a password may be anywhere in it."""
    try:
        parts = urlsplit(url)
        known = parts.path if parts.scheme == "unix" else parts.scheme in _SCHEMES and parts.hostname
        known = known and parts.port != 0
    except ValueError:  # of the host's brackets or the port
        known = False
    if not known:
        raise ValueError("accepted is redis:// or rediss:// with host:port, or unix:// with a path")
    if not url.startswith("unix:") and not _DATABASE.match(urlsplit(url).path):
        raise ValueError("accepted after the host is nothing, or / and the number of a database")
    return url
