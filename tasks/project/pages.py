"""Pages and Markdown from templates, in which all text except that of files of this package is escaped.

HTML is escaped by Jinja, Markdown by `markdown_text`. Characters that reverse the direction of the text around them are
shown as escapes in both, and in CSV.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")  # embeddings, overrides and isolates; marks of RTL text may stay
_POLICY = re.compile('<meta http-equiv="Content-Security-Policy" content="[^"]*"')
_SCRIPT = re.compile("sha256-[A-Za-z0-9+/]{43}=")
_MARKDOWN = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)|^(?=#|=|[-+](?:[-+ ]|$))")
_FORMULA = tuple("=+-@\t\r")


def templates(assets_dir: Path) -> jinja2.Environment:
    """Load the HTML templates of a directory; undefined names are errors."""
    return _environment(assets_dir, _visible_text)


def markdown_templates(assets_dir: Path) -> jinja2.Environment:
    """Load the Markdown templates of a directory, with the filters `code` (a code span) and `quoted` (a string)."""
    environment = _environment(assets_dir, markdown_text)
    environment.filters |= {"code": markdown_code, "quoted": lambda value: markupsafe.Markup(json.dumps(value))}
    return environment


def _environment(assets_dir: Path, finalize: Any) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(assets_dir),
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def asset(path: Path) -> markupsafe.Markup:
    """Read a file of this package as safe markup; never use it for external text."""
    return markupsafe.Markup(path.read_text(encoding="utf-8"))


def script_source(script: str) -> str:
    """Return the source for a content security policy that allows only this inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def declared_scripts(page: str) -> list[str]:
    """Return the sources of the scripts that a page allows in its own policy; none if it has no policy.

    Templates write the policy before the title. Texts of data come after it, so they cannot declare a script.
    """
    policy = _POLICY.search(page, 0, max(page.find("<title"), 0))
    return [f"'{source}'" for source in _SCRIPT.findall(policy[0])] if policy else []


def visible(text: str) -> str:
    """Replace the characters that reverse the direction of the text around them by escapes such as \\u202e."""
    return _BIDI.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _visible_text(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def markdown_text(value: Any) -> markupsafe.Markup:
    """Escape a value for one line of Markdown or a cell of a table; Markdown that this module made stays as it is."""
    if hasattr(value, "__html__"):
        return markupsafe.Markup(value)
    escaped = _MARKDOWN.sub(r"\\\g<0>", " ".join(visible(str(value)).split()))
    return markupsafe.Markup(escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def markdown_code(text: str) -> markupsafe.Markup:
    """Make a code span of text."""
    return markupsafe.Markup(f"`{' '.join(visible(text).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`")


def markdown_link(text: str, url: str) -> markupsafe.Markup:
    """Make a link to a page; only its text if `url` is not one of http or https."""
    if not is_web(url):
        return markdown_text(text)
    encoded = re.sub(r"[\s()<>\\]", lambda found: f"%{ord(found[0]):02X}", url)
    return markupsafe.Markup(f"[{markdown_text(text)}]({encoded})")


def is_web(url: str) -> bool:
    """Check whether a URL leads to a page, and does not run a script."""
    return url.startswith(("http://", "https://"))


def csv_cell(value: Any) -> Any:
    """Return a value for a CSV file; a text that a spreadsheet would take for a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
