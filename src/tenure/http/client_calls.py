"""One request to a dispatcher, and its answer: what it told, the error that it told of, or that nobody knows.

    no connection, 3xx, 408, 503 E-CANNOT-CONNECT                nothing was done          CannotConnect
    503 E-UNAVAILABLE                                            nothing was done          Unavailable
    401, 403                                                     the key may not           NotPermitted
    404, 409, 413, 422 with a code                               it was refused            the class of the code
    reset, timeout, cut short, no JSON, another 5xx              it may have happened      ConnectionLost

A batch goes in as many requests as it takes; each job has its own answer, or its own error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar
from uuid import uuid4

import httpx2

from tenure import __version__
from tenure.context import current
from tenure.contracts import BUILT_IN
from tenure.errors import CannotConnect, ConnectionLost, NotPermitted, TenureError, Unavailable, retold
from tenure.patience import Patience

T = TypeVar("T")

#: Seconds to wait for a connection, and for the next part of an answer.
CONNECT_S, READ_S = 5.0, 30.0
#: An idle connection is not used again after so many seconds: dispatchers and what stands before them wait longer.
_IDLE_S = 30.0
#: So many jobs, and about so many bytes, go in one request.
_LARGEST, _HEAVIEST = 1_000, 1_000_000
#: How often a call is made whose answer was lost, before its caller is told so.
_TRIES = 6
#: Before a byte of the request was sent.
_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_TOLD_AS_THEY_ARE: Final = (CannotConnect, Unavailable, ConnectionLost)


class Calls:
    """Connections to one dispatcher, for one event loop; so many requests at a time, the others wait."""

    def __init__(self, url: str, key: str | None, *, connections: int) -> None:
        self.url = url
        headers = {"User-Agent": f"tenure/{__version__}", "Accept": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self._client = httpx2.AsyncClient(
            base_url=url, headers=headers, timeout=httpx2.Timeout(READ_S, connect=CONNECT_S),
            limits=httpx2.Limits(
                max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=_IDLE_S
            ),
        )  # fmt: skip
        # Not the client's own queue, which looks at everybody who waits whenever one is served.
        self._turns = asyncio.Semaphore(connections)
        #: The codes of contracts for a hop that they do not have.
        self.invalid = {contract.invalid_transition for contract in BUILT_IN.values()}

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def ask(
        self,
        method: Literal["GET", "POST", "PUT"],
        path: str,
        body: str | None = None,
        read: Callable[[Any], T] = lambda told: told,
        *,
        about: int | None = None,
        params: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        traced: bool = False,
    ) -> T:
        """Send a request; what `read` makes of its answer, or the error that it tells of, `about` this job.

        `wait_s`: the dispatcher may take so long to answer. `traced`: it is the running handler's own request.
        """
        headers = {"X-Request-Id": uuid4().hex}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if traced and (running := current.get()) is not None:
            headers |= {name: value for name, value in running.headers().items() if _is_sane(value)}
        try:
            async with self._turns:
                answer = await self._client.request(
                    method, path, content=body and body.encode(), params=params, headers=headers,
                    timeout=httpx2.Timeout(READ_S + wait_s, connect=CONNECT_S),
                )  # fmt: skip
        except _NOT_SENT as error:
            raise CannotConnect(f"the dispatcher at {self.url} cannot be reached: {_said(error)}") from None
        except (httpx2.HTTPError, OSError) as error:
            raise self._lost(f"did not answer {method} {path}: {_said(error)}") from None
        try:
            told = json.loads(answer.content)
            if answer.is_success:
                return read(told)
            code, message = _envelope(told["error"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if answer.is_redirect:
                where = answer.headers.get("Location", "nowhere")
                raise CannotConnect(
                    f"the dispatcher at {self.url} sends us to {where}. Next: give that address"
                ) from None
            raise self._lost(
                f"answered {method} {path} with {answer.status_code} and what no dispatcher says ({_said(error)})"
            ) from None
        raise self._error(answer.status_code, code, message, about)

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
        """Send these under this name; to each the answer as `read` understands it, or its error, in their order.

        Once something of it is done, what goes wrong with the rest is the answer to that, and not to the whole.
        `keyed`: each has a key, so what was lost is sent again.
        """
        told: list[Any] = []
        for part in _parts(items):
            body = f'{{"{name}":[{",".join(items[n] for n in part)}]}}'

            def each(answer: Any, part: Sequence[int] = part) -> list[Any]:
                return [
                    self._told(one["error"], about[n] if about else None) if "error" in one else read(n, one)
                    for n, one in zip(part, answer[answers], strict=True)
                ]

            async def send(body: str = body, each: Callable[[Any], list[Any]] = each) -> list[Any]:
                return await self.ask("POST", path, body, each)

            try:
                told += await (surely(send) if keyed else send())
            except TenureError as error:
                if not told:
                    raise
                told += [error] * len(part)
        return told

    def _told(self, error: Mapping[str, Any], about: int | None) -> TenureError:
        """The error that stands in the place of one job's answer."""
        code, message = _envelope(error)
        return retold(code, message, about, invalid=self.invalid)

    def _error(self, status: int, code: str, message: str, about: int | None) -> TenureError:
        if status == 401:
            said = message.partition(" Next: ")[0]
            return NotPermitted(f"{said} Next: give the worker or App a key of it, as --key or TENURE_KEY", code=code)
        if status == 403:
            return NotPermitted(message, code=code)
        if status == 408:  # the request did not arrive
            return CannotConnect(f"the dispatcher at {self.url} did not hear all of it: {message}")
        error = retold(code, message, about, invalid=self.invalid)
        if status < 500 or (status == 503 and isinstance(error, _TOLD_AS_THEY_ARE)):
            return error
        return self._lost(f"answered {status} {code}: {message}")

    def _lost(self, what: str) -> ConnectionLost:
        return ConnectionLost(
            f"the dispatcher at {self.url} {what.rstrip('.')}. It may or may not have been done. "
            "Next: repeat it with the same key"
        )


async def surely(say: Callable[[], Awaitable[T]]) -> T:
    """Say what may be said twice again while its answer is lost, some seconds long."""
    patience, lost = Patience(), None
    for _ in range(_TRIES):
        try:
            return await say()
        except ConnectionLost as error:
            lost = error
        except (CannotConnect, Unavailable):
            if lost is None:  # nothing was done
                raise
        await patience.wait()
    assert lost is not None
    raise lost


def _parts(items: Sequence[str]) -> Iterator[range]:
    """The places of those that go together."""
    first, weight = 0, 0
    for n, item in enumerate(items):
        heavy = len(item) if item.isascii() else len(item.encode())
        if n > first and (n - first == _LARGEST or weight + heavy > _HEAVIEST):
            yield range(first, n)
            first, weight = n, 0
        weight += heavy
    if first < len(items):
        yield range(first, len(items))


def _envelope(error: Mapping[str, Any]) -> tuple[str, str]:
    """The code and the message of an error, with what to do next."""
    hint = error.get("hint")
    return str(error["code"]), f"{error['message']}. Next: {hint}" if hint else str(error["message"])


def _said(error: BaseException) -> str:
    """What an error says, and of which kind it is where that is nothing."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _is_sane(value: str) -> bool:
    """Whether a job's trace id, which may be any text, can stand in a header."""
    return value.isascii() and value.isprintable()
