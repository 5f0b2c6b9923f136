"""The dashboard: pages for people, made on the server from the answers of the HTTP API.

    request ─▶ site.py ─▶ visitor.py: who looks ─▶ pages/: reads of the API ─▶ templates/ ─▶ HTML
                      └─▶ actions.py: a form becomes one call of the API
                      └─▶ live.py: the changing part of a page again, as server-sent events

A page calls routes of the dispatcher inside this process, with the scopes and the tenant of the person who looks, so
a page can do nothing that the API cannot. It runs no SQL. Many open pages share their reads (`shared_reads.py`). The
package has its scripts and styles with it: no page makes a request to another host.
"""

from tenure.errors import require_extra

require_extra("dashboard", "the dashboard", "jinja2")
