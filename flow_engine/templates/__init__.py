"""Prompt templates: Jinja2's syntax with `$` names, evaluated inside hard bounds (F22).

    parsing      source → Jinja's syntax tree: `$` names, limits on size and nesting, JavaScript recognised
    template     statements → closures; cache, lint, render
    expressions  expressions → closures, through an allow-list of node types
    values       what expressions evaluate to (text, numbers, lists, objects, absent things), filters, tests
    frame        one rendering: what it sees, what it may spend, what it has written
    names        the `$` names

Jinja's own code generation is not used. It folds constants while compiling, hands Python objects to the
template and offers no place to stop; here only the listed operations exist, and each one is paid for
before it is done.
"""

from flow_engine.templates.frame import Allowance, TemplateScope
from flow_engine.templates.names import REFERENCE, VALUES, Compared, spaced_name
from flow_engine.templates.template import (
    Template,
    compile_template,
    is_template,
    lint_template,
    render_source,
)

__all__ = [
    "REFERENCE",
    "VALUES",
    "Allowance",
    "Compared",
    "Template",
    "TemplateScope",
    "compile_template",
    "is_template",
    "lint_template",
    "render_source",
    "spaced_name",
]
