"""`python -m benchmarks.console`: how fast the built console is in a real Chromium; see --help.

    first load     bytes of gzip that the first page asks for
    usable         from the address to a page that can be used, on a throttled line
    drawing        from the click on a version of 300 tasks to all of them drawn
    dragging       frames a second while one of these tasks is dragged
    scrolling      frames a second while a list of 10,000 conversations is scrolled

Ends with 1 when a goal is missed, 2 where Chromium, redis-server or a build of the console is missing. The
goals hold on a quiet machine; Chromium draws without a graphics card here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import CDPSession, Page

from api.console import BUILT
from tests.browser.console import CHROMIUM, Console, call, opened_console
from tests.browser.test_console_flows import large_flow
from tests.browser.test_console_operators import MANY, many_conversations
from tests.ports import free_port
from tests.redis_fixture import RedisServer

TASKS = 300
ROUNDS = 5
MOVES_S = 2.0
"""Seconds of dragging or scrolling that are measured."""
EVENT_MS = 8
SLOW_4G = {"latency": 150, "downloadThroughput": 1.6e6 / 8, "uploadThroughput": 750e3 / 8}
"""Lighthouse's mobile profile: 150 ms a request, 1.6 Mbit/s down, 750 kbit/s up (bytes a second)."""

_FRAMES = """async (seconds) => {
    const times = [];
    const began = performance.now();
    while (performance.now() - began < seconds * 1000) times.push(await new Promise(requestAnimationFrame));
    return (times.length - 1) / ((times.at(-1) - times[0]) / 1000);
}"""
"""Frames a second, in the page."""


