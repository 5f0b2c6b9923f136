"""Every route of the dispatcher: its method and path, its function, who may call it, and what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from pydantic import BaseModel

from tenure.http.models import datasets as dataset_models
from tenure.http.models import flows as flow_models
from tenure.http.models import schedules as schedule_models
from tenure.http.models.outcomes import Move, Note
from tenure.http.route import Route
from tenure.http.routes import (
    alarms,
    claims,
    contracts,
    datasets,
    dead_letters,
    flows,
    gate_b2_run,
    health,
    holding,
    jobs,
    metrics,
    operations,
    operators,
    schedules,
    tasks,
)
from tenure.jobs.holder_call import HOLDER_VERBS

_ANY_KEY: tuple[str, ...] = ()
_ENQUEUE, _WORK, _OPERATE, _APPROVE = ("enqueue",), ("work",), ("operate",), ("approve",)
_READ_JOBS, _READ_LETTERS = ("read", "enqueue", "work", "operate"), ("read", "operate", "approve")
_READ, _DECIDE = ("read", "operate"), ("operate", "approve")
_JOB, _LETTER, _QUEUES = "/api/v1/jobs/{job_id}", "/api/v1/dlq/items/{letter_id}", "/api/v1/queues"
_CONTRACT, _SCHEDULES = "/api/v1/contracts/{name}", "/api/v1/schedules"
_SCHEDULE = f"{_SCHEDULES}/{{schedule}}"
_FLOW = "/api/v1/flows/{flow_id}"
_WORK_OR_OPERATE = ("work", "operate")
_DATASETS, _GENERATIONS = "/api/v1/datasets", "/api/v1/dataset-generations"
_DATASET, _GENERATION = f"{_DATASETS}/{{dataset}}", f"{_GENERATIONS}/{{generation_id}}"
_SUBSCRIPTIONS = "/api/v1/dataset-subscriptions"
_OPERATIONS = "/api/v1/operations"
_OPERATION = f"{_OPERATIONS}/{{operation_id}}"
_LEASE_TOKEN_HEADER = {
    "name": "Idempotency-Key", "in": "header", "required": False, "schema": {"type": "string", "format": "uuid"},
    "description": "A UUIDv4 that becomes the lease token: a repeated call gets the same answer.",
}  # fmt: skip

_JOBS = (
    Route(
        "POST", "/api/v1/jobs", jobs.enqueue_job, _ENQUEUE, jobs.EnqueuedJob, errors=(404, 409),
        other_answers={201: jobs.EnqueuedJob},
    ),
    Route("POST", "/api/v1/jobs/batch", jobs.enqueue_jobs, _ENQUEUE, jobs.EnqueuedJobs, errors=(409,)),
    Route("GET", "/api/v1/jobs", jobs.list_jobs, _READ, jobs.JobPage),
    Route("GET", "/api/v1/jobs/count", jobs.count_jobs, _READ, jobs.JobCounts),
    Route("GET", _JOB, jobs.show_job, _READ_JOBS, jobs.Job, errors=(409,)),
    Route("GET", f"{_JOB}/events", jobs.list_job_events, _READ_JOBS, jobs.JobEvents, errors=(409,)),
    Route("GET", f"{_JOB}/why", jobs.why, _READ_JOBS, jobs.WhyAnswer),
)  # fmt: skip
_CLAIMS = (
    Route("POST", "/api/v1/claims", claims.claim_jobs, _WORK, claims.ClaimedJobs, errors=(409,)),
    Route("PUT", "/api/v1/workers", claims.report_worker, _WORK, claims.WorkerName),
    Route("POST", "/api/v1/workers/leave", claims.remove_worker, _WORK, claims.WorkerName),
    Route("POST", "/api/v1/due", claims.list_due_contracts, _WORK, claims.DueContracts),
    Route("GET", "/api/v1/wakeups", claims.wait_for_wakeups, _WORK, claims.Wakeups),
    Route("PUT", "/api/v1/types", claims.declare_types, _WORK, claims.TypesDeclared),
)
#: The routes of the holder's verbs: operation id, body, answer, and what the route does.
_VERBS: Mapping[str, tuple[str, type[BaseModel], type[BaseModel], str]] = {
    "start": ("start_job", holding.KeyedProof, holding.StartAnswer,
              "Say that the handler begins; nothing under a contract without that step."),
    "heartbeat": ("heartbeat_job", holding.KeyedProof, Note,
                  "Say that the work goes on. The answer says until when the job is held, and whether to stop."),
    "progress": ("save_progress", holding.Saved, Note, "Show how far the work is."),
    "checkpoint": ("save_checkpoint", holding.Saved, Note, "Save what the next attempt shall begin with."),
    "succeed": ("succeed_job", holding.Succeed, Move, "End a job well, with its result."),
    "fail": ("fail_job", holding.Fail, Move,
             "Report a failure: facts only. The answer says whether and when it runs again, or which effects to undo "
             "first."),
    "snooze": ("snooze_job", holding.Snooze, Move, "Put a job off, at no cost to its budget."),
    "hand_back": ("hand_back_job", holding.HandBack, holding.HandBackAnswer,
                  "Give a job back unfinished, its contract's way."),
    "cancelled": ("end_cancelled_job", holding.Cancelled, Move,
                  "End a job as cancelled, by its holder: because it was asked to stop, or chose to."),
    "compensated": ("end_compensation", holding.KeyedProof, Move,
                    "The effects that a failure named are undone: the job ends as it failed."),
    "compensation_failed": ("fail_compensation", holding.Fail, Move,
                            "The effects could not be undone: the job is set aside for a person to look at."),
}  # fmt: skip
#: The routes of batches, by the last part of their path: the same fields.
_BATCHES: Mapping[str, tuple[str, type[BaseModel], type[BaseModel], str]] = {
    "finishes": ("finish_jobs", holding.FinishMany, holding.FinishAnswers,
                 "End the holds of many jobs; each is answered or refused by itself, in the order asked."),
    "starts": ("start_jobs", holding.StartMany, holding.StartAnswers,
               "Say of many jobs that their handlers begin."),
    "heartbeats": ("heartbeat_jobs", holding.HeartbeatMany, holding.HeartbeatAnswers,
                   "Say of many jobs that the work goes on."),
}  # fmt: skip


def _holding() -> Iterator[Route]:
    for name, verb in HOLDER_VERBS.items():
        operation, body, answer, what = _VERBS[name]
        function = partial(holding.report, name)
        yield Route("POST", f"{_JOB}/{verb.path}", function, _WORK, answer, body, name=operation, description=what)
    for name, (operation, many, answers, what) in _BATCHES.items():
        yield Route(
            "POST", f"/api/v1/{name}", holding.report_many, _WORK, answers, many, errors=(409,), name=operation,
            description=what,
        )  # fmt: skip
    yield Route("POST", f"{_JOB}/effect", holding.record_effect, _WORK, holding.EffectOnRecord)
    yield Route("POST", f"{_JOB}/undone", holding.record_undone, _WORK, holding.EffectUndone)
    yield Route(
        "GET", f"{_JOB}/effects", holding.list_effects, ("read", "work", "operate"), holding.EffectList, errors=(409,)
    )


_OPERATORS = (
    Route("POST", f"{_JOB}/cancel", operators.cancel_job, _OPERATE, operators.CancelAnswer),
    Route("POST", f"{_JOB}/transition", operators.move_job, _OPERATE, operators.TransitionAnswer),
    Route("POST", f"{_JOB}/move", operators.move_job_to_queue, _OPERATE, operators.QueueOfJob),
    Route("POST", f"{_JOB}/retry-now", operators.retry_job_now, _OPERATE, operators.JobDue),
    Route("POST", f"{_JOB}/dead-letter", operators.dead_letter_job, _OPERATE, Move),
    Route("POST", f"{_JOB}/requeue", operators.requeue_job, _OPERATE, operators.JobRequeued),
    Route("GET", "/api/v1/contracts", contracts.list_contracts, _ANY_KEY, contracts.ContractList),
    Route("GET", _CONTRACT, contracts.show_contract, _ANY_KEY, contracts.Contract),
    Route("GET", f"{_CONTRACT}/activity", contracts.show_activity, _READ, contracts.ContractActivity),
    Route("GET", f"{_CONTRACT}/verification", contracts.verify_contract, _READ, contracts.ContractVerification),
    Route("GET", _QUEUES, operators.list_queues, _READ, operators.QueueList),
    Route("POST", f"{_QUEUES}/pause", operators.pause_queue, _OPERATE, operators.QueueChanged),
    Route("POST", f"{_QUEUES}/resume", operators.resume_queue, _OPERATE, operators.QueueChanged),
    Route("GET", "/api/v1/workers", operators.list_workers, _READ, operators.WorkerList),
    Route("GET", "/api/v1/doctor", health.doctor, _READ, health.Examination),
)
_SCHEDULE_ROUTES = (
    Route("PUT", _SCHEDULES, schedules.declare_schedules, _WORK, schedule_models.SchedulesDeclared),
    Route("GET", _SCHEDULES, schedules.list_schedules, _READ, schedule_models.ScheduleList),
    Route("GET", _SCHEDULE, schedules.show_schedule, _READ, schedule_models.ScheduleDetails),
    Route("PUT", _SCHEDULE, schedules.put_schedule, _OPERATE, schedule_models.Schedule, errors=(409,)),
    Route("DELETE", _SCHEDULE, schedules.delete_schedule, _OPERATE, schedule_models.ScheduleDeleted, errors=(409,)),
    Route("GET", f"{_SCHEDULE}/next", schedules.list_next_times, _READ, schedule_models.NextTimes),
    Route("POST", f"{_SCHEDULE}/pause", schedules.pause_schedule, _OPERATE, schedule_models.Schedule),
    Route("POST", f"{_SCHEDULE}/resume", schedules.resume_schedule, _OPERATE, schedule_models.ScheduleResumed),
    Route("POST", f"{_SCHEDULE}/run", schedules.run_schedule, _OPERATE, schedule_models.Fire),
)
_FLOWS = (
    Route(
        "POST", "/api/v1/flows", flows.create_flow, _ENQUEUE, flow_models.FlowCreated, errors=(404, 409),
        other_answers={201: flow_models.FlowCreated},
    ),
    Route("GET", "/api/v1/flows", flows.list_flows, _READ, flow_models.FlowList),
    Route("GET", _FLOW, flows.show_flow, _READ_JOBS, flow_models.FlowDetails),
    Route(
        "GET", f"{_FLOW}/picture", flows.draw_flow, _READ_JOBS, flow_models.FlowPicture, media_type="image/svg+xml"
    ),
    Route("POST", f"{_FLOW}/cancel", flows.cancel_flow, _OPERATE, flow_models.FlowCancelled),
    Route("POST", f"{_FLOW}/resume", flows.resume_flow, _OPERATE, flow_models.FlowResumed),
)  # fmt: skip
_DATASET_ROUTES = (
    Route("GET", _DATASETS, datasets.list_datasets, _READ_JOBS, dataset_models.DatasetPage),
    Route("GET", _DATASET, datasets.show_dataset, _READ_JOBS, dataset_models.DatasetDetails),
    Route("PUT", _DATASET, datasets.declare_dataset, _WORK_OR_OPERATE, dataset_models.Generation),
    Route("GET", f"{_DATASET}/generations", datasets.list_generations, _READ_JOBS, dataset_models.GenerationPage),
    Route("POST", f"{_DATASET}/generations", datasets.make_generation, _WORK_OR_OPERATE, dataset_models.Generation),
    Route("GET", _GENERATIONS, datasets.list_flow_generations, _READ_JOBS, dataset_models.GenerationSet),
    Route(
        "POST", f"{_GENERATIONS}/current", datasets.read_current, _READ_JOBS, dataset_models.GenerationSet,
        errors=(404,),
    ),
    Route("GET", _GENERATION, datasets.show_generation, _READ_JOBS, dataset_models.Generation),
    Route("GET", f"{_GENERATION}/rows", datasets.list_rows, _READ_JOBS, dataset_models.RowPage, errors=(409,)),
    Route("GET", f"{_GENERATION}/pointers", datasets.list_pointers, _READ_JOBS, dataset_models.PointerPage),
    Route(
        "POST", "/api/v1/dataset-cutovers", datasets.cut_over, _WORK_OR_OPERATE, dataset_models.Switch,
        errors=(404, 409),
    ),
    Route(
        "POST", "/api/v1/dataset-rollbacks", datasets.roll_back, _OPERATE, dataset_models.RolledBackSet,
        errors=(404, 409),
    ),
    Route("GET", "/api/v1/dataset-switches", datasets.list_switches, _READ_JOBS, dataset_models.SwitchPage),
    Route("GET", _SUBSCRIPTIONS, datasets.list_subscriptions, _READ_JOBS, dataset_models.SubscriptionList),
    Route("PUT", _SUBSCRIPTIONS, datasets.subscribe, _WORK, dataset_models.Subscribed, errors=(404,)),
    Route("POST", f"{_SUBSCRIPTIONS}/end", datasets.unsubscribe, _WORK_OR_OPERATE, dataset_models.Unsubscribed),
    Route("GET", f"{_JOB}/datasets", datasets.list_job_datasets, _READ_JOBS, dataset_models.JobDatasets),
    Route("POST", f"{_JOB}/stage", datasets.stage_rows, _WORK, dataset_models.StagedRows),
)  # fmt: skip
_ALARMS = (
    Route("GET", "/api/v1/alarms", alarms.list_alarms, _READ, alarms.AlarmList),
    Route("POST", "/api/v1/alarms/mute", alarms.mute_alarms, _OPERATE, alarms.AlarmsMuted),
    Route("POST", "/api/v1/alarms/unmute", alarms.unmute_alarms, _OPERATE, alarms.AlarmsUnmuted),
    Route("POST", "/api/v1/alarms/test", alarms.test_alarms, _OPERATE, alarms.AlarmTested),
)
_LETTERS = (
    Route("GET", "/api/v1/dlq/items", dead_letters.list_letters, _READ_LETTERS, dead_letters.LetterPage),
    Route("GET", "/api/v1/dlq/groups", dead_letters.list_groups, _READ_LETTERS, dead_letters.GroupList),
    Route("GET", "/api/v1/dlq/groups/{group}", dead_letters.show_group, _READ_LETTERS, dead_letters.Group),
    Route("GET", _LETTER, dead_letters.show_letter, _READ_LETTERS, dead_letters.Letter),
    Route("POST", f"{_LETTER}/requeue", dead_letters.requeue_letter, _OPERATE, dead_letters.LetterRequeued),
    Route("POST", f"{_LETTER}/discard", dead_letters.discard_letter, _APPROVE, dead_letters.Letter),
    Route("POST", f"{_LETTER}/approve", dead_letters.approve_letter, _APPROVE, dead_letters.Letter),
)
_OPERATION_ROUTES = (
    Route(
        "POST", _OPERATIONS, operations.preview_operation, _DECIDE, operations.Operation,
        other_answers={201: operations.Operation},
    ),
    Route("GET", _OPERATIONS, operations.list_operations, _READ_LETTERS, operations.OperationList),
    Route("GET", _OPERATION, operations.show_operation, _READ_LETTERS, operations.ShownOperation),
    Route("GET", f"{_OPERATION}/items", operations.list_operation_items, _READ_LETTERS, operations.OperationItems),
    Route("POST", f"{_OPERATION}/collect", operations.collect_operation, _DECIDE, operations.Operation),
    Route("POST", f"{_OPERATION}/start", operations.start_operation, _DECIDE, operations.Operation),
    Route("POST", f"{_OPERATION}/abort", operations.abort_operation, _DECIDE, operations.Operation),
    Route("POST", f"{_OPERATION}/resume", operations.resume_operation, _DECIDE, operations.Operation),
)  # fmt: skip
_TASKS = (
    Route(
        "POST", "/internal/task-claim", tasks.task_claim, _WORK, tasks.TaskClaimAnswer,
        header=_LEASE_TOKEN_HEADER,
    ),
    Route("POST", "/internal/heartbeat", tasks.task_heartbeat, _WORK, tasks.TaskBeat, errors=(404, 409)),
    Route("POST", "/internal/task-complete", tasks.task_complete, _WORK, tasks.TaskCompleted, errors=(404, 409)),
)  # fmt: skip
_RUN = (
    Route("POST", "/api/v1/internal/jobs/{job_id}/run", gate_b2_run.run_job, _OPERATE, gate_b2_run.RunAnswer),
)  # fmt: skip
_HEALTH = (
    Route("GET", "/metrics", metrics.show_metrics, _READ, metrics.Metrics, media_type="text/plain", errors=(501,)),
    Route("GET", "/api/v1/stats", metrics.show_stats, _READ, metrics.Statistics),
    Route("GET", "/openapi.json", health.openapi, _ANY_KEY, None),
    Route("GET", "/healthz", health.healthz, None, health.Healthy),
    Route("GET", "/readyz", health.readyz, None, health.Healthy, other_answers={503: health.NotReady}),
)
_BY_TAG: Mapping[str, tuple[Route, ...]] = {
    "jobs": _JOBS, "claims": _CLAIMS, "holding": tuple(_holding()), "operators": _OPERATORS,
    "schedules": _SCHEDULE_ROUTES, "alarms": _ALARMS, "flows": _FLOWS, "datasets": _DATASET_ROUTES,
    "dead letters": _LETTERS, "operations": _OPERATION_ROUTES,
    "tasks (document 001)": _TASKS, "run (document 004)": _RUN, "probes": _HEALTH,
}  # fmt: skip

ROUTES = tuple(replace(route, tag=tag) for tag, routes in _BY_TAG.items() for route in routes)
