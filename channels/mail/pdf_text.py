"""A PDF on standard input, the text of its first pages on standard output, within bounds of memory and time.

Run as a program of its own: a hostile PDF makes its reader loop, recurse and allocate. What is written before
it comes to its end is read all the same.
"""

import io
import resource
import sys

from pypdf import PdfReader

MOST_PAGES = 20
MOST_CHARACTERS = 20_000
MOST_SECONDS = 10
"""Of CPU; whoever started the process ends it sooner."""

MOST_BYTES = 1 << 30
"""Of address space."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    written = 0
    for page in PdfReader(io.BytesIO(sys.stdin.buffer.read())).pages[:MOST_PAGES]:
        text = page.extract_text()
        sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
        sys.stdout.buffer.flush()
        written += len(text)
        if written > MOST_CHARACTERS:
            return


if __name__ == "__main__":
    main()
