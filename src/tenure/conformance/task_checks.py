"""What a server must do for workers of document 001, which get a task's id and claim that task."""

from __future__ import annotations

import uuid
from typing import Any, Final

from tenure.conformance.server_probe import TYPE, Check, Probe, require

_CLAIM, _HEARTBEAT, _COMPLETE = "/internal/task-claim", "/internal/heartbeat", "/internal/task-complete"


async def _claim(probe: Probe, task_id: str, **facts: Any) -> dict[str, Any]:
    """Claim the task; must win it."""
    found = await probe.call("POST", _CLAIM, {"task_id": task_id, "worker_id": "kit-1", "types": [TYPE], **facts})
    require(found["status"] == "Claimed", f"a task that is due could not be claimed: {found}")
    return {"task_id": task_id, "attempt": found["attempt"], "lease_token": found["lease_token"]}


async def _reason(probe: Probe, task_id: str, *, types: tuple[str, ...] = (TYPE,)) -> str:
    """Why the task cannot be claimed."""
    found = await probe.call("POST", _CLAIM, {"task_id": task_id, "worker_id": "kit-2", "types": types})
    return str(found.get("reason", found["status"]))


async def task_claim(probe: Probe) -> None:
    """A task is claimed once; the same Idempotency-Key again gets the same lease."""
    task_id = await probe.enqueue(contract="dispatcher", payload={"n": 1})
    reason = await _reason(probe, task_id, types=("someone-elses",))
    require(reason == "UnknownType", f"a worker that does not know the type got {reason}, and not UnknownType")
    key = {"Idempotency-Key": str(uuid.uuid4())}
    body = {"task_id": task_id, "worker_id": "kit-1", "types": [TYPE]}
    first = await probe.call("POST", _CLAIM, body, **key)
    require(first["status"] == "Claimed", f"a task that is due could not be claimed: {first}")
    require(first["lease_token"] == key["Idempotency-Key"], "the Idempotency-Key did not become the lease token")
    task = first["task"]
    require(task["config"] == {"n": 1} and task["operator"] == TYPE, f"the task is not as it was made: {task}")
    again = await probe.call("POST", _CLAIM, body, **key)
    is_same = (again.get("attempt"), again.get("lease_token")) == (first["attempt"], first["lease_token"])
    require(is_same, f"the same claim again got {again}")
    for wanted, asked in (("AlreadyRunning", task_id), ("NotFound", str(2**62)), ("NotFound", "no-number")):
        reason = await _reason(probe, asked)
        require(reason == wanted, f"the claim of task {asked} got {reason}, and not {wanted}")
    held = {"task_id": task_id, "attempt": first["attempt"], "lease_token": first["lease_token"]}
    await probe.call("POST", _COMPLETE, {**held, "status": "Completed"})


async def task_completion(probe: Probe) -> None:
    """Heartbeats and completions are fenced; a completion counts once."""
    task_id = await probe.enqueue(contract="dispatcher")
    held = await _claim(probe, task_id)
    beat = await probe.call("POST", _HEARTBEAT, held)
    require(beat["cancel_requested"] is False and beat["lease_expires_at"], f"a heartbeat was answered {beat}")
    ending = {"status": "Completed", "outputs": [{"rows": 17}]}
    for wrong in ({"lease_token": str(uuid.uuid4())}, {"attempt": held["attempt"] + 1}):
        what = f"it accepted a call with a wrong {next(iter(wrong))}"
        await probe.refused(_HEARTBEAT, {**held, **wrong}, 409, what=what)
        await probe.refused(_COMPLETE, {**held, **ending, **wrong}, 409, what=what)
    first = await probe.call("POST", _COMPLETE, {**held, **ending})
    require(first["status"] == "Completed", f"a completion was answered {first}")
    again = await probe.call("POST", _COMPLETE, {**held, **ending})
    require(again == first, f"the same completion again was answered {again}, and before {first}")
    other = {**held, **ending, "outputs": []}
    await probe.refused(_COMPLETE, other, 409, what="it accepted a second completion, with other outputs")
    shown = await probe.show(task_id)
    require(shown["result"] == [{"rows": 17}], f"the outputs of task {task_id} are {shown['result']}")
    reason = await _reason(probe, task_id)
    require(reason == "Completed", f"a claim of a completed task got {reason}")


async def task_failure(probe: Probe) -> None:
    """The dispatcher decides about a retry, and lets nobody claim the task before."""
    for attempts in (2, 1):
        task_id = await probe.enqueue(contract="dispatcher", max_attempts=attempts)
        held = await _claim(probe, task_id)
        failed = await probe.call("POST", _COMPLETE, {**held, "status": "Failed", "error_message": "no answer"})
        will_retry = failed["next_retry_at"] is not None
        require(failed["status"] == "Failed", f"a failed task is {failed['status']}")
        require(will_retry is (attempts > 1), f"after the first of {attempts} attempts the answer is {failed}")
        reason = await _reason(probe, task_id)
        require(reason == "Failed", f"a claim of a task that has failed, or waits for its retry, got {reason}")


TASK_CHECKS: Final = (
    Check("task-claim", "document 001: a task is claimed once, by its id", task_claim),
    Check("task-completion", "document 001: fenced heartbeats and completions", task_completion),
    Check("task-failure", "document 001: the dispatcher decides about a retry", task_failure),
)
