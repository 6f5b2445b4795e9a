"""What a shell command line runs, as the operator's rules look at it.

1. The line is split into its simple commands, wherever they stand: lists, pipes, groups, functions,
   conditions, loops, substitutions. A here-document is text, its substitutions are commands.
2. A line is plain where nothing in it can change what its words mean: no substitution, no `$`, no
   assignment, no redirection to a file, no pattern in a command's name, no line that goes on. Only a plain
   line can be allowed by a rule. The variable of a loop is an assignment too, but for one in small letters,
   such as `i`, by which nothing that is run goes.
3. To forbid, a command is also looked for behind assignments, wrappers such as `sudo` and `env`, quotes and
   paths, inside the text that a shell or `eval` is given, and with options between its words.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

_PARSER = Parser(Language(tree_sitter_bash.language()))
_DEEPEST = 8
_LONGEST_PATTERN = 1_000

SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "ash", "fish", "busybox"))
WRAPPERS = frozenset(
    (
        *("env", "sudo", "doas", "su", "xargs", "parallel", "timeout", "nohup", "nice", "ionice", "time"),
        *("command", "exec", "eval", "builtin", "setsid", "stdbuf", "watch", "strace", "chroot", "unshare"),
        *("find", "flock", "script", "runuser", "taskset", "chrt", "trap", "source", ".", "alias", "coproc"),
        *("prlimit", "setpriv", "setarch", "linux32", "linux64", "nsenter", "systemd-run", "pkexec", "sg"),
        *("fakeroot", "numactl", "capsh", "run-parts", "unbuffer", "ltrace", "choom", "bwrap"),
        *("mapfile", "readarray", "compgen"),
        *("dbus-run-session", "ssh-agent", "systemd-inhibit", "start-stop-daemon"),
        *SHELLS,
    )
)
"""Commands that run others."""

_PLAIN = frozenset(
    (
        *("program", "list", "pipeline", "command", "command_name", "word", "number", "string"),
        *("string_content", "raw_string", "concatenation", "subshell", "compound_statement", "comment"),
        *("negated_command", "if_statement", "elif_clause", "else_clause", "while_statement"),
        *("for_statement", "do_group", "redirected_statement"),
        *(";", "&", "&&", "||", "|", "|&", "(", ")", "{", "}", "!", '"', "\n"),
        *("if", "then", "elif", "else", "fi", "while", "until", "do", "done", "for", "in"),
    )
)
_WORDS = frozenset(
    (
        *("word", "number", "string", "raw_string", "ansi_c_string", "translated_string", "concatenation"),
        *("simple_expansion", "expansion", "command_substitution", "process_substitution"),
        *("brace_expression", "arithmetic_expansion", "variable_assignment", "variable_name"),
    )
)


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """`words` without quotes. `literal` where its name is no pattern."""

    words: tuple[str, ...]
    literal: bool

    @property
    def wraps(self) -> bool:
        """Whether it runs another command."""
        return self.words[0].rpartition("/")[2] in WRAPPERS


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`parsed` is False for what is no shell syntax: then `commands` are those that could be read all the
    same."""

    commands: tuple[SimpleCommand, ...]
    plain: bool
    parsed: bool


_NO_BLANK = re.compile(r"[\r\v\f]")
_NO_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*\\[ \t])#")
_CONTINUED = re.compile(r"(?<!\\)((?:\\\\)*)\\\n")
"""What a shell reads otherwise than the grammar: these characters are no blanks to it, `\\ #` begins no
comment, and a line that goes on is joined before anything else, where the grammar may lose its end."""


@lru_cache(64)  # a call is looked at by several
def read_line(line: str) -> CommandLine:
    """A line as UTF-8 text. Never raises: what cannot be read is not `parsed`."""
    text = _NO_COMMENT.sub(r"\1_", _NO_BLANK.sub("_", line))
    read, joined = _read(text), _CONTINUED.sub(r"\1", text)
    if joined == text:
        return read
    # In quotes and comments nothing is joined: what is run stands in the one or the other.
    return CommandLine((*read.commands, *_read(joined).commands), plain=False, parsed=read.parsed)


def _read(line: str) -> CommandLine:
    tree = _PARSER.parse(line.encode("utf-8", "surrogateescape"))
    nodes: list[Node] = []
    waiting = [tree.root_node]
    while waiting:
        nodes.append(waiting.pop())
        waiting += reversed(nodes[-1].children)
    parsed = not tree.root_node.has_error and "\0" not in line
    plain = parsed and all(_is_plain(node) for node in nodes) and _begins(tree.root_node, nodes)
    found = [command for node in nodes if (command := _simple(node)) is not None]
    commands = (*found, *_in_here_documents(line))
    return CommandLine(commands, plain and bool(commands), parsed and bool(commands))


def _begins(root: Node, nodes: Sequence[Node]) -> bool:
    """Whether each comment begins where the shell has one begin, too: not within a word."""
    text = root.text or b""
    starts = [node.start_byte - root.start_byte for node in nodes if node.type == "comment"]
    return all(start == 0 or text[start - 1 : start] in b" \t\n;&|()" for start in starts)


def _in_here_documents(line: str) -> list[SimpleCommand]:
    """Of a line with a here-document whose end is not quoted: the grammar takes the backticks in it for text.
    All that stands between two backticks is read, since quotes before it could set a pair of them off."""
    if not re.search(r"(?<!<)<<(?!<)-?+[ \t]*+(?!['\"]|\\[^\n])", line):
        return []
    pieces = re.sub(r"(\\.)|`", lambda m: m[1] or "\0", line, flags=re.DOTALL).split("\0")[1:-1]
    inner = [re.sub(r"\\([\\`$])", r"\1", piece) for piece in pieces]
    return [command for piece in inner for command in read_line(piece).commands]


