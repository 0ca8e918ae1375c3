"""Templates: HTML escapes all text except that of files of this package; Markdown templates escape by themselves."""

from __future__ import annotations

from pathlib import Path

import jinja2
import markupsafe


def templates(assets_dir: Path) -> jinja2.Environment:
    """Load the templates of a directory; undefined names are errors."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(assets_dir),
        autoescape=jinja2.select_autoescape(disabled_extensions=["md.j2"], default=True, default_for_string=True),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def asset(path: Path) -> markupsafe.Markup:
    """Read a file of this package as safe markup; never use it for external text."""
    return markupsafe.Markup(path.read_text(encoding="utf-8"))
