"""Hooks of MkDocs: pages from files outside of docs/, tutorials, diagrams without scripts, and the check that the site needs nothing from elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import render_tutorials
from mermaid_render import mermaid_to_svg
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {"CHANGELOG.md": "changelog.md", "bindings_spec/README.md": "bindings-specification.md"}
"""Pages outside of docs/ -> where the site has them."""
HOME = {"README.md": "index.md"}
"""What links to the README lead to."""
TUTORIALS = "<!-- tutorials -->"
EXECUTED = ROOT / "build" / "tutorials"
"""Where `make tutorials` leaves notebooks with outputs."""
MARKS = re.compile(r"<!-- (setup: .*?|not run|results: .*?|end of results) -->\n?")
"""Comments for tests and for the rendering of tables, which readers of the site need not load."""
LINK = re.compile(r"(\]\()([^)#:\s]+\.md)([#)])")
RESOURCE = re.compile(r"""<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")
"""A tag that loads something from another server."""


def on_config(config: Any) -> Any:
    """Draw diagrams at build time, and list the tutorials in the navigation."""
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [{"name": "mermaid", "class": "diagram", "format": _diagram}]
    for section in config.nav:
        if "Tutorials" in section:
            section["Tutorials"] += [{title: f"tutorials/{name}.md"} for name, title in _tutorials(config).items()]
    return config


def _diagram(source: str, *_: Any, **__: Any) -> str:
    return f'<div class="diagram">{mermaid_to_svg(source, theme="neutral").decode()}</div>'


def _tutorials(config: Any) -> dict[str, str]:
    """Return name -> title of all tutorials."""
    found = {}
    for script in sorted(Path(config.docs_dir, "tutorials").glob("*.py")):
        first = next((cell.source for cell in render_tutorials.read_cells(script.read_text(encoding="utf-8")) if cell.kind == "markdown"), "")
        title = re.match(r"# (.+)", first)
        found[script.stem] = title[1] if title else script.stem.replace("_", " ")
    return found


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside of docs/, and a page and a notebook for each tutorial."""
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    for name in _tutorials(config):
        made = _notebook(Path(config.docs_dir, "tutorials", f"{name}.py"))
        files.append(File.generated(config, f"tutorials/{name}.ipynb", content=render_tutorials.to_json(made)))
        files.append(File.generated(config, f"tutorials/{name}.md", content=render_tutorials.markdown(made, name)))
    return files


def _notebook(script: Path) -> dict[str, Any]:
    """Return a tutorial's notebook, with outputs if it was executed since it was last changed."""
    cells = render_tutorials.read_cells(script.read_text(encoding="utf-8"))
    executed = EXECUTED / f"{script.stem}.ipynb"
    if executed.exists():
        made: dict[str, Any] = json.loads(executed.read_text(encoding="utf-8"))
        if render_tutorials.has_sources(made, cells):
            return made
    return render_tutorials.notebook(cells)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to where the site has their targets, list the tutorials, and drop comments for tests."""
    here = page.file.src_uri
    folder = Path(next((source for source, target in OUTSIDE.items() if target == here), f"docs/{here}")).parent

    def moved(match: re.Match[str]) -> str:
        target = _normal(folder / match[2])
        site = (OUTSIDE | HOME).get(target) or target.removeprefix("docs/")
        depth = here.count("/")
        return f"{match[1]}{'../' * depth}{site}{match[3]}"

    if TUTORIALS in markdown:
        markdown = markdown.replace(TUTORIALS, "\n".join(f"- [{title}]({name}.md)" for name, title in _tutorials(config).items()) or "None yet.")
    return LINK.sub(moved, MARKS.sub("\n", markdown))


def _normal(path: Path) -> str:
    """Return a relative path without '..'."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def on_post_build(config: Any) -> None:
    """Fail where a page would load something from another server."""
    for path in Path(config.site_dir).rglob("*.html"):
        found = RESOURCE.search(path.read_text(encoding="utf-8"))
        if found and 'rel="canonical"' not in found[0]:
            raise PluginError(f"expected a site that loads nothing from other servers, got {found[0]} in {path}")
