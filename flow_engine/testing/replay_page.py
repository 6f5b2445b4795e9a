"""The report of a replay for people: lines for a terminal, and a page that needs nothing beside it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from html import escape
from typing import cast

from flow_engine.use_cases import replays

ROWS_SHOWN = 1_000
"""Of conversations that differ."""
LINES_SHOWN = 60
"""Of the difference between two prompts."""

_TILES: Mapping[str, str] = {
    "conversations": "conversations",
    "samePath": "on the same path",
    "otherPath": "on another path",
    "newRefusals": "with new refusals",
    "variablesGone": "with variables gone",
    "promptsDiffer": "with other prompts",
}


def percent(summary: replays.ReplaySummary) -> float:
    """Of the conversations that take another path, 0 to 100 %."""
    return 100.0 * summary["otherPath"] / (summary["conversations"] or 1)


def replay_lines(report: replays.ReplayReply) -> Iterator[str]:
    """What a terminal shows: the sums, each conversation that differs, what to map. Shares in percent."""
    summary = report["summary"]
    yield ", ".join(f"{count} {words}" for count, words in _counts(summary))
    yield f"{percent(summary):.4g} % take another path"
    for row in filter(_differs, report["conversations"]):
        yield f"  {row['conversationId']}: {'; '.join(_findings(row))}"
    for each in report["migrations"]:
        yield from (f"  {line}" for line in _mapping_lines(each))


def _counts(summary: replays.ReplaySummary) -> Iterator[tuple[int, str]]:
    counted = cast("Mapping[str, int]", summary)
    for key, words in _TILES.items():
        count = counted[key]
        yield count, "conversation" if (key, count) == ("conversations", 1) else words


def _differs(row: replays.ReplayRow) -> bool:
    kept = ("conversationId", "path")
    return any(value for key, value in row.items() if key not in kept)


def _findings(row: replays.ReplayRow) -> Iterator[str]:
    fork = row["firstFork"]
    if fork is not None:
        yield f"other path at {fork['seq']}: {_told(fork['recorded'])} → {_told(fork['replayed'])}"
    for refusal in row["newRefusals"]:
        yield f"refused at {refusal['seq']}: {refusal['task']} ({refusal['code']})"
    for words, found in (
        ("variables gone", row["variablesGone"]),
        ("other prompts at", row["promptsDiffer"]),
        ("checkpoints lost", row["checkpointsLost"]),
        ("not replayed", row["notReplayed"]),
        ("not reproduced on its own version", row["notReproduced"]),
    ):
        if found:
            yield f"{words}: {', '.join(map(str, found))}"


def _told(step: replays.PathStep) -> str:
    parts = (step["task"] or "nothing", step["taskStatus"], step["code"])
    active = None if step["status"] in (None, "active") else step["status"]
    return " / ".join(part for part in (*parts, active) if part)


def _mapping_lines(migration: replays.SuggestedMigration) -> Iterator[str]:
    for old, new in migration["mapping"].items():
        yield f"to migrate from {migration['fromVersionId']}, map {old} to {new}"
    if migration["unmapped"]:
        yield f"nothing is like {', '.join(migration['unmapped'])} of {migration['fromVersionId']}"


# --- the page -----------------------------------------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --dim: #5c6675; --page: #f7f8fa; --card: #fff;
  --line: #dde2ea; --bad: #b3261e; --good: #1b6e3c; --add: #e3f4e8; --cut: #fbe6e4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --dim: #9aa5b5; --page: #14181f; --card: #1d232d;
    --line: #333c4a; --bad: #ff8a80; --good: #7ddc9b; --add: #173524; --cut: #43211f; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.25rem 4rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .75rem; }
p { margin: .35rem 0; color: var(--dim); }
ul.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem;
  padding: 0; margin: 1.5rem 0 0; list-style: none; }
.tiles li, .scroll, details { background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; }
.tiles li { padding: .75rem 1rem; }
.tiles b { display: block; font-size: 1.6rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tiles span { color: var(--dim); font-size: .875rem; }
.bar { height: .5rem; margin-top: 1rem; border-radius: .25rem; background: var(--good); overflow: hidden; }
.bar i { display: block; height: 100%; background: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .5rem .75rem; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; min-width: 9rem; }
thead th { border-top: 0; color: var(--dim); font-weight: 600; white-space: nowrap; }
code, pre { font: .85em/1.5 ui-monospace, monospace; }
details { padding: .6rem 1rem; margin: .5rem 0; }
summary { cursor: pointer; }
pre { margin: .75rem 0 0; white-space: pre-wrap; overflow-wrap: anywhere; }
pre span { display: block; padding: 0 .4rem; }
.add { background: var(--add); } .cut { background: var(--cut); } .bad { color: var(--bad); }
"""


