"""What stands around the engine's client in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx2

from channels.engine_client.client import EngineClient
from tests.api.harness import BASE_URL, Scene


@dataclass
class Pauses:
    """Counts instead of waiting."""

    seconds: list[float] = field(default_factory=list[float])

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@dataclass
class ScriptedAnswers:
    """A transport that gives these answers in order, the last one again and again; errors are raised."""

    answers: Sequence[httpx2.Response | Exception]
    requests: list[httpx2.Request] = field(default_factory=list[httpx2.Request])

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)


def client_with(*answers: httpx2.Response | Exception) -> tuple[EngineClient, ScriptedAnswers, Pauses]:
    script, pauses = ScriptedAnswers(answers), Pauses()
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(script), base_url=BASE_URL)
    return EngineClient(http, pause=pauses), script, pauses


class Loses(httpx2.AsyncBaseTransport):
    """The scene's own transport, but `lost` says of which requests the answer never arrives."""

    def __init__(self, scene: Scene, lost: Callable[[httpx2.Request], bool]) -> None:
        self._inner = httpx2.ASGITransport(app=scene.app)
        self._lost = lost

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._inner.handle_async_request(request)
        if self._lost(request):
            raise httpx2.ReadTimeout("lost", request=request)
        return answer


def client_of(scene: Scene, lost: Callable[[httpx2.Request], bool] | None = None) -> EngineClient:
    """To the real engine in process."""
    transport = Loses(scene, lost or (lambda request: False))
    return EngineClient(httpx2.AsyncClient(transport=transport, base_url=BASE_URL), pause=Pauses())
