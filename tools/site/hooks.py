"""Hooks of MkDocs: one language of the documentation becomes one site.

A page is `page.md`, its Chinese twin `page_cn.md`, side by side, as GitHub shows them. A build takes the pages of one
language under the names `page.html`, so that the switch between languages stays on the page. READMEs and notebooks lie
outside of docs/ and become pages; links between documents are carried over to where those have got to.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
ASSETS = Path(__file__).resolve().parent / "assets"

_ENGLISH_ONLY = {PROJECT / f"{name.upper()}.md": f"{name}.md" for name in ("contributing", "agents", "security")}
_LANGUAGE_LINK = re.compile(r"^\[(?:中文|English)\]\([^)]*\)\n+", re.MULTILINE)
_BETWEEN_LANGUAGES = re.compile(r"^---\n\n(?=# )", re.MULTILINE)
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_BREAK_IN_CHINESE = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])")
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_FILE_NAME_LINK = re.compile(r"\[([\w/.]+\.md)\]\(([^)\s]+)\)")
_CODE_IN_TABLE = re.compile(r"(?<=<code>)[^<>\n]+(?=</code>(?:(?!</?t[dr]>).)*</td>)")
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def on_files(files: Files, config: Any) -> Files:
    """Of this language every document, and what documents link to, as files of the site."""
    chinese = _is_chinese(config)
    for file in list(files):
        if file.is_documentation_page():
            files.remove(file)
    for source, uri in _documents(chinese).items():
        files.append(File.generated(config, uri, content=_text(source, chinese)))
    files.append(File.generated(config, "LICENSE.txt", abs_src_path=str(PROJECT / "LICENSE")))
    for asset in sorted(ASSETS.iterdir()):
        files.append(File.generated(config, f"assets/{asset.name}", abs_src_path=str(asset)))
    return files


def on_nav(nav: Any, *, config: Any, files: Files) -> Any:
    """Sections are called what the configuration of this language says."""
    for item in nav.items:
        item.title = config.extra["sections"].get(item.title, item.title)
    return nav


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Links to documents become links to their pages, and those that show a file's name show its title; a line break
    between Chinese characters is not a space."""
    places = _documents(_is_chinese(config))
    other = _documents(not _is_chinese(config))
    (source,) = (document for document, uri in places.items() if uri == page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target = match.group()
        name, mark, anchor = target.partition("#")
        if not name or "://" in target:
            return target
        document = (source.parent / unquote(name)).resolve()
        if document == PROJECT / "LICENSE":
            uri = "LICENSE.txt"
        elif document.is_relative_to(DOCS) and document.suffix != ".md":
            uri = document.relative_to(DOCS).as_posix()
        else:
            uri = places.get(document) or other.get(document)
        if uri is None:
            raise PluginError(f"{source}: a link to {target}, which is no page of the site")
        return posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".") + mark + anchor

    def named(match: re.Match[str]) -> str:
        document = (source.parent / match[2].partition("#")[0]).resolve()
        title = re.search(r"^# (.+)", _text(document, _is_chinese(config)), flags=re.MULTILINE)
        return f"[{title[1]}]({match[2]})" if title else match.group()

    blocks = _BLOCK.findall(markdown)
    parts = [_LINK.sub(moved, _FILE_NAME_LINK.sub(named, part)) for part in _BLOCK.split(markdown)]
    parts = [_BREAK_IN_CHINESE.sub("", part) for part in parts]
    return "".join(part + block for part, block in zip(parts, [*blocks, ""], strict=True))


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """The switch between languages leads to the same page of the other one, out of this site: Material's own links
    cannot. Long names in tables break behind a dot, slash or underscore, so that tables fit a phone."""
    back = posixpath.relpath(".", posixpath.dirname(page.url) or ".")
    root = posixpath.join(back, "..") if _is_chinese(config) else back
    for language, folder in (("en", ""), ("zh", "zh")):
        link = posixpath.normpath(posixpath.join(root, folder, page.url))
        output = re.sub(rf'href="[^"]*"(?= hreflang="{language}")', f'href="{link}"', output)
    return _CODE_IN_TABLE.sub(lambda cell: re.sub(r"([/._])(?=\w)", r"\1<wbr>", cell.group()), output)


def _is_chinese(config: Any) -> bool:
    return config.theme["language"] == "zh"


def _documents(chinese: bool) -> dict[Path, str]:
    """{a document: its place in the site of this language}. Documents of one language only are in both sites."""
    found = {PROJECT / ("README_CN.md" if chinese else "README.md"): "index.md"}
    for page in sorted(DOCS.rglob("*.md")):
        if page.stem.endswith("_cn") == chinese:
            found[page] = page.relative_to(DOCS).with_name(f"{page.stem.removesuffix('_cn')}.md").as_posix()
    for notebook in sorted(PROJECT.glob("examples/*.ipynb")):
        found[notebook] = f"examples/{notebook.stem}.md"
    for readme in sorted(PROJECT.glob("examples/*/README.md")):
        found[readme] = f"examples/{readme.parent.name}.md"
    return found | _ENGLISH_ONLY


def _text(source: Path, chinese: bool) -> str:
    """Without the link to the other language, for which the site has a switch; of a README of both, one half. What
    is there in English only is left out of the Chinese search."""
    if source.suffix == ".ipynb":
        return _notebook_text(source, chinese)
    text = _LANGUAGE_LINK.sub("", source.read_text(encoding="utf-8"), count=1)
    halves = _BETWEEN_LANGUAGES.split(text)
    hidden = "---\nsearch: {exclude: true}\n---\n" if chinese and source in _ENGLISH_ONLY else ""
    return hidden + (halves[-1] if chinese else halves[0])


def _notebook_text(source: Path, chinese: bool) -> str:
    """Its cells with their stored outputs, which are text; of its paragraphs those of one language."""
    parts: list[str] = []
    for cell in json.loads(source.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            paragraphs = "".join(cell["source"]).split("\n\n")
            is_other = [not one.startswith("#") and bool(_CHINESE.search(one)) != chinese for one in paragraphs]
            parts += [one for one, other in zip(paragraphs, is_other, strict=True) if not other]
            continue
        parts.append(f"```python\n{''.join(cell['source'])}\n```")
        for output in cell["outputs"]:
            text = "".join(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"])
            parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
