"""What a page is: one row of the table in `page_table.py`, and what its function reads from the API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tenure.dashboard.shared_reads import SHARED_S, SharedReads
from tenure.errors import TenureError
from tenure.http.application import Application
from tenure.http.authentication import Caller


@dataclass(frozen=True, slots=True)
class Page:
    """A request for a page: who looks, at what. `get` reads from the API."""

    application: Application
    shared: SharedReads
    caller: Caller
    #: The text in place of the path's placeholder.
    name: str
    query: Mapping[str, str]

    async def get(self, path: str, *, seconds: float = SHARED_S, **query: Any) -> Any:
        """The answer of a GET of the API, as JSON; what the API refuses is raised. Open pages share it for so long."""
        given = {name: str(value) for name, value in query.items() if value is not None and value != ""}
        key = (path, tuple(sorted(given.items())), self.caller.tenant, self.caller.scopes)
        read = partial(self.application.call, self.caller, "GET", path, query=given)
        return await self.shared.get(key, read, seconds)

    async def try_get(self, path: str, **query: Any) -> Any:
        """The same; None where the caller may not read it."""
        try:
            return await self.get(path, **query)
        except TenureError:
            return None


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A page: its path, its template, and the function that reads what the template shows."""

    path: str
    template: str
    load: Callable[[Page], Awaitable[dict[str, Any]]]
    title: str
    #: The route of the API whose scopes a person needs to see the page.
    reads: str
    #: Its name in the menu, and the key that opens it after `g`; empty: it is not in the menu.
    menu: str = ""
    key: str = ""
    #: Whether an open page is kept up to date. One that costs much to read is read when it is opened.
    is_live: bool = True

    @property
    def before(self) -> str:
        """The path before the placeholder; the whole path if it has none."""
        return self.path.partition("{")[0]

    @property
    def has_name(self) -> bool:
        """Whether the path has a placeholder."""
        return "{" in self.path
