"""Hooks of MkDocs: pages from outside docs/, and links between them.

The Markdown files link to each other as GitHub shows them. On the site, README.md is index.md, docs/ is the top level,
and other files keep their paths.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "bench/RESULTS.md",
    "bench/*.png",
    "bench/recipes.py",
    "infra/README.md",
    "infra/*/README.md",
)
_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files from outside docs/."""
    for pattern in (*OUTSIDE, "infra/terraform/*/README.md"):
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, _site_path(name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Translate the links of a page from paths in the repository to paths on the site."""
    here = page.file.src_uri
    source = "README.md" if here == "index.md" else here if _is_outside(here) else f"docs/{here}"

    def translate(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        return posixpath.relpath(_site_path(target), posixpath.dirname(here) or ".")

    return _LINK.sub(translate, markdown)


def _site_path(name: str) -> str:
    return "index.md" if name == "README.md" else name.removeprefix("docs/")


def _is_outside(site_path: str) -> bool:
    return not (ROOT / "docs" / site_path).exists()
