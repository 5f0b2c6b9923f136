"""What the forms of pages do: each is one call of the API, with the rights of the person who sends the form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tenure.errors import BadInput
from tenure.jobs.operation import parse_change

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Action:
    """A form: the route that it calls, the body that it makes, and what the page says afterwards."""

    #: Method and path, as the table of routes has them.
    route: tuple[str, str]
    #: The body, made of the form's fields.
    body: Callable[[Form], dict[str, Any]]
    #: What the page says when the call succeeded; `{name}` is a field of the form or of the answer.
    done: str
    #: The page that is shown afterwards; empty: the page of the form. `{name}` as above.
    shows: str = ""
    #: What the page of the form says when the answer has a `total` of 0, and there is nothing to show.
    nothing: str = ""

    def request(self, form: Form) -> tuple[str, str, dict[str, Any]]:
        """The call of the API: method, path and body; refuses a form without the name that the path needs."""
        method, path = self.route
        before, placeholder, after = path.partition("{")
        if placeholder:
            name = form.get("id", "")
            if not name or "/" in name:
                raise BadInput("the form does not say what it is about. Next: open the page again")
            path = before + name + after.partition("}")[2]
        return method, path, self.body(form)

    def describe(self, form: Form, answer: Any) -> str:
        """What happened."""
        text = self.nothing if self._found_nothing(answer) else self.done
        return text.format_map(_facts(form, answer))

    def target(self, form: Form, answer: Any) -> str:
        """The page to show; empty: that of the form."""
        if self._found_nothing(answer):
            return ""
        return self.shows.format_map({name: quote(str(value)) for name, value in _facts(form, answer).items()})

    def _found_nothing(self, answer: Any) -> bool:
        return bool(self.nothing) and isinstance(answer, dict) and answer.get("total") == 0


def _facts(form: Form, answer: Any) -> dict[str, Any]:
    return {**(answer if isinstance(answer, dict) else {}), **form}


def _texts(*names: str) -> Callable[[Form], dict[str, Any]]:
    """A body of texts; an empty field of the form is left out."""
    return lambda form: {name: form[name].strip() for name in names if form.get(name, "").strip()}


def _nothing(form: Form) -> dict[str, Any]:
    return {}


def _payload(form: Form) -> dict[str, Any]:
    """Another payload for the new job; without the field it is as it was."""
    if "payload" not in form:
        return {}
    try:
        payload = json.loads(form["payload"], parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the payload is no JSON: {error}. Next: edit it again; nothing was done") from None
    if payload is None:
        raise BadInput("the payload is null. Next: write an object; nothing was done")
    return {"payload": payload}


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _cutover(form: Form) -> dict[str, Any]:
    number = form.get("generation", "")
    if not number.isdecimal() or len(number) > 18:
        raise BadInput(f"{number[:50]!r} is no number of a generation")
    return {"generations": {form.get("id", ""): int(number)}, **_texts("reason", "tenant_id")(form)}


def _mute(form: Form) -> dict[str, Any]:
    minutes = form.get("minutes", "")
    if not minutes.isdecimal() or len(minutes) > 9:
        raise BadInput(f"{minutes[:50]!r} is no number of minutes")
    return {"seconds": 60 * int(minutes), **_texts("kind", "reason")(form)}


def _rollback(form: Form) -> dict[str, Any]:
    names = [name.strip() for name in form.get("datasets", "").split(",") if name.strip()]
    return {"datasets": names, **_texts("reason", "tenant_id")(form)}


def _preview(form: Form) -> dict[str, Any]:
    changes = [parse_change(line.strip()) for line in form.get("changes", "").splitlines() if line.strip()]
    return {
        **_texts("kind", "verb", "q", "mode", "queue", "reason")(form), **({"changes": changes} if changes else {})
    }  # fmt: skip


def _speed(form: Form) -> dict[str, Any]:
    """The limit of speed, and who decides; empty: as fast as it goes, and the person of the key."""
    given = form.get("per_second", "").strip()
    try:
        speed = {"per_second": float(given)} if given else {}
    except ValueError:
        raise BadInput(f"{given[:50]!r} is no number of items each second") from None
    return {**speed, **_texts("person")(form)}


_JOB, _LETTER, _QUEUES, _SCHEDULE, _FLOW = (
    "/api/v1/jobs/{job_id}", "/api/v1/dlq/items/{letter_id}", "/api/v1/queues", "/api/v1/schedules/{schedule}",
    "/api/v1/flows/{flow_id}",
)  # fmt: skip
_OPERATION = "/api/v1/operations/{operation_id}"

ACTIONS: Final[Mapping[str, Action]] = {
    "cancel-job": Action(("POST", f"{_JOB}/cancel"), _texts("mode", "reason"), "Job {id}: the cancel is done."),
    "requeue-job": Action(
        ("POST", f"{_JOB}/requeue"), _payload, "Job {id} runs again as job {requeued_as}.", "/jobs/{requeued_as}"
    ),
    "retry-job": Action(("POST", f"{_JOB}/retry-now"), _texts("reason"), "Job {id} may run now."),
    "move-job": Action(("POST", f"{_JOB}/move"), _texts("queue", "reason"), "Job {id} is in queue {queue}."),
    "transition-job": Action(("POST", f"{_JOB}/transition"), _texts("to", "reason"), "Job {id} is {to} now."),
    "requeue-letter": Action(
        ("POST", f"{_LETTER}/requeue"), _payload, "Dead letter {dlq_id} runs again as job {job_id}.", "/jobs/{job_id}"
    ),
    "discard-letter": Action(
        ("POST", f"{_LETTER}/discard"), _texts("reason", "person"),
        "Dead letter {dlq_id} is {status}; {discard_asked_by} asked.",
    ),
    "approve-letter": Action(
        ("POST", f"{_LETTER}/approve"), _texts("person"),
        "Dead letter {dlq_id} is {status}; {discard_approved_by} approved.",
    ),
    "preview-operation": Action(
        ("POST", "/api/v1/operations"), _preview, "Nothing is done yet: look at the preview, then start it.",
        "/operations/{id}",
        "Nothing matches. {summary[run_again][count]} were run again already.",
    ),
    "collect-operation": Action(("POST", f"{_OPERATION}/collect"), _nothing, "The search went on."),
    "start-operation": Action(("POST", f"{_OPERATION}/start"), _speed, "Operation {id} is started."),
    "delete-preview": Action(
        ("POST", f"{_OPERATION}/abort"), _nothing, "The preview of operation {id} is deleted.", "/operations"
    ),
    "abort-operation": Action(("POST", f"{_OPERATION}/abort"), _nothing, "Operation {id} is stopped."),
    "resume-operation": Action(("POST", f"{_OPERATION}/resume"), _speed, "Operation {id} goes on."),
    "pause-queue": Action(("POST", f"{_QUEUES}/pause"), _texts("queue", "reason"), "Queue {queue} is paused."),
    "resume-queue": Action(("POST", f"{_QUEUES}/resume"), _texts("queue"), "Queue {queue} is resumed."),
    "cancel-flow": Action(("POST", f"{_FLOW}/cancel"), _texts("reason"), "Flow {id} is cancelled."),
    "resume-flow": Action(("POST", f"{_FLOW}/resume"), _nothing, "Flow {id} goes on."),
    "cut-over": Action(
        ("POST", "/api/v1/dataset-cutovers"), _cutover, "Generation {generation} of {id} is current."
    ),
    "roll-back": Action(("POST", "/api/v1/dataset-rollbacks"), _rollback, "The last cutover of {datasets} is undone."),
    "mute-alarms": Action(("POST", "/api/v1/alarms/mute"), _mute, "Alarms are muted for {minutes} minutes."),
    "test-alarms": Action(("POST", "/api/v1/alarms/test"), _nothing, "A test alarm was sent."),
    "pause-schedule": Action(
        ("POST", f"{_SCHEDULE}/pause"), _texts("application", "reason"), "Schedule {id} is paused."
    ),
    "resume-schedule": Action(("POST", f"{_SCHEDULE}/resume"), _texts("application"), "Schedule {id} is resumed."),
    "run-schedule": Action(("POST", f"{_SCHEDULE}/run"), _texts("application"), "Schedule {id} was run now."),
}  # fmt: skip