def _is_plain(node: Node) -> bool:
    kind = node.type
    if kind == "variable_name":
        return re.fullmatch(rb"[a-z][a-z0-9]*", node.text or b"") is not None
    if kind in _PLAIN:
        return True
    if node.parent is not None and node.parent.type == "file_redirect":
        return kind in ("file_descriptor", ">&", "<&", "number")
    # `2>&1` writes to no file.
    return kind == "file_redirect" and all(
        child.type in ("file_descriptor", ">&", "number") for child in node.children
    )


def _simple(node: Node) -> SimpleCommand | None:
    if node.type not in ("command", "declaration_command", "unset_command"):
        return None
    words: list[str] = []
    for child in node.children:
        if child.type == "command_name" or child.type in _WORDS or not child.is_named:
            word = _text(child)
            match = re.fullmatch(r"([^{}]*)\{([^{},]*,[^{}]*)\}([^{}]*)", word)
            words += [f"{match[1]}{each}{match[3]}" for each in match[2].split(",")] if match else [word]
    # Quotes are gone, braces are single words again: `{git,push}` runs `git push`.
    name = _text(node.child_by_field_name("name") or node.children[0])
    return SimpleCommand(tuple(words), not re.search(r"[*?\[{~]", name))


def _text(node: Node) -> str:
    """A word as the shell would read it, expansions left as they are written."""
    raw = (node.text or b"").decode("utf-8", "replace")
    match node.type:
        case "raw_string":
            return raw[1:-1]
        case "ansi_c_string":
            return _ansi(raw[2:-1])
        case "word":
            return re.sub(r"\\(\n|.)", lambda m: "" if m[1] == "\n" else m[1], raw, flags=re.DOTALL)
        case "string" | "translated_string":
            inner = raw.removeprefix("$")[1:-1]
            return re.sub(r'\\([$`"\\\n])', lambda m: "" if m[1] == "\n" else m[1], inner)
        case "concatenation" | "command_name":
            return "".join(_text(child) for child in node.children) if node.children else raw
        case _:
            return raw


def _ansi(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        escaped = match[1]
        if escaped[0] in "xuU":
            return chr(int(escaped[1:], 16))
        if escaped[0].isdigit():
            return chr(int(escaped, 8) & 0xFF)
        return {"n": "\n", "t": "\t", "r": "\r", "e": "\x1b", "a": "\a", "b": "\b"}.get(escaped, escaped)

    pattern = r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U0{0,2}[0-9a-fA-F]{1,6}|[0-7]{1,3}|.)"
    return re.sub(pattern, one, text, flags=re.DOTALL)


def starts_with(command: Sequence[str], prefix: Sequence[str]) -> bool:
    """Whether the words begin with those of `prefix`."""
    return len(command) >= len(prefix) and tuple(command[: len(prefix)]) == tuple(prefix)


def runs(line: CommandLine, prefix: Sequence[str]) -> bool:
    """Whether any command of the line, however it is wrapped, begins with the words of `prefix`. Each text
    within it is read once, however many ways lead to it."""
    seen, lines = set[str](), [line]
    for _ in range(_DEEPEST + 1):
        commands = [_bare(command.words) for each in lines for command in each.commands]
        if any(_runs(words, prefix) for words in commands):
            return True
        texts = {text for words in commands for text in _texts_within(words)} - seen
        seen |= texts
        lines = [read_line(text) for text in texts]
    return False


def _bare(words: Sequence[str]) -> Sequence[str]:
    """Without the assignments in front."""
    at = 0
    while at < len(words) and re.match(r"[A-Za-z_]\w*\+?=", words[at]):
        at += 1
    return words[at:]


def _runs(words: Sequence[str], prefix: Sequence[str]) -> bool:
    """Whether the command begins with the words of `prefix`, or may hand them on as words of its own."""
    starts = range(len(words)) if _wraps(words) else range(min(1, len(words)))
    return _follow(words, {at + 1 for at in starts if _names(words[at], prefix[0])}, prefix[1:])


def _texts_within(words: Sequence[str]) -> list[str]:
    """What a command that runs others may read as a command line."""
    if not _wraps(words):
        return []
    texts = (*words[1:], " ".join(words[1:]))
    return [text for text in texts if re.search(r"[^\w./=-]", text)]


def _wraps(words: Sequence[str]) -> bool:
    return bool(words) and any(_same(words[0].rpartition("/")[2], each) for each in WRAPPERS)


def _names(word: str, program: str) -> bool:
    """Whether the word is the program's name, or a path of it."""
    return word == program or _same(word.rpartition("/")[2], program)


def _follow(words: Sequence[str], places: set[int], wanted: Sequence[str]) -> bool:
    """Whether the wanted words come next at one of the places. Before each there may be options, each with a
    value or without: `git -C . push` is `git push`."""
    for want in wanted:
        waiting = list(places)
        while waiting:
            at = waiting.pop()
            if at < len(words) and words[at].startswith("-"):
                waiting += {at + 1, at + 2} - places
                places |= {at + 1, at + 2}
        places = {at + 1 for at in places if at < len(words) and _same(words[at], want)}
    return bool(places)


def _same(word: str, wanted: str) -> bool:
    """A word that is a pattern may stand for the wanted one; a very long one is taken to, as to read it takes
    quadratic time."""
    if word == wanted or not re.search(r"[*?\[]", word):
        return word == wanted
    return len(word) > _LONGEST_PATTERN or fnmatchcase(wanted, word)
