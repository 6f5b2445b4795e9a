"""What `docs/lint.md` has of the linter's table of codes: `python -m flow_engine.linting.page FILE` writes it
into the page anew. The prose before it is the file's own.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from flow_engine.linting import CODES

_START = "\n## Errors\n\n"


def written_anew(page: str) -> str:
    """The page as Markdown, with every code in `codes.toml`. Raises ValueError for another page."""
    prose = page[: page.index(_START)]
    lines = [
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
    return prose + _START + "\n".join(lines)


def _table(severity: str) -> Iterator[str]:
    yield "| code | what is found |"
    yield "|---|---|"
    for row in CODES.values():
        if row.severity == severity:
            yield f"| [`{row.code}`](#{row.code}) | {row.title} |"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(written_anew(page.read_text("utf-8")), "utf-8")
