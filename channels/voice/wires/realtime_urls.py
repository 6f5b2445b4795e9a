"""Where the Realtime server is, and how a connection to it is made."""

from urllib.parse import quote, urlencode, urlsplit, urlunsplit

DEFAULT_URL = "wss://api.openai.com/v1/realtime"


def realtime_url(base: str, model: str) -> str:
    """The URL at which a session with `model` is opened. `base` may have a query of its own."""
    return _with_query(base, "model", model)


def sideband_url(base: str, call_id: str) -> str:
    """The URL at which the session of a SIP call that was accepted is joined."""
    return _with_query(base, "call_id", call_id)


def connect_headers(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"}


def _with_query(base: str, key: str, value: str) -> str:
    url = urlsplit(base)
    added = urlencode({key: value}, quote_via=quote)
    return urlunsplit(url._replace(query=f"{url.query}&{added}" if url.query else added))
