"""Every page of the dashboard: its path, its template, what it reads, and its place in the menu."""

from __future__ import annotations

from typing import Final

from tenure.dashboard.page import PageRoute
from tenure.dashboard.pages import contracts, flows, health, jobs, letters, overview, queues
from tenure.dashboard.pages import operations as many

_JOBS, _LETTERS, _SCHEDULES, _CONTRACTS = (
    "/api/v1/jobs", "/api/v1/dlq/items", "/api/v1/schedules", "/api/v1/contracts",
)  # fmt: skip
_FLOWS, _DATASETS, _OPERATIONS = "/api/v1/flows", "/api/v1/datasets", "/api/v1/operations"

PAGES: Final = (
    PageRoute("/", "overview.html", overview.overview, "Overview", _JOBS, "Overview", "o"),
    PageRoute("/jobs", "jobs.html", jobs.job_list, "Jobs", _JOBS, "Jobs", "j"),
    PageRoute("/jobs/{id}", "job.html", jobs.job, "Job", f"{_JOBS}/{{job_id}}"),
    PageRoute("/dead-letters", "dead_letters.html", letters.letter_list, "Dead letters", _LETTERS, "Dead letters", "d"),
    PageRoute("/dead-letters/{id}", "dead_letter.html", letters.letter, "Dead letter", f"{_LETTERS}/{{letter_id}}"),
    PageRoute("/causes/{id}", "cause.html", letters.group, "Cause", "/api/v1/dlq/groups/{group}"),
    PageRoute("/operations", "operations.html", many.operation_list, "Operations", _OPERATIONS, "Operations", "x"),
    PageRoute("/operations/{id}", "operation.html", many.operation, "Operation", f"{_OPERATIONS}/{{operation_id}}"),
    PageRoute("/queues", "queues.html", queues.queue_list, "Queues", "/api/v1/queues", "Queues", "q"),
    PageRoute("/workers", "workers.html", queues.worker_list, "Workers", "/api/v1/workers", "Workers", "w"),
    PageRoute("/schedules", "schedules.html", queues.schedule_list, "Schedules", _SCHEDULES, "Schedules", "s"),
    PageRoute("/schedules/{name}", "schedule.html", queues.schedule, "Schedule", f"{_SCHEDULES}/{{schedule}}"),
    PageRoute("/flows", "flows.html", flows.flow_list, "Flows", _FLOWS, "Flows", "f"),
    PageRoute("/flows/{id}", "flow.html", flows.flow, "Flow", f"{_FLOWS}/{{flow_id}}"),
    PageRoute("/datasets", "datasets.html", flows.dataset_list, "Datasets", _DATASETS, "Datasets", "t"),
    PageRoute("/datasets/{name}", "dataset.html", flows.dataset, "Dataset", f"{_DATASETS}/{{dataset}}"),
    PageRoute("/contracts", "contracts.html", contracts.contract_list, "Contracts", _CONTRACTS, "Contracts", "c"),
    PageRoute("/contracts/{name}", "contract.html", contracts.contract, "Contract", f"{_CONTRACTS}/{{name}}"),
    PageRoute("/alarms", "alarms.html", health.alarm_list, "Alarms", "/api/v1/alarms", "Alarms", "l"),
    PageRoute("/health", "health.html", health.health, "Health", "/api/v1/doctor", "Health", "h", is_live=False),
)  # fmt: skip