_IN_SIGHT = """() => {
    for (const node of document.querySelectorAll(".react-flow__node")) {
        const {x, y, width, height} = node.getBoundingClientRect();
        const middle = [x + width / 2, y + height / 2];
        if (node.contains(document.elementFromPoint(...middle))) return [node.dataset.id, ...middle];
    }
}"""
"""The first task whose middle nothing covers, and that middle in pixels of the window."""


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` is the median of `values`. `goal`: at most, or at least, that."""

    name: str
    unit: str
    goal: float
    better: Literal["less", "more"]
    value: float
    values: Sequence[float]

    @property
    def met(self) -> bool:
        return self.value <= self.goal if self.better == "less" else self.value >= self.goal

    def line(self) -> str:
        sign, mark = ("≤" if self.better == "less" else "≥"), ("" if self.met else "   MISSED")
        spread = f"{min(self.values):,.0f} … {max(self.values):,.0f}"
        return f"{self.name:<34}{self.value:>10,.0f} {self.unit:<9}{sign} {self.goal:,.0f}  ({spread}){mark}"


def figure(name: str, unit: str, goal: float, better: Literal["less", "more"], *values: float) -> Figure:
    return Figure(name, unit, goal, better, statistics.median(values), values)


def first_load(console: Console) -> Figure:
    """Of every answer up to the first page's drawing, as it came over the line."""
    page, loaded = console.page, list[int]()

    def noted(event: dict[str, Any]) -> None:
        loaded.append(int(event["encodedDataLength"]))

    line = page.context.new_cdp_session(page)
    line.send("Network.enable")
    line.on("Network.loadingFinished", noted)
    console.open()
    page.get_by_role("button", name="Create a flow").wait_for()
    page.wait_for_load_state("networkidle")
    line.detach()
    return figure("first load", "KB", 350, "less", sum(loaded) / 1024)


def usable(console: Console, rounds: int) -> Figure:
    """By the browser's own clock, nothing in its cache: from the navigation to the first frame with a button
    that can be pressed."""
    found: list[float] = []
    browser = console.page.context.browser
    assert browser is not None
    for _ in range(rounds):
        context = browser.new_context(locale="en-GB")
        page = context.new_page()
        line = context.new_cdp_session(page)
        line.send("Network.enable")
        line.send("Network.emulateNetworkConditions", {"offline": False, **SLOW_4G})
        page.add_init_script(
            """window.usable = new Promise((found) => new MutationObserver((_, observer) => {
                if (!document.querySelector("main button:not([disabled])")) return;
                observer.disconnect();
                requestAnimationFrame(() => setTimeout(() => found(performance.now())));
            }).observe(document, {childList: true, subtree: true}));"""
        )
        page.goto(f"{console.base}/console", wait_until="commit")
        found.append(page.evaluate("window.usable"))
        context.close()
    return figure("usable on a slow line (1.6 Mbit/s)", "ms", 1500, "less", *found)


def drawn(console: Console, rounds: int) -> tuple[Figure, Figure]:
    page = console.page
    flow = call(console.base, "POST", "/v1/flows", {"name": "Large", "campaignId": "c", "updatedBy": "ada"})
    path = f"/v1/flows/{flow['id']}/versions"
    version = call(console.base, "POST", path, large_flow(TASKS))["versionId"]
    drawings: list[float] = []
    for _ in range(rounds):
        console.open(f"/flows/{flow['id']}")
        page.get_by_role("link", name=version[:8]).wait_for()
        page.wait_for_load_state("networkidle")
        drawings.append(
            page.evaluate(
                """async (tasks) => {
                    const began = performance.now();
                    document.querySelector("td a").click();
                    while (document.querySelectorAll(".task-node").length < tasks)
                        await new Promise(requestAnimationFrame);
                    await new Promise(requestAnimationFrame);
                    return performance.now() - began;
                }""",
                TASKS,
            )
        )
    page.wait_for_timeout(3_000)  # until ELK has found better places
    task, x, y = page.evaluate(_IN_SIGHT)
    place = page.locator(f'.react-flow__node[data-id="{task}"]')
    before = place.get_attribute("style")
    page.mouse.move(x, y)
    page.mouse.down()
    rates = [_while_moving(page, x + 40, y + 40, "mouseMoved") for _ in range(rounds)]
    page.mouse.up()
    if place.get_attribute("style") == before:
        raise RuntimeError(f"{task} was dragged and has not moved")
    return (
        figure(f"{TASKS} tasks, drawn", "ms", 1000, "less", *drawings),
        figure(f"{TASKS} tasks, dragging one", "frames/s", 50, "more", *rates),
    )


def scrolled(console: Console, rounds: int) -> Figure:
    page = console.page
    console.open("/conversations")
    page.get_by_text("200 loaded, more below").wait_for()
    for _ in range(600):
        if page.get_by_text(f"{MANY:,} conversations").count():
            break
        page.evaluate("document.querySelector('.conversation-list').scrollTo(0, 1e9)")
        page.wait_for_timeout(50)
    page.get_by_text(f"{MANY:,} conversations").wait_for()
    page.evaluate("document.querySelector('.conversation-list').scrollTo(0, 0)")
    box = page.locator(".conversation-list").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + min(box["height"], 300) / 2
    rates = [_while_moving(page, x, y, "mouseWheel") for _ in range(rounds)]
    return figure(f"{MANY:,} conversations, scrolling", "frames/s", 50, "more", *rates)


def _while_moving(page: Page, x: float, y: float, kind: Literal["mouseMoved", "mouseWheel"]) -> float:
    """Frames a second while the pointer does that, as fast as a mouse tells."""
    line: CDPSession = page.context.new_cdp_session(page)
    measuring = page.evaluate_handle(f"seconds => ({{done: ({_FRAMES})(seconds)}})", MOVES_S)
    ends, step = time.monotonic() + MOVES_S, 0
    while time.monotonic() < ends:
        step += 1
        event: dict[str, Any] = {"type": kind, "x": x, "y": y}
        if kind == "mouseMoved":
            event |= {"x": x + 60 * ((step % 40) / 40), "button": "left", "buttons": 1}
        else:
            event |= {"deltaX": 0, "deltaY": 400}
        line.send("Input.dispatchMouseEvent", event)
        page.wait_for_timeout(EVENT_MS)
    found = page.evaluate("m => m.done", measuring)
    line.detach()
    return float(found)


def measure(rounds: int) -> Sequence[Figure]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        (Path(folder) / "redis").mkdir()
        redis = RedisServer(Path(folder) / "redis", free_port())
        stack.callback(redis.stop)
        stores = {"FLOW_ENGINE_REDIS_URL": redis.url, "FLOW_ENGINE_REDIS_UNSAFE": "true"}
        with opened_console(Path(folder) / "data", **stores) as console:
            console.page.set_default_timeout(120_000)
            figures = [first_load(console), usable(console, rounds), *drawn(console, rounds)]
            many_conversations(redis, console.base)
            return [*figures, scrolled(console, rounds)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.console", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each measurement; the median counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    if not CHROMIUM or not (BUILT / "index.html").is_file():
        print("chromium or a build of the console (`make console`) is missing", file=sys.stderr)
        return 2
    figures = measure(options.rounds)
    print("\n".join(each.line() for each in figures))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(each) for each in figures], indent=2), "utf-8")
    return 0 if all(each.met for each in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
