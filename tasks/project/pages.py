"""What our pages share: templates that escape all text from outside, and our own files put into them as they are."""

from __future__ import annotations

from pathlib import Path

import jinja2
import markupsafe


def templates(assets_dir: Path) -> jinja2.Environment:
    """The templates of a folder; a name that is not given is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(assets_dir),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def asset(path: Path) -> markupsafe.Markup:
    """A file of ours as it is; what comes from outside never passes here."""
    return markupsafe.Markup(path.read_text(encoding="utf-8"))
