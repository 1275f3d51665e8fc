#!/usr/bin/env python3
"""Prints the Debian handbook (HTML of the package debian-handbook) as plain text, in the book's order.

  handbook_text.py HTML_FOLDER [CHARACTERS]

With CHARACTERS: whole lines, up to that many.
"""

import html.parser
import pathlib
import re
import sys

BLOCKS = {"p", "div", "li", "h1", "h2", "h3", "h4", "title", "dt", "dd", "pre", "tr", "br"}
SKIPPED = {"script", "style", "head", "nav"}


class Links(html.parser.HTMLParser):
    """The pages that the table of contents names, each once, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[str, None] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = (dict(attrs).get("href") or "").split("#")[0]
        if tag == "a" and target.endswith(".html") and "/" not in target and target != "index.html":
            self.pages[target] = None


class Text(html.parser.HTMLParser):
    """The text of a page, a line for each block, without navigation."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._skipped: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        classes = (dict(attrs).get("class") or "").split()
        if tag in SKIPPED or "docnav" in classes:
            self._skipped.append(tag)
        elif self._skipped and tag == self._skipped[-1]:
            self._skipped.append(tag)  # nested: the end of the inner one must not end the outer
        if tag in BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped and tag == self._skipped[-1]:
            self._skipped.pop()
        if tag in BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.parts.append(data)


def page_text(page: pathlib.Path) -> str:
    parser = Text()
    parser.feed(page.read_text(encoding="utf-8"))
    lines = (re.sub(r"\s+", " ", line).strip() for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    links = Links()
    links.feed((folder / "index.html").read_text(encoding="utf-8"))
    book = "\n\n".join(page_text(folder / name) for name in links.pages if (folder / name).exists())
    end = len(book) if len(sys.argv) < 3 else book.rfind("\n", 0, int(sys.argv[2]))
    print(book[:end])


if __name__ == "__main__":
    main()
