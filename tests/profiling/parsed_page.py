"""What a browser's parser finds in a page: its elements, scripts and charts."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser


@dataclass
class Parsed(HTMLParser):
    """The elements of a page, and what stands in its scripts."""

    text: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.open_script = False
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.open_script = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.open_script = self.open_script and tag != "script"

    def handle_data(self, data: str) -> None:
        if self.open_script:
            self.scripts[-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def charts(self) -> list[str]:
        """Return the id of each chart."""
        return [attributes["id"] or "" for tag, attributes in self.elements if tag == "figure"]
