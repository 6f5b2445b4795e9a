"""Whether a tool may run: the default table, and the operator's rules over it (W2).

    [[rules]]
    decision = "allow"        # allow | prompt | forbid
    tool = "shell_exec"       # a name, or * for every tool
    command = "git status"    # for commands: the first words
    path = "docs/**"          # for files: a pattern on the path in the workspace; ** any number of folders

1. Without a matching rule: writing, deleting and commands ask, reading and searching do not.
2. A rule that matches replaces that; of several, the strictest holds.
3. `allow` matches a command line only where all of it is allowed and nothing in it can change what it means;
   a command that runs others, such as `sudo`, only by a rule whose `command` begins with it. `forbid` and
   `prompt` match where any part matches, however it is wrapped.
4. A path that is forbidden for a tool is not among its results either.
"""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from adapters.models.tools import Verdict, strictest
from channels.workspace.commands import CommandLine, read_line, runs, starts_with
from flow_engine.documents.findings import problems_of, reading_beside, told_of_file
from flow_engine.errors import CallTheOperator

ASKING: Final = frozenset(("write_file", "delete_file", "shell_exec"))
TOOLS: Final = (
    *("list_files", "read_file", "write_file", "delete_file", "search_text", "search_semantic", "shell_exec"),
)


def _command_faults(fields: Mapping[str, object]) -> Iterator[str]:
    command, tool = fields.get("command"), fields.get("tool")
    if not isinstance(command, str):
        return
    try:
        if not shlex.split(command):
            yield "command: at least one word is expected"
    except ValueError as error:
        yield f"command: {error}"
    if (tool in TOOLS and tool != "shell_exec") or fields.get("path") is not None:
        yield "command is for tool shell_exec, and stands without path"


