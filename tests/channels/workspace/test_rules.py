"""The operator's rules, and how a command line is read for them (W2)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from channels.workspace.rules import (
    Rule,
    Rules,
    answers_to,
    keep_rule,
    path_matches,
    proposed_rule,
    read_rules,
    said_yes,
)
from flow_engine.errors import CallTheOperator
from tests.channels.workspace.workspace_world import opened


def rules(*made: Mapping[str, Any]) -> Rules:
    return Rules(tuple(Rule.model_validate(each) for each in made))


ALLOWING = rules(
    {"decision": "allow", "tool": "shell_exec", "command": "git status"},
    {"decision": "allow", "tool": "shell_exec", "command": "ls"},
)


@pytest.mark.parametrize(
    "line",
    [
        *(
            "git status",
            "git status -s",
            "git  status",
            '"git" status',
            "ls && git status",
            "ls; ls",
            "ls | ls",
        ),
        *(
            "(ls)",
            "{ ls; }",
            "! ls",
            "ls &",
            "ls\ngit status",
            "for i in a b; do ls; done",
            "ls # x",
            "ls *.py",
        ),
        *("if ls; then ls; else ls; fi", "while ls; do ls; done", "git status 2>&1", "ls || ls", "ls |& ls"),
    ],
)
def test_a_line_is_allowed_where_every_part_is(line: str) -> None:  # W2
    assert ALLOWING.decide("shell_exec", command=line).verdict == "allow"


@pytest.mark.parametrize(
    "line",
    [
        *(
            "git",
            "git statusx",
            "git push",
            "echo git status",
            "ls; rm x",
            "ls && rm x",
            "ls | sh",
            "ls & rm x",
        ),
        *("git status > x", "ls >> x", "ls < x", "ls &> x", "ls 2> x", "ls <<< x", "ls << E\nx\nE"),
        *(
            "git status $(id)",
            "git status `id`",
            "ls $HOME",
            "ls ${x}",
            "ls $((1+1))",
            "ls <(id)",
            'ls "$(id)"',
        ),
        *(
            "A=1 git status",
            "A=1",
            "env git status",
            "sudo ls",
            "xargs ls",
            "timeout 1 ls",
            "nohup ls",
            "nice ls",
        ),
        *(
            "time ls",
            "command ls",
            "exec ls",
            "eval ls",
            "sh -c ls",
            "f() { rm x; }; ls",
            "ls '",
            "ls (",
            "g?t status",
        ),
        *("./ls", "/bin/ls", "ls\0", "", "   ", "# only a comment", "ls\nrm x", "if ls; then rm x; fi"),
        *(
            "case x in x) ls;; esac",
            "[[ -f x ]] && ls",
            "export A=1",
            "function ls { rm x; }; ls",
            "ls $'\\x41'",
        ),
    ],
)
def test_a_line_with_anything_else_in_it_asks(line: str) -> None:  # W2
    assert ALLOWING.decide("shell_exec", command=line).verdict == "prompt"


@pytest.mark.parametrize(
    "line",
    [
        *("ls \r#;rm x", "ls \v#|rm x", "ls\f#&rm x", "ls \\ #;rm x", "ls \\\t#;rm x", "ls [ }#;rm x"),
        *("ls a\n\\\nrm x", "ls a\\\n#;rm x", "ls \\\n# x", "# x \\\nrm x"),
        *("for PATH in x; do ls; done", "for HOME in x; do ls; done", "for http_proxy in x; do ls; done"),
    ],
)
def test_what_the_shell_reads_otherwise_is_not_allowed(line: str) -> None:  # W2
    assert ALLOWING.decide("shell_exec", command=line).verdict == "prompt"


@pytest.mark.parametrize("line", ["ls\n# x\nls # y", "ls;# x", "# x;\nls", "ls '# x'", "ls a#b", "ls \\#"])
def test_comments_and_what_looks_like_one_do_no_harm(line: str) -> None:  # W2
    assert ALLOWING.decide("shell_exec", command=line).verdict == "allow"


FORBIDDING = rules(
    {"decision": "forbid", "tool": "shell_exec", "command": "git push"},
    {"decision": "allow", "tool": "shell_exec", "command": "git"},
)


@pytest.mark.parametrize(
    "line",
    [
        *(
            "git push",
            "git push origin main",
            "ls; git push",
            "ls && git push",
            "ls || git push",
            "ls | git push",
        ),
        *(
            "git status & git push",
            "(git push)",
            "{ git push; }",
            "! git push",
            "f() { git push; }",
            "> x git push",
        ),
        *("if a; then git push; fi", "for i in 1; do git push; done", "while a; do git push; done"),
        *(
            "$(git push)",
            "`git push`",
            'echo "$(git push)"',
            "cat <(git push)",
            "A=$(git push)",
            "A=1 git push",
        ),
        *("env git push", "env -i A=1 git push", "sudo git push", "sudo -u ann git push", "xargs git push"),
        *("timeout 5 git push", "nohup git push", "nice -n 5 git push", "time git push", "command git push"),
        *("exec git push", "eval git push", "eval 'git push'", "sh -c 'git push'", 'bash -lc "ls; git push"'),
        *(
            "sudo sh -c 'git push'",
            "sh -c \"sh -c 'git push'\"",
            "/usr/bin/git push",
            "../git push",
            "'git' push",
        ),
        *(
            'g"i"t push',
            "git pu's'h",
            "\\git push",
            "$'git' push",
            "git \\\npush",
            "git push '",
            "sh -c git\\ push",
        ),
        *(
            "find . -exec git push \\;",
            "export A=$(git push)",
            "case x in x) git push;; esac",
            "git push > x 2>&1",
        ),
        *(
            "cat <<E\n`git push`\nE",
            "cat <<-E\n\ta `ls` b\n\t`\ngit push`\nE",
            "cat << E\n$(echo '`') `git push`\nE",
            "cat <<E\n\\\\`git push`\nE",
            "cat <<E\n`echo \\`git push\\``\nE",
            "cat <<'A' <<B\nA\n`git push`\nB",
            "cat <<\\\nE\n`git push`\nE",
            "cat <<E\n`git push`",
        ),
        *("git \r#;git push", "git \\ #;git push", "git a\n\\\ngit push", "# x \\\ngit push"),
    ],
)
def test_what_is_forbidden_is_found_wherever_it_hides(line: str) -> None:  # W2
    assert FORBIDDING.decide("shell_exec", command=line).verdict == "forbid"


@pytest.mark.parametrize(
    "line",
    [
        *(
            "prlimit --nofile=9 git push",
            "setpriv --nnp git push",
            "setarch x86_64 git push",
            "linux64 git push",
        ),
        *("systemd-run --user git push", "sg users 'git push'", "fakeroot git push", "numactl -C 0 git push"),
        *(
            "ssh-agent git push",
            "mapfile -c 1 -C 'git push' <<< x",
            "compgen -C 'git push'",
            "choom -n 0 git push",
        ),
    ],
)
def test_programs_that_run_others_hide_nothing_and_are_not_allowed_by_a_rule_for_all(line: str) -> None:  # W2
    made = rules(
        {"decision": "allow", "tool": "shell_exec"},
        {"decision": "forbid", "tool": "shell_exec", "command": "git push"},
    )
    assert made.decide("shell_exec", command=line).verdict == "forbid"
    harmless = line.replace("git push", "true")
    assert made.decide("shell_exec", command=harmless).verdict == "prompt"


@pytest.mark.parametrize(
    "line",
    [
        *("git -C . push", "git -C sub push origin", "git -c a.b=c push", "git --git-dir=x push"),
        *("git --git-dir x push", "git --no-pager push", "git -C . -c a=b --no-pager push --force"),
        *("sudo git -C . push", "env A=1 git -C . push", "nohup git -C . push", "time git -C . push"),
        *("bash -c 'git -C . push'", "/usr/bin/git -C . push", "A=1 git -C '.' push", "$(git -C . push)"),
        *("timeout -s KILL 5 git -C . push", "xargs -n 1 git -C . push", "sh -lc 'cd x && git -C . push'"),
    ],
)
def test_options_between_the_words_hide_nothing(line: str) -> None:  # W2
    assert FORBIDDING.decide("shell_exec", command=line).verdict == "forbid"


def test_options_stand_between_any_words() -> None:  # W2
    made = rules({"decision": "forbid", "tool": "shell_exec", "command": "docker compose down"})
    for line in (
        "docker compose down",
        "docker --debug compose -f x.yml down -v",
        "docker compose -f x down",
    ):
        assert made.decide("shell_exec", command=line).verdict == "forbid", line
    for line in ("docker compose up", "docker compose logs down", "docker down compose"):
        assert made.decide("shell_exec", command=line).verdict == "prompt", line
    assert ALLOWING.decide("shell_exec", command="git -C . status").verdict == "prompt", "to allow is literal"
    endless = "git " + "-x " * 2_000 + "status"
    assert FORBIDDING.decide("shell_exec", command=endless).verdict == "allow"


@pytest.mark.parametrize(
    ("tool", "path", "command", "expected"),
    [
        ("write_file", "docs/a/b.md", None, {"path": "docs/a/**"}),
        ("write_file", "docs/a*.md", None, {"path": "docs/**"}),
        ("delete_file", "a.md", None, {"path": "a.md"}),
        ("shell_exec", None, "git commit -m 'a b'", {"command": "git commit"}),
        ("shell_exec", None, "pytest -q tests", {"command": "pytest -q tests"}),
        ("shell_exec", None, "git -C . push", {"command": "git -C . push"}),
        ("shell_exec", None, "python -c 'print(1)'", {"command": "python -c 'print(1)'"}),
    ],
)
def test_what_always_would_mean(
    tool: str, path: str | None, command: str | None, expected: Mapping[str, str]
) -> None:  # W2
    proposed = proposed_rule(tool, path, command)
    assert proposed == Rule.model_validate({"decision": "allow", "tool": tool, **expected})
    assert Rules((proposed,)).decide(tool, path=path, command=command).verdict == "allow"


@pytest.mark.parametrize("path", ["*/a.md", "**/a.md", "docs/v?/a.md", "*.md"])
def test_a_path_that_is_a_pattern_has_no_always(path: str) -> None:  # W2
    assert proposed_rule("write_file", path, None) is None


@pytest.mark.parametrize(
    "command",
    [
        "ls; rm x",
        "ls > x",
        "echo $HOME",
        "A=1 ls",
        "sudo ls",
        "bash -c ls",
        "time ls",
        "ls '",
        "",
        "l? x",
        "ls | sh",
    ],
)
def test_what_cannot_be_allowed_is_not_proposed(command: str) -> None:  # W2
    assert proposed_rule("shell_exec", None, command) is None


def test_a_rule_is_added_to_the_file_and_what_was_there_stays(tmp_path: Path) -> None:  # W2
    path = tmp_path / "home" / "rules.toml"
    first = Rule(decision="allow", tool="write_file", path='do"cs/**')
    keep_rule(path, first)
    assert read_rules(path).rules == (first,)
    path.write_text("# mine\n" + path.read_text("utf-8"), "utf-8")
    second = Rule(decision="allow", tool="shell_exec", command="git commit")
    keep_rule(path, second)
    assert read_rules(path).rules == (first, second)
    assert path.read_text("utf-8").startswith("# mine\n[[rules]]\n")
    path.write_text("[[rules", "utf-8")
    with pytest.raises(CallTheOperator, match="rules_invalid"):
        keep_rule(path, second)
    assert path.read_text("utf-8") == "[[rules"
    assert [each.name for each in path.parent.iterdir()] == ["rules.toml"]


@pytest.mark.anyio
async def test_always_holds_for_what_it_was_proposed_for(tmp_path: Path) -> None:  # W2
    with opened(tmp_path) as world:
        world.person.answer = lambda _: "always"
        for path in ("docs/a.md", "docs/b.md", "docs/c/d.md"):
            assert (await world.call("write_file", path=path, content="x"))["success"]
        assert len(world.person.asked) == 1
        await world.call("write_file", path="src/a.py", content="x")
        await world.call("delete_file", path="docs/a.md")
        assert len(world.person.asked) == 3, "another place, another tool"
        for command in ("git --version", "git --version"):
            assert (await world.call("shell_exec", command=command))["success"]
        assert len(world.person.asked) == 4
        await world.call("shell_exec", command="git --version; true")
        assert (len(world.person.asked), world.person.asked[-1].always) == (5, None)


@pytest.mark.anyio
async def test_always_is_not_offered_below_a_stricter_rule(tmp_path: Path) -> None:  # W2
    with opened(tmp_path, {"decision": "prompt", "tool": "write_file", "path": "docs/**"}) as world:
        await world.call("write_file", path="docs/a.md", content="x")
        await world.call("write_file", path="src/a.py", content="x")
        assert [each.always is None for each in world.person.asked] == [True, False]


@pytest.mark.parametrize(
    "line",
    [
        *("echo git push", "echo 'git push'", "git status", "git pushx", "grep 'git push' x", "ls git push"),
        *("cat <<'E'\n`git push`\nE", "cat <<\\E\n`git push`\nE", "cat <<E\n\\`git push\\`\nE"),
    ],
)
def test_a_text_is_no_command(line: str) -> None:  # W2
    assert FORBIDDING.decide("shell_exec", command=line).verdict != "forbid"


@pytest.mark.parametrize(
    "line",
    [
        *(
            "sudo ls",
            "/usr/bin/sudo ls",
            "env A=1 ls",
            "A=1 ls",
            "sh -c ls",
            "eval ls",
            "xargs ls",
            "'sudo' ls",
        ),
        *("timeout 5 ls", "ls; nohup ls", "ls && (exec ls)", "sud? ls", "{sudo,ls}", "find . -exec ls \\;"),
    ],
)
def test_a_rule_for_all_commands_allows_none_that_runs_others(line: str) -> None:  # W2
    every = rules({"decision": "allow", "tool": "shell_exec"})
    assert every.decide("shell_exec", command="ls -l; git push").verdict == "allow"
    assert every.decide("shell_exec", command=line).verdict == "prompt"
    named = every.plus(Rule(decision="allow", tool="shell_exec", command="sudo ls"))
    assert named.decide("shell_exec", command="sudo ls").verdict == "allow"


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("docs/**", "docs/a.md", True),
        ("docs/**", "docs/a/b.md", True),
        ("docs/**", "docsx/a.md", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "x/y/a.py", True),
        ("*.py", "x/a.py", False),
        ("src/*", "src/a", True),
        ("src/*", "src/a/b", False),
        ("src/**/x", "src/x", True),
        ("src/**/x", "src/a/b/x", True),
        ("**", "any/thing", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("a.c", "abc", False),
    ],
)
def test_patterns_of_paths(pattern: str, path: str, matches: bool) -> None:  # W2
    assert path_matches(pattern, path) == matches


def test_the_strictest_rule_holds_and_a_rule_replaces_the_table() -> None:  # W2
    table = Rules()
    asked = {"write_file", "delete_file", "shell_exec"}
    for tool in ("list_files", "read_file", "write_file", "delete_file", "search_text", "shell_exec"):
        command = "ls" if tool == "shell_exec" else None
        assert (table.decide(tool, path="a", command=command).verdict == "prompt") == (tool in asked)
    over = rules(
        {"decision": "allow", "tool": "write_file"},
        {"decision": "prompt", "tool": "*", "path": "docs/**"},
        {"decision": "forbid", "tool": "write_file", "path": "docs/x/*"},
        {"decision": "forbid", "tool": "read_file", "path": "**/.env"},
    )
    assert over.decide("write_file", path="a").verdict == "allow"
    assert over.decide("write_file", path="docs/a").verdict == "prompt"
    assert over.decide("read_file", path="docs/a").verdict == "prompt"
    assert over.decide("write_file", path="docs/x/a").verdict == "forbid"
    assert over.decide("read_file", path="x/.env").verdict == "forbid"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[rules", "r.toml"),
        ('[[rules]]\ndecision = "maybe"', "/rules/0/decision"),
        ('[[rules]]\ndecision = "allow"\ncolour = "x"', "/rules/0/colour is no property here; accepted are"),
        ('[[rules]]\ntool = "x"\ndecision = "allow"', "/rules/0/tool"),
        ('[[rules]]\ndecision = "allow"\ncommand = "a \'b"', "/rules/0"),
        ("[rule]\na = 1", "/rule"),
    ],
)
def test_a_file_that_cannot_be_meant_names_the_place(text: str, named: str, tmp_path: Path) -> None:  # W2
    (tmp_path / "r.toml").write_text(text, "utf-8")
    with pytest.raises(CallTheOperator, match="rules_invalid") as refused:
        read_rules(tmp_path / "r.toml")
    assert named in refused.value.detail
    assert read_rules(tmp_path / "none.toml") == Rules()


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (
            'decision = "alow"\ncommand = "git \'x"',
            ["/rules/0/decision must be", "/rules/0 command: No closing"],
        ),
        ('decision = "alow"\ncommand = " "', ["/rules/0/decision", "/rules/0 command: at least one word"]),
        (
            'decision = "allow"\ntool = "read_file"\ncommand = "ls"\ncolour = "x"',
            ["/rules/0/colour is no property here", "/rules/0 command is for tool shell_exec"],
        ),
        (
            'decision = "allow"\ncommand = "git \'x"\npath = "a"',
            ["/rules/0 command: No closing", "/rules/0 command is for tool shell_exec"],
        ),
        ('decision = "allow"\ntool = "x"\ncommand = "ls"', ["/rules/0/tool accepted are"]),
    ],
)
def test_all_that_is_wrong_in_a_rule_is_told_at_once(
    rule: str, told: list[str], tmp_path: Path
) -> None:  # W2
    (tmp_path / "r.toml").write_text(f"[[rules]]\n{rule}\n", "utf-8")
    with pytest.raises(CallTheOperator, match="rules_invalid") as refused:
        read_rules(tmp_path / "r.toml")
    assert all(each in refused.value.detail for each in told), refused.value.detail
    assert refused.value.detail.count("/rules/0") == len(told)


def test_yes_to_names_every_answer_that_is_wrong() -> None:  # W2
    with pytest.raises(CallTheOperator, match="yes_to_invalid") as refused:
        answers_to(["foo,write_file,bar", "shell_exec:git 'x"])
    assert [each.split(":")[0] for each in refused.value.detail.split("; ")] == [
        *("--yes-to 'foo'", "--yes-to 'bar'", '--yes-to "shell_exec'),
    ]
    assert "accepted are all, list_files, " in refused.value.detail, (
        "as --help has it, not as a file of rules"
    )


def test_yes_to_answers_what_would_be_asked() -> None:  # W2
    answers = answers_to(["write_file:docs/**, shell_exec:git commit", "delete_file"])
    assert said_yes(answers, "write_file", path="docs/a", command=None)
    assert not said_yes(answers, "write_file", path="a", command=None)
    assert said_yes(answers, "delete_file", path="a", command=None)
    assert said_yes(answers, "shell_exec", path=None, command="git commit -m x")
    assert not said_yes(answers, "shell_exec", path=None, command="git commit -m x; rm x")
    assert said_yes(answers_to(["all"]), "shell_exec", path=None, command="echo x > y")
    with pytest.raises(CallTheOperator, match="yes_to_invalid"):
        answers_to(["everything"])


@pytest.mark.anyio
@pytest.mark.parametrize("program", ["ripgrep", "walk"])
async def test_what_is_forbidden_is_among_no_results(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # W2
    if program == "walk":
        monkeypatch.setattr(shutil, "which", lambda _: None)
    forbidden = {"decision": "forbid", "tool": "*", "path": "secret/**"}
    with opened(tmp_path, forbidden, {"decision": "forbid", "tool": "search_text", "path": "b.md"}) as world:
        (world.root / "secret").mkdir()
        for path in ("secret/a.md", "secret/z.md", "a.md", "b.md"):
            (world.root / path).write_text("needle\n" * (300 if "secret" in path else 1), "utf-8")
        await world.workspace.index.update()
        listed = await world.call("list_files", path=".", recursive=True)
        assert [each["path"] for each in listed["files"]] == ["a.md", "b.md"]
        found = await world.call("search_text", query="needle")
        assert ([each["path"] for each in found["matches"]], found["truncated"]) == (["a.md"], False)
        by_words = await world.call("search_semantic", query="needle", top_k=2)
        assert {each["path"] for each in by_words["results"]} == {"a.md", "b.md"}


@pytest.mark.anyio
async def test_who_is_asked_and_what_the_model_gets(tmp_path: Path) -> None:  # W2
    forbidden = {"decision": "forbid", "tool": "shell_exec", "command": "git push"}
    with opened(tmp_path, forbidden, {"decision": "forbid", "tool": "read_file", "path": "**/.env"}) as world:
        (world.root / ".env").write_text("x", "utf-8")
        (world.root / "link").symlink_to(".env")
        assert (await world.call("shell_exec", command="git push"))["error"] == "FORBIDDEN"
        assert (await world.call("read_file", path="link"))["error"] == "FORBIDDEN"
        assert world.person.asked == []
        world.person.answer = lambda _: "no"
        refused = await world.call("write_file", path="a.txt", content="x\n")
        assert refused["error"] == "USER_REJECTED"
        assert "+x" in (world.person.asked[0].diff or "")
        world.person.answer = lambda _: "session"
        assert (await world.call("write_file", path="a.txt", content="x"))["success"]
        assert (await world.call("write_file", path="b.txt", content="x"))["success"]
        assert len(world.person.asked) == 2
        for _ in range(2):  # W2: a command is never allowed for the session
            assert (await world.call("shell_exec", command="true"))["success"]
        assert len(world.person.asked) == 4
        assert (await world.call("delete_file", path="b.txt"))["success"]
        assert len(world.person.asked) == 5
        assert (await world.call("format_disk"))["error"] == "UNKNOWN_TOOL"
        assert (await world.call("read_file"))["error"] == "INVALID_ARGUMENTS"


@pytest.mark.parametrize(
    "line",
    [
        *("env " * 60 + "git status", "echo {" + "," * 20_000, "x*" + "[" * 20_000 + " git"),
        # Quoted again and again: each text within a text can be reached in two ways.
        reduce(lambda inner, _: f"env A=1 {json.dumps(inner)}", range(7), "env " + "a " * 2_500),
    ],
)
def test_to_read_what_a_line_runs_takes_no_longer_than_the_line(line: str) -> None:  # W2
    made = rules({"decision": "forbid", "tool": "shell_exec", "command": "git push"})
    began = time.process_time()
    assert made.decide("shell_exec", command=line).verdict == "prompt"
    assert made.decide("shell_exec", command=f"{line}\ngit push").verdict == "forbid"
    assert time.process_time() - began < 2


@pytest.mark.anyio
async def test_a_command_line_has_an_end(tmp_path: Path) -> None:  # W2
    with opened(tmp_path) as world:
        long = await world.call("shell_exec", command="a=(" * 3_334)
        assert (long["error"], world.person.asked) == ("INVALID_ARGUMENTS", [])
        assert (await world.call("shell_exec", command="true " + "a" * 9_995))["success"]