def replay_page(report: replays.ReplayReply, changes: Iterable[replays.PromptChange], version_id: str) -> str:
    """One HTML document in UTF-8 without scripts and without anything from elsewhere; every text is escaped.
    Of many conversations that differ the first 1,000 are shown."""
    return "\n".join(_page(report, changes, escape(version_id)))


def _page(
    report: replays.ReplayReply, changes: Iterable[replays.PromptChange], version: str
) -> Iterator[str]:
    summary = report["summary"]
    share = percent(summary)
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield f"<title>Replay on {version}</title>\n<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>Replay on <code>{version}</code></h1>"
    take = "conversation takes" if summary["conversations"] == 1 else "conversations take"
    yield f"<p>{share:.4g} % of {summary['conversations']} recorded {take} another path.</p>"
    tiles = (f"<li><b>{count}</b><span>{words}</span></li>" for count, words in _counts(summary))
    yield f'<ul class="tiles">{"".join(tiles)}</ul>'
    yield f'<div class="bar" role="img" aria-label="{share:.4g} % on another path">'
    yield f'<i style="width:{share:.4g}%"></i></div>'
    yield from _conversations([row for row in report["conversations"] if _differs(row)])
    ordered = sorted(changes, key=lambda change: -change.conversations)
    if ordered:
        yield "<h2>Prompts that differ, by task</h2>"
    for number, change in enumerate(ordered):
        where = f"in {change.conversations} conversation(s), first in {escape(change.conversation_id)}"
        yield f"<details{'' if number else ' open'}><summary>{escape(change.task)}: {where} at {change.seq}"
        yield f"</summary><pre>{''.join(_difference(change))}</pre></details>"
    lines = [line for each in report["migrations"] for line in _mapping_lines(each)]
    if lines:
        yield "<h2>To migrate live conversations</h2>"
        yield f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
    yield "</body>\n</html>\n"


def _conversations(rows: Sequence[replays.ReplayRow]) -> Iterator[str]:
    yield "<h2>Conversations that differ</h2>"
    if not rows:
        yield "<p>None: every one takes its path with the same prompts.</p>"
        return
    if len(rows) > ROWS_SHOWN:
        yield f"<p>The first {ROWS_SHOWN} of {len(rows)}.</p>"
    heads = ("Conversation", "First fork", "New refusals", "Variables gone", "Prompts differ at", "More")
    cells = "".join(f"<th>{head}</th>" for head in heads)
    yield f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>'
    for row in rows[:ROWS_SHOWN]:
        refusals = "<br>".join(
            f"at {each['seq']}: {escape(each['task'])} <code>{escape(each['code'])}</code>"
            for each in row["newRefusals"]
        )
        more = {
            "checkpoints lost": row["checkpointsLost"],
            "not replayed": row["notReplayed"],
            "not reproduced": row["notReproduced"],
        }
        others = "<br>".join(f"{words}: {_texts(found)}" for words, found in more.items() if found)
        gone, prompts = _texts(row["variablesGone"]), _texts(row["promptsDiffer"])
        fork, path = row["firstFork"], "same path"
        if fork is not None:
            then, now = escape(_told(fork["recorded"])), escape(_told(fork["replayed"]))
            path = f'at {fork["seq"]}: {then} <span class="bad">→ {now}</span>'
        inner = "".join(f"<td>{cell}</td>" for cell in (path, refusals, gone, prompts, others))
        yield f"<tr><td><code>{escape(row['conversationId'])}</code></td>{inner}</tr>"
    yield "</tbody></table></div>"


def _texts(found: Iterable[object]) -> str:
    return escape(", ".join(map(str, found)))


def _difference(change: replays.PromptChange) -> Iterator[str]:
    lines = unified_diff(change.recorded.splitlines(), change.replayed.splitlines(), lineterm="", n=1)
    shown = [line for line in lines if not line.startswith(("---", "+++"))]
    for line in shown[:LINES_SHOWN]:
        kind = {"+": "add", "-": "cut"}.get(line[:1], "same")
        yield f'<span class="{kind}">{escape(line)}</span>'
    if len(shown) > LINES_SHOWN:
        yield f"<span>… {len(shown) - LINES_SHOWN} more lines</span>"