class Rule(BaseModel):
    """One rule of the file. `path` and `command` narrow it; without them it is for every call of the tool."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decision: Verdict
    tool: Annotated[str, Field(min_length=1)] = "*"
    path: str | None = None
    command: str | None = None

    @field_validator("tool")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("*", *TOOLS):
            raise ValueError(f"accepted are *, {', '.join(TOOLS)}")
        return value

    _words = model_validator(mode="wrap")(reading_beside(_command_faults))

    @property
    def prefix(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.command or ""))

    def is_about(self, path: str | None, line: CommandLine | None) -> bool:
        if self.command is not None:
            return line is not None and runs(line, self.prefix)
        return self.path is None or (path is not None and path_matches(self.path, path))


_SUBCOMMANDS: Final = frozenset(("apt", "cargo", "docker", "git", "go", "kubectl", "make", "npm", "pip"))
"""Programs whose first argument says what they do: more arguments change less."""


def proposed_rule(tool: str, path: str | None, command: str | None) -> Rule | None:
    """What "always" would mean for a call: the directory of a file; of a command its words, `git commit` for
    `git commit -m x`. None for a command line that no rule can allow, and a path that is a pattern itself:
    the rule would be about others, too."""
    if command is None:
        folder, _, name = (path or "").rpartition("/")
        if re.search(r"[*?]", folder or name):
            return None
        return Rule(decision="allow", tool=tool, path=f"{folder}/**" if folder else name)
    line = read_line(command)
    if len(line.commands) != 1 or not (line.plain and line.parsed and line.commands[0].literal):
        return None
    program, *more = line.commands[0].words
    if line.commands[0].wraps:
        return None
    if program in _SUBCOMMANDS and more and not more[0].startswith("-"):
        del more[1:]
    return Rule(decision="allow", tool=tool, command=shlex.join((program, *more)))


def keep_rule(path: Path, rule: Rule) -> None:
    """Add a rule at the end of a TOML file, which is made where there is none. Raises CallTheOperator
    `rules_invalid` where the file could not be read with it: then it stays as it was."""
    fields = rule.model_dump(exclude_none=True)
    lines = [f"{name} = {orjson.dumps(value).decode()}" for name, value in fields.items()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text("utf-8").rstrip() + "\n\n" if path.exists() else ""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text("\n".join([f"{before}[[rules]]", *lines, ""]), "utf-8")
        try:
            read_rules(beside)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except (OSError, UnicodeError) as error:
        raise CallTheOperator("rules_invalid", f"{path}: {error}") from None


class _RulesFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """`rules` are those that decided, none where the default table did."""

    verdict: Verdict
    rules: tuple[Rule, ...]


def path_matches(pattern: str, path: str) -> bool:
    """A glob on a path with `/`: `*` and `?` stay within a directory, `**` is any number of directories, none
    included."""
    parts: list[str] = []
    for segment in pattern.strip("/").split("/"):
        if segment == "**":
            parts.append("(?:[^/]+/)*")
        else:
            text = re.escape(segment).replace(r"\*\*", "[^/]*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
            parts.append(f"{text}/")
    return re.fullmatch("".join(parts), f"{path}/") is not None or (
        pattern.endswith("/**") and path_matches(pattern + "/*", path)
    )


@dataclass(frozen=True, slots=True)
class Rules:
    """Decides by rules, else by the default table."""

    rules: tuple[Rule, ...] = ()

    def plus(self, rule: Rule) -> Rules:
        return Rules((*self.rules, rule))

    def decide(self, tool: str, *, path: str | None = None, command: str | None = None) -> Decision:
        """`path` is the resolved one, below the workspace. A command is a whole line."""
        line = None if command is None else read_line(command)
        candidates = [rule for rule in self.rules if rule.tool in ("*", tool)]
        matching = [rule for rule in candidates if rule.is_about(path, line)]
        if line is not None:
            matching = [rule for rule in matching if rule.decision != "allow" or rule.command is None]
            allowing = _allowing(candidates, line)
            if allowing and not any(rule.decision != "allow" for rule in matching):
                matching += allowing
            # A rule without a command allows any that can be read, and is none that runs others.
            readable = line.plain and line.parsed and all(c.literal and not c.wraps for c in line.commands)
            if not readable and all(rule.decision == "allow" for rule in matching):
                matching = allowing
        if not matching:
            return Decision("prompt" if tool in ASKING else "allow", ())
        verdict = strictest(rule.decision for rule in matching)
        return Decision(verdict, tuple(rule for rule in matching if rule.decision == verdict))


def _allowing(rules: Sequence[Rule], line: CommandLine) -> list[Rule]:
    """The rules that together allow every command of the line; none where one is left over."""
    if not (line.plain and line.parsed):
        return []
    allowing = [rule for rule in rules if rule.decision == "allow" and rule.command is not None]
    found: list[Rule] = []
    for command in line.commands:
        rule = next((r for r in allowing if command.literal and starts_with(command.words, r.prefix)), None)
        if rule is None:
            return []
        found.append(rule)
    return found


def said_yes(answers: Rules, tool: str, *, path: str | None, command: str | None) -> bool:
    """Whether `--yes-to` covers the call: a tool without more covers whatever it does."""
    if any(r.tool in ("*", tool) and r.path is None and r.command is None for r in answers.rules):
        return True
    decision = answers.decide(tool, path=path, command=command)
    return decision.verdict == "allow" and bool(decision.rules)


def read_rules(path: Path) -> Rules:
    """Of a TOML file; no rules where there is none. Raises CallTheOperator `rules_invalid` that names the
    file and every field that is wrong."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return Rules()
    except (OSError, UnicodeDecodeError) as error:
        raise CallTheOperator("rules_invalid", f"{path}: {error}") from None
    raw: dict[str, object] = {}
    try:
        raw = tomllib.loads(text)
        return Rules(_RulesFile.model_validate(raw).rules)
    except tomllib.TOMLDecodeError as error:
        raise CallTheOperator("rules_invalid", f"{path}: {error}") from None
    except ValidationError as error:
        raise CallTheOperator("rules_invalid", f"{path}: {told_of_file(error, _RulesFile, raw)}") from None


def answers_to(options: Sequence[str]) -> Rules:
    """What `--yes-to` answers with yes: `all`, tools, `write_file:docs/**`, `shell_exec:git commit`; several
    after commas. Raises CallTheOperator `yes_to_invalid` that names every one that is wrong."""
    rules: list[Rule] = []
    wrong: list[str] = []
    for text in (part.strip() for option in options for part in option.split(",")):
        tool, colon, rest = text.partition(":")
        if tool not in ("all", "*", *TOOLS):
            wrong.append(f"--yes-to {text!r}: accepted are all, {', '.join(TOOLS)}")
            continue
        narrowing: Mapping[str, str] = {}
        if colon:
            narrowing = {"command" if tool == "shell_exec" else "path": rest.strip()}
        try:
            rules.append(
                Rule.model_validate(
                    {"decision": "allow", "tool": "*" if tool == "all" else tool, **narrowing}
                )
            )
        except ValidationError as error:
            wrong += [f"--yes-to {text!r}: {problem.message}" for problem in problems_of(error)]
    if wrong:
        raise CallTheOperator("yes_to_invalid", "; ".join(wrong))
    return Rules(tuple(rules))
