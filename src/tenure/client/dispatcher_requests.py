"""One request to a dispatcher, and what its response means.

    no connection, 3xx, 408, 503 E-CANNOT-CONNECT                nothing was done          CannotConnect
    503 E-UNAVAILABLE                                            nothing was done          Unavailable
    401, 403                                                     the key may not           NotPermitted
    404, 409, 413, 422 with a code                               it was refused            the class of the code
    reset, timeout, cut short, no JSON, another 5xx              it may have happened      ConnectionLost

A large batch goes in several requests; each job has its own answer or error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar
from uuid import UUID, uuid4

import httpx2

from tenure import __version__
from tenure.client.retry import retry
from tenure.context import current
from tenure.contracts import BUILT_IN
from tenure.errors import CannotConnect, ConnectionLost, NotPermitted, TenureError, Unavailable, error_from_code

T = TypeVar("T")

#: Seconds to wait for a connection, and for the next part of an answer.
CONNECT_S, READ_S = 5.0, 30.0
#: How many requests are under way at a time.
_CONNECTIONS = 16
#: An idle connection is not used again after this many seconds: dispatchers and proxies close theirs later.
_IDLE_S = 30.0
#: The most jobs, and about the most bytes, of one request.
_MAX_ITEMS, _MAX_REQUEST_BYTES = 1_000, 1_000_000
#: How often a call is sent while its answer is lost.
_TRIES = 6
#: Errors before a byte of the request was sent.
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_RAISED_UNCHANGED: Final = (CannotConnect, Unavailable, ConnectionLost)


class DispatcherRequests:
    """Connections to one dispatcher, for one event loop; 16 requests at a time, the others wait."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        headers = {"User-Agent": f"tenure/{__version__}", "Accept": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx2.AsyncClient(
            base_url=url, headers=headers, timeout=httpx2.Timeout(READ_S, connect=CONNECT_S),
            limits=httpx2.Limits(
                max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS, keepalive_expiry=_IDLE_S
            ),
        )  # fmt: skip
        # Not the queue of httpx2, which walks over all waiting requests whenever one is served.
        self._slots = asyncio.Semaphore(_CONNECTIONS)
        #: The codes by which contracts refuse an invalid transition.
        self.invalid = {contract.invalid_transition for contract in BUILT_IN.values()}

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def send(
        self,
        method: Literal["GET", "POST", "PUT", "DELETE"],
        path: str,
        body: str | None = None,
        read: Callable[[Any], T] = lambda body: body,
        *,
        about: int | None = None,
        params: Mapping[str, str] | None = None,
        key: UUID | None = None,
        wait_s: float = 0.0,
        traced: bool = False,
    ) -> T:
        """Send a request; returns what `read` makes of the response body, or raises its error, `about` this job.

        `key`: the Idempotency-Key. `wait_s`: seconds that the dispatcher may wait. `traced`: the request carries the
        trace of the running handler.
        """
        headers = {"X-Request-Id": uuid4().hex}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key is not None:
            headers["Idempotency-Key"] = str(key)
        if traced and (running := current.get()) is not None:
            headers |= {name: value for name, value in running.headers().items() if _fits_header(value)}
        try:
            async with self._slots:
                response = await self._client.request(
                    method, path, content=body and body.encode(), params=params, headers=headers,
                    timeout=httpx2.Timeout(READ_S + wait_s, connect=CONNECT_S),
                )  # fmt: skip
        except _NOT_SENT as error:
            raise CannotConnect(f"the dispatcher at {self.url} cannot be reached: {_describe(error)}") from None
        except (httpx2.HTTPError, OSError) as error:
            raise self._lost(f"did not answer {method} {path}: {_describe(error)}") from None
        try:
            content = json.loads(response.content)
            if response.is_success:
                return read(content)
            code, message = _envelope(content["error"])
            about, facts = _job_id(content["error"], about), _facts(content["error"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if response.is_redirect:
                location = response.headers.get("Location", "nowhere")
                raise CannotConnect(
                    f"the dispatcher at {self.url} redirects to {location}. Next: give that address"
                ) from None
            status, why = response.status_code, _describe(error)
            raise self._lost(
                f"answered {method} {path} with {status} and a body that no dispatcher sends ({why})"
            ) from None
        raise self._error(response.status_code, code, message, about, facts)

    async def batch(
        self,
        path: str,
        name: str,
        items: Sequence[str],
        read: Callable[[int, Any], Any],
        *,
        answers: str = "answers",
        about: Sequence[int] | None = None,
        keyed: bool = False,
    ) -> list[Any]:
        """Send items under this name; for each the answer as `read` returns it, or its error, in order.

        After the first part is done, an error of a later part is the answer to the items of that part.
        `keyed`: each item has an idempotency key, so a part whose answer was lost is sent again.
        """

        def read_part(part: Sequence[int], content: Any) -> list[Any]:
            return [
                self._item_error(one["error"], about[n] if about else None) if "error" in one else read(n, one)
                for n, one in zip(part, content[answers], strict=True)
            ]

        results: list[Any] = []
        for part in split_items(items):
            body = f'{{"{name}":[{",".join(items[n] for n in part)}]}}'
            send = partial(self.send, "POST", path, body, partial(read_part, part))
            try:
                results += await (repeat_if_lost(send) if keyed else send())
            except TenureError as error:
                if not results:
                    raise
                results += [error] * len(part)
        return results

    def _item_error(self, error: Mapping[str, Any], about: int | None) -> TenureError:
        """The error in the place of one item's answer."""
        code, message = _envelope(error)
        return error_from_code(code, message, _job_id(error, about), invalid=self.invalid)

    def _error(self, status: int, code: str, message: str, about: int | None, facts: Mapping[str, Any]) -> TenureError:
        if status == 401:
            reason = message.partition(" Next: ")[0]
            return NotPermitted(f"{reason} Next: give the worker or App an API key, as --key or TENURE_KEY", code=code)
        if status == 403:
            return NotPermitted(message, code=code)
        if status == 408:  # the request did not arrive
            return CannotConnect(f"the dispatcher at {self.url} did not receive the whole request: {message}")
        error = error_from_code(code, message, about, invalid=self.invalid, facts=facts)
        if status < 500 or (status == 503 and isinstance(error, _RAISED_UNCHANGED)):
            return error
        return self._lost(f"answered {status} {code}: {message}")

    def _lost(self, what: str) -> ConnectionLost:
        return ConnectionLost(
            f"the dispatcher at {self.url} {what.rstrip('.')}. It may or may not have been done. "
            "Next: repeat it with the same key"
        )


async def repeat_if_lost(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call that is safe to repeat again while its answer is lost: 6 attempts, a few seconds."""
    return await retry(call, (ConnectionLost,), after_lost_answer=(CannotConnect, Unavailable), attempts=_TRIES)


def split_items(items: Sequence[str], most: int = _MAX_ITEMS) -> Iterator[range]:
    """The places of the items of each request; at most so many in one."""
    first, weight = 0, 0
    for n, item in enumerate(items):
        size = len(item) if item.isascii() else len(item.encode())
        if n > first and (n - first == most or weight + size > _MAX_REQUEST_BYTES):
            yield range(first, n)
            first, weight = n, 0
        weight += size
    if first < len(items):
        yield range(first, len(items))


def _envelope(error: Mapping[str, Any]) -> tuple[str, str]:
    """The code and the message of an error, with its hint."""
    hint = error.get("hint")
    return str(error["code"]), f"{error['message']}. Next: {hint}" if hint else str(error["message"])


def _job_id(error: Mapping[str, Any], about: int | None) -> int | None:
    """The job that an error is about: the one that it names, else that of the call."""
    return about if error.get("job_id") is None else int(error["job_id"])


def _facts(error: Mapping[str, Any]) -> dict[str, Any]:
    """What an error says beside its message: the flow and the node of a job that waits."""
    flow_id = error.get("flow_id")
    return {} if flow_id is None else {"flow_id": int(flow_id), "node": str(error["node"])}


def _describe(error: BaseException) -> str:
    """The class and the text of an error."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _fits_header(value: str) -> bool:
    """Whether a trace id, which may be any text, can stand in a header."""
    return value.isascii() and value.isprintable()
