"""Writes `docs/lint.md` from the linter's table: `python -m flow_engine.linting.page > docs/lint.md`."""

from collections.abc import Iterator

from flow_engine.linting import CODES

_INTRODUCTION = """# What is said about a flow version

Written from the linter's table of codes by `python -m flow_engine.linting.page`; a test keeps it complete.

A version is checked when it is saved (`POST /v1/flows/{id}/versions`), when it is only to be validated
(`POST /v1/flows/{id}/versions/validate`), and on the command line, without a service:

```sh
flow-engine flow validate flows/samples/claim.es.json
```

It takes version documents, files that hold `{"flow": …, "version": …}`, and `-` for standard input. `--json`
prints one object with every finding, `--strict` lets warnings fail too. The exit code is 0 for clean or
warnings only, 1 when there are errors, 2 when something could not be read.

Every finding has the place as a JSON pointer, a code, and a message that names the tasks and variables it is
about and says what to do. **Errors** refuse a save: the version could not run. **Warnings** are returned with
the save. Drafts never run and are only checked against the schema.

What the rules about required variables take for granted: the dialogue can fill any variable that is
neither custom nor `sensitive: "card"`, in any task; those two are written by tools only; and since no
document says which tool writes which variable, a tool that any task on the way has selected may have
written it.
"""


def lint_page() -> str:
    """The page as Markdown, of every code in `codes.toml`."""
    return "\n".join(
        [
            _INTRODUCTION,
            "## Errors\n",
            *_table("error"),
            "\n## Warnings\n",
            *_table("warning"),
            "\n## Every code\n",
            *(
                f"### {row.code}\n\n"
                f"{row.severity.capitalize()}. {row.title}. {row.why}\n\n"
                f"- For example: {row.example}\n"
                f"- What to do: {row.advice}\n"
                for row in CODES.values()
            ),
        ]
    )


def _table(severity: str) -> Iterator[str]:
    yield "| code | what is found |"
    yield "|---|---|"
    for row in CODES.values():
        if row.severity == severity:
            yield f"| [`{row.code}`](#{row.code}) | {row.title} |"


if __name__ == "__main__":
    print(lint_page(), end="")
