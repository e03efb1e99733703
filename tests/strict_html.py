"""A strict reader of HTML: what a browser would silently mend is a fault here."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset({"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"})
NEEDS_LABEL = frozenset({"input", "select", "textarea"})
INSIDE = {
    "tr": {"thead", "tbody", "tfoot"},
    "td": {"tr"},
    "th": {"tr"},
    "li": {"ul", "ol", "template"},
    "dt": {"dl"},
    "dd": {"dl"},
}
PHRASING = frozenset({"b", "bdi", "code", "h1", "h2", "h3", "label", "p", "small", "span", "strong", "summary"})
"""Elements that contain text and its marks alone."""
BLOCKS = frozenset(
    {"div", "p", "ul", "ol", "dl", "table", "section", "form", "nav", "details", "figure", "pre", "h1", "h2", "h3"}
)


class StrictHtml(HTMLParser):
    """Reads one page; ``faults`` says what is wrong with it, ``text`` is what a reader sees."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.text = ""
        self.links: list[str] = []
        self._open: list[str] = []
        self._ids: set[str] = set()
        self._references: set[str] = set()
        self.feed(page)
        self.close()
        if self._open:
            self.faults.append(f"not closed: {self._open}")
        self.faults += [f"no element has the id {each}" for each in sorted(self._references - self._ids)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        given = dict(attrs)
        where = f"<{tag}> in {'/'.join(self._open[-3:])}"
        if len(names) != len(set(names)):
            self.faults.append(f"repeated attribute: {where} {names}")
        if any(name.startswith("on") for name in names) or "style" in names:
            self.faults.append(f"inline script or style: {where}")
        if (given_id := given.get("id")) is not None:
            if given_id in self._ids or not given_id or " " in given_id:
                self.faults.append(f"id {given_id!r} is not unique: {where}")
            self._ids.add(given_id)
        self._references |= set((given.get("aria-labelledby") or "").split())
        parents = INSIDE.get(tag)
        if parents is not None and (not self._open or self._open[-1] not in parents):
            self.faults.append(f"misplaced: {where}")
        if tag in BLOCKS and PHRASING & set(self._open):
            self.faults.append(f"a block inside text: {where}")
        if tag == "form" and "form" in self._open:
            self.faults.append(f"form inside a form: {where}")
        if tag in {"a", "button"} and {"a", "button"} & set(self._open):
            self.faults.append(f"a control inside a control: {where}")
        if (
            tag in NEEDS_LABEL
            and given.get("type") != "hidden"
            and "label" not in self._open
            and not given.get("aria-label")
        ):
            self.faults.append(f"no label: {where}")
        if tag == "th" and given.get("scope") not in {"col", "row"}:
            self.faults.append(f"no scope: {where}")
        for name in ("href", "src", "action", "formaction"):
            if given.get(name):
                self.links.append(str(given[name]))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if "svg" not in self._open:
            self.faults.append(f"closed by itself: <{tag}/>")

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"</{tag}> closes {self._open[-1:]}")
            if tag not in self._open:
                return
            while self._open[-1] != tag:
                self._open.pop()
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in {"script", "style", "title"}:
            self.text += data
