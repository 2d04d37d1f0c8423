"""Templates, and the one way to render them: undefined names are errors, and nothing is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from offload_runtime.docgen import markdown
from offload_runtime.docgen.schema_examples import flow

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["render"]

_BLANK_LINES = re.compile(r"\n{3,}")


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return the page that ``template`` makes of ``values``: no blank lines at either end, one line feed at the last.

    Raises jinja2's UndefinedError for a name that ``values`` lack.
    """
    text = _environment().get_template(template).render(values)
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return _BLANK_LINES.sub("\n\n", lines).strip("\n") + "\n"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("offload_runtime.docgen"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
    )
    environment.filters |= {
        "cell": markdown.cell,
        "code": markdown.code,
        "flow": flow,
        "slug": markdown.slug,
    }
    return environment
