"""Templates: the HTML of a page, of its changing part alone, and how values are written in them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tenure.dashboard.page import PageRoute
from tenure.jobs.formats import format_duration
from tenure.jobs.search import Search

#: Characters without a shape, and those that change the direction of the text around them.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
#: The longest value that a page shows whole; the API has the rest.
_LONGEST = 20_000


class Templates:
    """The templates of the package, with the address of the dashboard and its files."""

    def __init__(self, prefix: str, static: Mapping[str, bytes], trace_url: str | None) -> None:
        self._prefix = prefix
        self._trace_url = trace_url
        self._versions = {name: hashlib.sha256(content).hexdigest()[:12] for name, content in static.items()}
        self._environment = environment = Environment(
            loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True, auto_reload=False,
        )  # fmt: skip
        environment.filters |= {
            "shown": shown, "shown_lines": shown_lines, "short": short, "minute": minute, "json_text": json_text,
            "json_line": json_line, "json_to_edit": json_to_edit, "when": when, "span": span, "person": person,
            "large_number": large_number,
        }  # fmt: skip
        environment.globals |= {
            "url": self.url,
            "static": self.static,
            "search_url": self.search_url,
            "trace_url": self.trace_url,
        }

    def page(self, route: PageRoute, values: Mapping[str, Any], frame: Mapping[str, Any]) -> str:
        """The HTML of a page."""
        template = self._environment.get_template(route.template)
        return template.render({"title": route.title, **frame, **values})

    def live(self, route: PageRoute, values: Mapping[str, Any]) -> str:
        """The HTML of the changing part of a page. It depends on nothing but what was read, so readers can share it."""
        template = self._environment.get_template(route.template)
        return "".join(template.blocks["live"](template.new_context(dict(values))))

    def plain(self, name: str, **values: Any) -> str:
        """The HTML of a page without a menu."""
        return self._environment.get_template(name).render(**values)

    def url(self, path: str, **query: Any) -> str:
        """The address of a page, with its query."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return self._prefix + quote(path, safe="/") + (f"?{urlencode(given)}" if given else "")

    def static(self, name: str) -> str:
        """The address of a file of the package; a changed file has another address."""
        return f"{self._prefix}/static/{name}?v={self._versions[name]}"

    def search_url(self, **terms: Any) -> str:
        """The address of the list of jobs that match these terms."""
        return self.url("/jobs", q=str(Search(**{name: value for name, value in terms.items() if value})))

    def trace_url(self, trace_id: str) -> str | None:
        """The address of a trace in the user's tracing system; None: no template is set."""
        return None if self._trace_url is None else self._trace_url.replace("{trace_id}", quote(trace_id, safe=""))


def shown(value: Any) -> str:
    """A text that people can see whole: invisible characters and those that turn others around get a visible sign."""
    return _UNSEEN.sub(lambda found: f"⟦{ord(found[0]):04X}⟧", str(value))


def shown_lines(value: Any) -> str:
    """A text of several lines, each as `shown`; of a very long one the beginning."""
    return "\n".join(map(shown, str(value)[:_LONGEST].split("\n")))


def short(value: Any, most: int = 120) -> str:
    """The beginning of a text, in one line."""
    text = " ".join(shown(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def when(value: str | None) -> Markup:
    """A time. The page's script writes it in the zone of the person who looks, with the exact time on hover."""
    if value is None:
        return Markup('<span class="none">–</span>')
    exact = datetime.fromisoformat(value).strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}" hx-morph-skip-children>{} UTC</time>').format(value, exact)


def minute(seconds: int) -> Markup:
    """A time in seconds since 1970, as `when` writes it."""
    return when(datetime.fromtimestamp(seconds, UTC).isoformat())


def span(seconds: float | None) -> str:
    """A span of time."""
    return "–" if seconds is None else format_duration(max(0, round(seconds * 1_000)))


def json_text(value: Any) -> str:
    """A value as readable JSON; of a very long one the beginning."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    more = len(text) - _LONGEST
    return shown_lines(text) + (f"\n… {more} more characters: see the API" if more > 0 else "")


def json_line(value: Any) -> str:
    """The beginning of a value as JSON, in one line."""
    return short(json.dumps(value, ensure_ascii=False), 300)


def json_to_edit(value: Any) -> str | None:
    """A value as JSON that a person can change and send back, nothing hidden or left out; None: it is too long."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    # Outside of strings JSON has none of these characters, so an escape means the same.
    return None if len(text) > _LONGEST else _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def large_number(digits: str) -> str:
    """A whole number of any length, of which people need the size."""
    return f"{int(digits):,}" if len(digits) < 10 else f"{digits[0]}.{digits[1]} · 10^{len(digits) - 1}"


def person(value: str | None) -> str:
    """A name, or a dash."""
    return "–" if value is None else shown(value)
