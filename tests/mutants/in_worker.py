"""Bugs in the worker, in what handlers say, and in what readers of a later version meet."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_EXECUTION = "worker/test_reliability_execution.py"
_REASONS = "worker/test_reliability_reasons.py"
_STAGES = "worker/test_reliability_stages.py"
_RECORDS = "contracts/test_reliability_records.py"
_LETTERS = "contracts/test_reliability_letters.py"
_VERSIONS = "contracts/test_reliability_versions.py"
_RELIABILITY = "contracts/reliability.py"
_TOGETHER = f"{_LETTERS}::test_a_job_and_its_dead_letter_are_written_together_with_reason_and_stage"
_STORED = f"{_RECORDS}::test_every_transition_stores_its_time_actor_reason_and_correlation_id"
_TRIED_AGAIN = f"{_REASONS}::test_a_failure_that_may_pass_is_tried_again_and_names_its_reason_in_the_end"
_UNREADABLE = f"{_REASONS}::test_payload_that_cannot_be_read_is_set_aside_before_it_starts"

MUTANTS = (
    Mutant(
        "handler-before-its-start",
        "The worker calls the handler before the start is acknowledged",
        "worker/executor.py",
        "            await self._reports.start(running)\n",
        "            self._reports.start_task(self._reports.start(running))\n",
        (
            f"{_EXECUTION}::test_the_handlers_first_statement_sees_its_own_job_running[async]",
            f"{_EXECUTION}::test_a_job_that_is_assigned_has_a_lease_and_its_handler_has_not_begun",
        ),
    ),
    Mutant(
        "effect-recorded-later",
        "A handler goes on before its effect is on record",
        "context.py",
        "self._effects[node] = await self._port.effect(node, await done if inspect.isawaitable(done) else done)\n",
        "self._effects[node] = await done if inspect.isawaitable(done) else done\n"
        "            asyncio.ensure_future(self._port.effect(node, self._effects[node]))\n",
        (f"{_EXECUTION}::test_effects_are_committed_when_the_handler_goes_on_and_before_its_job_is_succeeded[async]",),
    ),
    Mutant(
        "artifacts-apart-from-their-success",
        "A job succeeds although what its holder reported with that could not be written",
        "postgres/hold.py",
        "yield Atomic(_move_and_store(batch, stored, skip_locked=skip_locked))",
        "yield from _move_and_store(batch, stored, skip_locked=skip_locked)",
        (f"{_EXECUTION}::test_artifacts_that_a_holder_reports_with_its_success_come_with_it_or_not_at_all",),
    ),
    Mutant(
        "letters-of-holders-only",
        "Only a holder's failure writes a dead letter: an operator's and a lost lease's do not",
        "postgres/queries/templates/move_tail.part",
        "    where letter is not null\n",
        "    where letter is not null\n    --others: and false\n",
        (f"{_TOGETHER}[an operator, from queued]", f"{_TOGETHER}[a lease that ran out]"),
    ),
    Mutant(
        "stage-not-on-the-letter",
        "Every dead letter says exec, whatever the failure's stage was",
        "postgres/queries/templates/move_tail.part",
        "then coalesce(error ->> 'stage', 'exec') else 'exec' end,",
        "then 'exec' else 'exec' end,",
        (
            f"{_TOGETHER}[a dependency on the last attempt]",
            f"{_STAGES}::test_a_failure_in_each_stage_is_recorded_with_it[loop]",
        ),
    ),
    Mutant(
        "policy-violation-only-failed",
        "A policy violation ends a job without a dead letter",
        _RELIABILITY,
        '        "PolicyViolation": RetryVerdict("dead_letter", "policy_violation"),\n',
        "",
        (
            f"{_REASONS}::test_a_policy_violation_ends_the_job_at_once_although_attempts_are_left",
            f"{_TOGETHER}[a policy]",
        ),
    ),
    Mutant(
        "infrastructure-named-exhaustion",
        "A job whose process died on its last attempt is set aside as exhausted_retries",
        _RELIABILITY,
        'RetryVerdict("retry", "infrastructure_failure")',
        'RetryVerdict("retry")',
        (f"{_TRIED_AGAIN}[infrastructure]", f"{_TOGETHER}[a lost machine on the last attempt]"),
    ),
    Mutant(
        "dependency-named-exhaustion",
        "A job whose dependency was away on its last attempt is set aside as exhausted_retries",
        _RELIABILITY,
        'RetryVerdict("retry", "dependency_unavailable")',
        'RetryVerdict("retry")',
        (f"{_TRIED_AGAIN}[dependency]",),
    ),
    Mutant(
        "timeout-named-exhaustion",
        "A job whose last attempt ran too long is set aside as exhausted_retries",
        _RELIABILITY,
        '        "TimeoutError": RetryVerdict("retry", "timeout"),\n',
        "",
        (f"{_TRIED_AGAIN}[timeout]",),
    ),
    Mutant(
        "arguments-checked-after-the-start",
        "A job whose payload cannot be read is running before it is set aside",
        "worker/executor.py",
        "if (unfit := self._check_arguments(running, running.task)) is not None:",
        "if (unfit := self._check_arguments(running, running.task)) is not None and running.job.contract == '':",
        (f"{_UNREADABLE}[digits]",),
    ),
    Mutant(
        "unreadable-payload-retried",
        "A payload that cannot be read is a failure like any other, and tried again",
        "worker/handler.py",
        "    except (ValueError, RecursionError) as error:  # too many digits",
        "    except KeyError as error:  # too many digits",
        (f"{_UNREADABLE}[digits]", f"{_UNREADABLE}[levels]"),
    ),
    Mutant(
        "retry-says-the-letters-reason",
        "A requeued job's event says the reason of a dead letter that was not written",
        "postgres/queries/templates/finish.template",
        "coalesce(case when not (:verb::text = 'fail' and chosen.trigger = 'retry') then reason end,",
        "coalesce(reason,",
        (f"{_TRIED_AGAIN}[dependency]",),
    ),
    Mutant(
        "claim-without-a-reason",
        "A claim's log row has no reason",
        "postgres/queries/templates/claim_move.part",
        "case when event_type is not null then trigger end, event_type,",
        "null, event_type,",
        (_STORED,),
    ),
    Mutant(
        "hop-without-a-reason",
        "A hop for which nobody gave a reason has none in the log",
        "postgres/queries/templates/finish.template",
        "case when path.type is not null then chosen.trigger end) as why,",
        "null) as why,",
        (_STORED,),
    ),
    Mutant(
        "reason-made-up-by-the-view",
        "The view shows a reason for a log row that has none",
        "postgres/views.py",
        ', "reason": "e.reason"}',
        "}",
        (f"{_RECORDS}::test_the_view_shows_the_reason_that_is_stored_and_makes_none_up",),
    ),
    Mutant(
        "start-shown-twice",
        "A start shows as two events",
        _RELIABILITY,
        '        event("job_started", "start", _WHY),\n',
        '        event("job_started", "start", _WHY),\n' * 2,
        (
            "contracts/test_reliability.py::test_the_start_call_is_the_first_heartbeat",
            "contracts/test_reliability_events.py::test_a_thousand_jobs_of_eight_claimers_make_exactly_three_thousand_events",
        ),
    ),
    Mutant(
        "finished-job-unknown",
        "A request to run a finished job again gets the answer that there is no such job",
        "postgres/move.py",
        "            outcomes[n] = _refuse_finished(batch, job_id, held, ended[job_id])\n",
        "            outcomes[n] = JobNotFound(job_id)\n",
        (f"{_RECORDS}::test_nothing_makes_a_finished_job_running_again[succeeded]",),
    ),
    Mutant(
        "stage-forgotten",
        "A failure inside a stage's block is recorded without it",
        "context.py",
        "            mark_stage(self._ctx, error, self._name)\n",
        "            pass\n",
        (
            f"{_STAGES}::test_a_failure_in_each_stage_is_recorded_with_it[loop]",
            f"{_STAGES}::test_a_failure_in_each_stage_is_recorded_with_it[process]",
        ),
    ),
    Mutant(
        "outermost-stage-counts",
        "Of nested blocks the outermost gives a failure its stage",
        "context.py",
        "    if stage_of(ctx, error) is None:\n",
        "    if stage:\n",
        (f"{_STAGES}::test_of_nested_blocks_the_innermost_counts_and_a_block_that_ended_does_not",),
    ),
    Mutant(
        "stage-of-another-job",
        "An exception object that was raised in another job brings that one's stage along",
        "context.py",
        "        if (job_id, attempt) == (ctx.job.id, ctx.attempt):",
        "        if job_id is not None:",
        (f"{_STAGES}::test_of_nested_blocks_the_innermost_counts_and_a_block_that_ended_does_not",),
    ),
    Mutant(
        "output-named-exec",
        "A result that cannot be stored is a failure of stage exec",
        "worker/handler.py",
        '        mark_stage(ctx, error, "output")\n',
        "",
        (f"{_STAGES}::test_stages_that_the_engine_knows_need_no_block",),
    ),
    Mutant(
        "dead-process-without-a-stage",
        "The stage at which a process died is lost",
        "worker/executor.py",
        "failure_of(error, stage=running.stage)",
        "failure_of(error)",
        (f"{_STAGES}::test_a_handler_that_is_ended_from_outside_has_the_stage_that_it_was_at",),
    ),
    Mutant(
        "required-key-added",
        "A later version may add a key that every event must have",
        "contracts/versions.py",
        "if key not in successor.optional and (key not in event.keys or key in event.optional):",
        "if key in event.keys and key in event.optional and key not in successor.optional:",
        (
            "contracts/test_declaration.py::test_incompatible_change_is_named[a new key that every event must have]",
            f"{_VERSIONS}::test_a_version_that_requires_a_new_field_or_takes_one_away_is_not_registered",
        ),
    ),
    Mutant(
        "optional-key-always-there",
        "An event shows an optional key without a value",
        "postgres/views.py",
        'payload += f" || jsonb_strip_nulls({_object(fields, event, event.optional)})"',
        'payload += f" || {_object(fields, event, event.optional)}"',
        (f"{_VERSIONS}::test_a_reader_of_version_1_reads_the_events_of_version_1_1",),
    ),
    Mutant(
        "client-refuses-unknown-fields",
        "A client does not understand an event with a field that it does not know",
        "client/dispatcher_responses.py",
        '    return [log_entry(one) for one in body["events"]], body.get("next")\n',
        "    known = set(LogEntry.__dataclass_fields__)\n"
        '    if any(set(one) - known for one in body["events"]):\n'
        '        raise ValueError("unknown field")\n'
        '    return [log_entry(one) for one in body["events"]], body.get("next")\n',
        (f"{_VERSIONS}::test_a_worker_of_version_1_understands_answers_with_fields_and_states_that_it_does_not_know",),
    ),
    Mutant(
        "run-without-a-start",
        "A worker runs the handler of a job that it has not started",
        "worker/executor.py",
        "if running.limits.reports_start:",
        "if False:",
        (
            "worker/test_requirements_reliability.py::test_soft_cancel_of_an_assigned_job_ends_it_before_its_worker_runs_the_handler",
        ),
    ),
)
