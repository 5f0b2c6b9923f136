"""Planted bugs in what people and programs see of flows: routes, the client of a dispatcher, commands, and why."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROUTES = "http/routes/flows.py"
_HTTP = "http/test_flows.py::test_"
_REMOTE = "app/test_flows_remote.py::test_"
_OWN_ALONE = f"{_HTTP}a_tenants_key_makes_sees_and_changes_its_own_flows_alone"

MUTANTS = (
    Mutant(
        "flow-shown-to-all-tenants",
        "A tenant's key sees and changes the flows of other tenants",
        _ROUTES,
        "if request.caller.tenant not in (None, flow.tenant_id):",
        "if False:",
        (_OWN_ALONE,),
    ),
    Mutant(
        "flow-list-of-all-tenants",
        "The list of flows has those of all tenants",
        _ROUTES,
        "tenant = request.caller.resolve_tenant(query.tenant_id)",
        "tenant = query.tenant_id",
        (_OWN_ALONE,),
    ),
    Mutant(
        "flow-for-another-tenant",
        "A tenant's key makes flows of other tenants",
        _ROUTES,
        "tenant = request.caller.resolve_tenant(body.tenant_id)",
        "tenant = body.tenant_id",
        (_OWN_ALONE,),
    ),
    Mutant(
        "waiting-node-shown-to-all-tenants",
        "The reason why a node waits is shown to other tenants",
        "http/application.py",
        "if waiting is not None and self.caller.tenant not in (None, waiting.tenant_id):",
        "if False:",
        (_OWN_ALONE,),
    ),
    Mutant(
        "nodes-shown-twice",
        "A page of nodes begins with the last one of the page before",
        "postgres/queries/list_flow_node_ids.sql",
        "id > :after::bigint",
        "id >= :after::bigint",
        (
            f"{_HTTP}flows_are_listed_and_shown_a_page_at_a_time",
            f"{_REMOTE}nodes_are_read_page_by_page_in_their_order",
        ),
    ),
    Mutant(
        "flow-sent-without-a-key",
        "A flow whose first request was lost is made a second time",
        "client/remote_flows.py",
        'keyed = flow if flow.key is not None else replace(flow, key=f"made:{uuid4().hex}")',
        "keyed = flow",
        (f"{_REMOTE}a_flow_whose_answer_was_lost_is_made_once",),
    ),
    Mutant(
        "lost-resume-is-repeated",
        "A resume whose answer was lost is made a second time",
        "client/remote_flows.py",
        'return await self._requests.send("POST", path, body, resumed_from_json, wait_s=_LONG_S, traced=True)',
        "return await repeat_if_lost(\n"
        '            lambda: self._requests.send("POST", path, body, resumed_from_json, wait_s=_LONG_S, traced=True)\n'
        "        )",
        (f"{_REMOTE}a_resume_whose_answer_was_lost_is_not_repeated",),
    ),
    Mutant(
        "members-without-inputs",
        "The task of a mapped node's job does not name the nodes whose results it has",
        "postgres/queries/read_task_of_flow.sql",
        "jsonb_each(coalesce(whole.inputs, node.inputs))",
        "jsonb_each(node.inputs)",
        (f"{_HTTP}workers_of_document_001_run_a_flow_and_are_told_its_names",),
    ),
    Mutant(
        "claimed-tasks-without-a-flow",
        "A dispatcher that remembers a task from its claim takes it for one outside a flow",
        "http/job_calls.py",
        "JobIdentity(job.contract, job.version, job.tenant_id, job.type, _UNKNOWN)",
        "JobIdentity(job.contract, job.version, job.tenant_id, job.type)",
        (f"{_HTTP}a_task_that_another_route_claimed_before_is_told_its_names_too",),
    ),
    Mutant(
        "waiting-nodes-unknown-to-operators",
        "An operator is told that the job of a node that waits does not exist",
        "postgres/operate.py",
        'rows = await self._engine.ask("find_unstarted_nodes", ids=unknown)',
        "rows = list[Any]()",
        ("cli/test_flows.py::test_why_of_a_node_names_the_parents_that_it_waits_for",),
    ),
)
