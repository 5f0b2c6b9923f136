"""Routes for contracts: their declarations, what their jobs do, and whether every history keeps the promises."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from tenure.contracts.declaration import Contract as Declared
from tenure.errors import UnknownContract
from tenure.http import response
from tenure.http.application import ApiRequest
from tenure.http.error_response import ContractNotFound
from tenure.http.models.fields import described
from tenure.http.routes.metrics import StatsQuery


class Contract(BaseModel):
    """A declared lifecycle."""

    name: str = described("Its name.", examples=["standard"])
    version: str = described("Its version.", examples=["1"])
    title: str = described("A one-line description.", examples=["Tenure's own lifecycle"])
    declaration: dict[str, Any] = described(
        "The whole declaration, with this dispatcher's numbers.", examples=[{"states": {"queued": ["ready"]}}]
    )


class ContractList(BaseModel):
    """The registered contracts."""

    contracts: list[Contract] = described("The contracts, each in its newest version.")


class LiveInState(BaseModel):
    """The live jobs of a contract in a state."""

    state: str = described("The state.", examples=["queued"])
    jobs: int = described("How many jobs are in it now.")


class ContractMove(BaseModel):
    """Equal moves of a contract's jobs."""

    trigger: str = described("What moved them.", examples=["claim"])
    from_state: str | None = described("The state before; null: the job was made.", examples=["queued"])
    to_state: str = described("The state after.", examples=["running"])
    moves: int = described("How many.")


class ContractActivity(BaseModel):
    """What the jobs of a contract do."""

    name: str = described("The contract.", examples=["standard"])
    since_seconds: float = described("From this many seconds ago until now.")
    live: list[LiveInState] = described("The states in which jobs live now.")
    moves: list[ContractMove] = described("The moves of that time, from the counts; a path of several hops is several.")


class BrokenPromise(BaseModel):
    """A promise that a contract breaks, with the shortest history that shows it."""

    invariant: str = described("The promise.", examples=["a fence"])
    what: str = described("What happens.", examples=["the job stands in running, and nothing can end it"])
    story: list[str] = described("The history, step by step.", examples=[["worker A claims"]])


class Exploration(BaseModel):
    """What `tenure contracts verify` reports about a contract."""

    contract: str = described("The contract.", examples=["standard"])
    workers: int = described("Workers in the model.")
    runs: int = described("The largest number of runs of a job.")
    depth: int = described("The bound in steps.")
    complete: bool = described("Whether every reachable state of the model was visited.")
    states: int = described("Reachable states of the model: a job, its workers, an operator, upkeep and time.")
    steps: int = described("Steps that were tried.")
    refused: int = described("Those of them that were refused.")
    histories: str = described("How many histories these are, as a number of any length.", examples=["7356289062"])
    held: list[str] = described("The promises that hold in all of them.", examples=[["a fence"]])
    unknown: list[str] = described("The promises that could not be decided.", examples=[["an end"]])
    broken: list[BrokenPromise] = described("The promises that are broken.")


class ContractVerification(BaseModel):
    """Whether the reachable histories of a contract keep the promises of every contract."""

    name: str = described("The contract.", examples=["standard"])
    version: str = described("Its version.", examples=["1"])
    state: Literal["running", "held", "broken", "unknown"] = described(
        "running: ask again; held: every promise holds; broken: one does not; unknown: not decided."
    )
    why: str | None = described("Why it is not decided; null: it is.")
    report: Exploration | None = described("The result; null: there is none.")


async def list_contracts(request: ApiRequest) -> dict[str, Any]:
    """The registered contracts, each in its newest version, with this dispatcher's numbers."""
    store = request.calls.store
    contracts = [await store.contract(name) for name in dict.fromkeys(await store.contracts())]
    return {"contracts": [response.contract(contract) for contract in contracts]}


async def show_contract(request: ApiRequest) -> dict[str, Any]:
    """One contract, as it is declared."""
    return response.contract(await _find(request))


async def show_activity(request: ApiRequest, query: StatsQuery) -> dict[str, Any]:
    """What the jobs of a contract do: where they are and how often they moved. A key of a tenant sees its own."""
    contract = await _find(request)
    counts, tenant = request.calls.store.counts, request.caller.tenant
    live, moves = await counts.activity(contract.name, query.since_seconds, tenant=tenant)
    return {
        "name": contract.name, "since_seconds": query.since_seconds,
        "live": [{"state": state, "jobs": jobs} for state, jobs in live.items()],
        "moves": [
            {"trigger": move.trigger, "from_state": move.from_state or None, "to_state": move.to_state,
             "moves": move.number}
            for move in moves
        ],
    }  # fmt: skip


async def verify_contract(request: ApiRequest) -> dict[str, Any]:
    """Explore every history of a contract. The dispatcher does it once for each version, in a process of its own."""
    contract = await _find(request)
    found = request.calls.verifications.get(contract)
    return {"name": contract.name, "version": contract.version, **found}


async def _find(request: ApiRequest) -> Declared:
    try:
        return await request.calls.store.contract(request.path_text)
    except UnknownContract as error:
        raise ContractNotFound(str(error)) from None
