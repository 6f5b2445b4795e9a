"""docs/mail.md names every key of the config with its default, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from channels.mail.config import (
    MAIL_TOOLS,
    Folders,
    Imap,
    Limits,
    MailboxConfig,
    MailConfig,
    Match,
    OAuth2,
    Pipeline,
    Profile,
    Rule,
    Smtp,
)
from channels.mail.preprocessing import SHIPPED

PAGE = (Path(__file__).parents[2] / "docs" / "mail.md").read_text()
SECTIONS: dict[str, tuple[type[BaseModel], ...]] = {
    "### The file": (MailConfig,),
    "### Mailbox": (MailboxConfig, Imap, Smtp),
    "### Rule": (Rule,),
    "### Profile": (Profile,),
    "### Pipeline": (Pipeline,),
    "### Limits": (Limits,),
}


@pytest.mark.parametrize("title", SECTIONS)
def test_the_reference_has_the_keys_of_the_models(title: str) -> None:
    section = PAGE.split(f"{title}\n")[1].split("\n### ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, re.MULTILINE))
    fields = {name: field for model in SECTIONS[title] for name, field in model.model_fields.items()}
    assert rows.keys() == fields.keys()
    for name, told in rows.items():
        default = fields[name].default
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert float(told.strip()) == default, name
        elif fields[name].is_required():
            assert not told.strip(), name


def test_the_smaller_parts_are_told_too() -> None:
    for name in (*Folders.model_fields, *OAuth2.model_fields, *Match.model_fields, *MAIL_TOOLS, *SHIPPED):
        assert f"`{name}" in PAGE, name
