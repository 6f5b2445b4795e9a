"""What every channel that is reached by HTTP knows of a request: who sends it, and its bounded body."""

import asyncio
from typing import Protocol

from starlette.requests import ClientDisconnect, Request

from flow_engine.errors import CorrectTheInput


class Principal(Protocol):
    """Who calls. `name` is the key's, or `local`; a key of scope `admin` may do everything."""

    @property
    def tenant_id(self) -> str: ...
    @property
    def name(self) -> str: ...


async def whole_body(request: Request, *, most_bytes: int, within_s: float) -> bytes:
    """The whole body. Raises CorrectTheInput `too_large` as soon as it has more than `most_bytes`, `too_slow`
    when it is not whole within `within_s` seconds, `json_invalid` for one that ends early."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(within_s):
            async for part in request.stream():
                size += len(part)
                if size > most_bytes:
                    raise CorrectTheInput("too_large", f"a body has at most {most_bytes} bytes")
                parts.append(part)
    except TimeoutError:
        raise CorrectTheInput("too_slow", f"a body comes within {within_s:g} s") from None
    except ClientDisconnect:
        raise CorrectTheInput("json_invalid", "the body ended before it was whole") from None
    return b"".join(parts)
