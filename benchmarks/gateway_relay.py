"""The least that a gateway on httpx can be: what comes goes on, and what comes back goes back.

It reads no JSON, asks for no key, counts nothing and knows one backend. What it costs is the floor that the
gateway is measured against.

    python -m benchmarks.gateway_relay --port 8095 --backend http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import gc
from typing import Any

import httpx
import uvicorn


def relay(backend: str) -> Any:
    client = httpx.AsyncClient(timeout=60, trust_env=False)
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        async with client.stream("POST", backend + scope["path"], content=body, headers=headers) as reply:
            kept = [
                (name, value) for name, value in reply.headers.raw if name.lower().startswith(b"content-")
            ]
            await send({"type": "http.response.start", "status": reply.status_code, "headers": kept})
            async for piece in reply.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--backend", required=True)
    options = parser.parse_args()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    uvicorn.run(
        relay(options.backend),
        port=options.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
    )


if __name__ == "__main__":
    main()
