"""Bugs in the Python of the engine: `postgres/*.py`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "locks-in-any-order",
        "A batch locks its jobs in the order in which they were named",
        "postgres/move.py",
        "waiting = sorted(range(len(ids)), key=ids.__getitem__)",
        "waiting = list(range(len(ids)))",
        ("races/test_lock_order.py::test_a_batch_that_waits_for_its_first_job_has_locked_none_of_the_others",),
    ),
    Mutant(
        "ended-by-nobody-known",
        "A holder that ended its job itself is told that another took it",
        "postgres/move.py",
        "if held and (held.claims, held.token) != (claims, token):",
        "if held:",
        ("contracts/test_gate_b2.py::test_a_repeated_write_to_a_succeeded_job_is_refused_in_the_documents_code",),
    ),
    Mutant(
        "key-of-any-body",
        "A repeated key counts as the same request whatever its result",
        "postgres/move.py",
        "for column in (self.errors, self.results, self.notes)]",
        "for column in (self.errors, self.notes)]",
        ("contracts/test_repeats.py::test_the_key_of_another_body_or_verb_is_a_conflict_and_nothing_is_done",),
    ),
    Mutant(
        "stranger-told-to-undo",
        "A caller that lost the job since the gate looked is told to undo its effects",
        "postgres/move.py",
        "kept if holds else StaleLease(job_id)",
        "kept",
        (
            "contracts/test_compensation_faults.py::test_whatever_happens_before_the_failure_is_kept_it_is_kept_by_the_holder_alone",
        ),
    ),
    Mutant(
        "record-after-the-move",
        "The record is written after the job left its commit point",
        "postgres/settle.py",
        '    yield statement("record_dead_letters", {"ids": locked, "letter": path.letter if path else None})\n'
        '    return (yield from move(Batch(bound, "settle", locked, extra={"actor": UPKEEP})))\n',
        '    moved = yield from move(Batch(bound, "settle", locked, extra={"actor": UPKEEP}))\n'
        '    yield statement("record_dead_letters", {"ids": locked, "letter": path.letter if path else None})\n'
        "    return moved\n",
        (
            "contracts/test_gate_b2_dlq.py::test_the_item_is_written_while_the_job_is_dlq_pending_and_before_it_is_recorded",
        ),
    ),
    Mutant(
        "one-bad-record-stops-all",
        "A record that cannot be written holds up its neighbours' records",
        "postgres/settle.py",
        "        if len(page) == 1:\n",
        "        if page:\n",
        ("postgres/test_resilience.py::test_record_that_cannot_be_written_holds_up_no_other",),
    ),
    Mutant(
        "wake-up-forgotten",
        "A task that is queued again writes no wake-up",
        "postgres/move.py",
        "    if ready:\n",
        "    if not ready:\n",
        (
            "contracts/test_dispatcher_outbox.py::test_one_tick_queues_what_is_due_with_the_next_attempt_and_its_wake_up",
        ),
    ),
    Mutant(
        "half-a-compensation",
        "The note that effects are undone stays although the job could not end",
        "postgres/hold.py",
        "        raise moved  # the lease expired between the two: neither is done",
        "        return [moved]",
        ("contracts/test_compensation_faults.py::test_a_lease_that_runs_out_between_the_note_and_the_end_undoes_both",),
    ),
    Mutant(
        "spent-claim-key-free",
        "A claim key whose jobs are finished wins others",
        "postgres/claim.py",
        "    return {key: held.get(key, StaleLease(None)) for key in used}\n",
        "    return held\n",
        ("contracts/test_reliability_claims.py::test_a_claim_key_of_a_finished_job_wins_nothing_more",),
    ),
    Mutant(
        "expired-not-closed-by-claim",
        "A claim does not close what expired before it picks",
        "postgres/claim.py",
        "if bound.contract.lease.closed_by_claim:",
        "if False:",
        ("contracts/test_claim_one_job.py::test_an_expired_lease_is_closed_before_the_job_is_claimed_again",),
    ),
    Mutant(
        "refused-call-keeps-its-key",
        "A refused call has spent its key",
        "postgres/idempotency.py",
        'yield statement("delete_key", key)',
        "pass",
        ("contracts/test_reruns.py::test_a_refused_requeue_leaves_no_key",),
    ),
    Mutant(
        "operators-key-of-any-body",
        "An operator's key with another body gets the first answer",
        "postgres/idempotency.py",
        "if (verb, body) != (call.verb, call.hash):",
        "if verb != call.verb:",
        (
            "contracts/test_repeats_operators.py::test_a_reliability_cancel_by_one_key_is_one_event_and_another_body_a_conflict",
        ),
    ),
    Mutant(
        "holders-key-of-any-body",
        "A holder's key with another body gets the first answer",
        "postgres/idempotency.py",
        "same = row[2] == batch.fingerprint(n)",
        "same = True",
        (
            "contracts/test_repeats.py::test_a_later_holder_with_the_same_key_gets_a_conflict_not_the_earlier_holders_answer",
        ),
    ),
    Mutant(
        "spelling-makes-a-second-person",
        "One person counts as two under two spellings of the name",
        "postgres/dead_letters.py",
        '"person_key": validation.normalize_person(person)',
        '"person_key": person',
        ("contracts/test_letters.py::test_a_discard_needs_two_people_and_spelling_makes_no_second_one",),
    ),
    Mutant(
        "cancel-mode-not-asked",
        "A contract that only asks its holders to stop is cancelled hard",
        "postgres/operate.py",
        "if not modes or mode in modes:",
        "if mode:",
        ("contracts/test_cancel.py::test_a_mode_that_is_none_or_that_the_contract_lacks_is_refused",),
    ),
    Mutant(
        "rerun-and-wake-up-apart",
        "A rerun commits before its wake-up is written",
        "postgres/reruns.py",
        "once(call, rerun, whole=True)",
        "once(call, rerun)",
        ("faults/test_wakeups_killed.py::test_rerun_killed_before_its_wake_up_was_written_never_happened",),
    ),
    Mutant(
        "range-dropped-under-an-open-transaction",
        "A range leaves although an open transaction may still bring a job there",
        "postgres/retention.py",
        "if lives or not quiet:",
        "if lives:",
        ("postgres/test_retire_faults.py::test_a_job_that_is_just_being_made_keeps_its_range",),
    ),
    Mutant(
        "enqueue-key-of-any-body",
        "An idempotency key with another body gets the first job",
        "postgres/enqueue.py",
        'if (verb, first_hash) != ("enqueue", hashes[n]):',
        'if verb != "enqueue":',
        ("postgres/test_idempotent_enqueue.py::test_other_request_with_the_same_key_is_a_conflict",),
    ),
    Mutant(
        "keys-in-any-order",
        "Two callers with the same keys wait for each other in a circle",
        "postgres/enqueue.py",
        "key=lambda n: _key(jobs[n]))",
        "key=lambda n: n)",
        ("races/test_lock_order.py::test_a_batch_that_waits_for_its_first_key_has_spent_none_of_the_others",),
    ),
    Mutant(
        "half-a-batch",
        "A batch of several statements is not all or none",
        "postgres/enqueue.py",
        "= yield Atomic(\n        _insert_groups(",
        "= yield from (\n        _insert_groups(",
        ("postgres/test_enqueue_whole.py::test_batch_of_many_statements_of_which_one_is_refused_makes_nothing",),
    ),
    Mutant(
        "cause-that-is-no-event",
        "An event names a log row as its cause that is no event",
        "postgres/views.py",
        "(e.seq - coalesce(e.hidden, 0) - 1)::text",
        "(e.seq - 1)::text",
        (
            "contracts/test_reliability_events.py::test_every_event_of_every_type_has_nine_fields_and_a_cause_among_the_jobs_earlier_events",
        ),
    ),
    Mutant(
        "cause-of-the-first-event",
        "Every event names the first of its job as its cause",
        "postgres/views.py",
        "(e.seq - coalesce(e.hidden, 0) - 1)::text",
        "'1'",
        (
            "contracts/test_reliability_events.py::test_every_event_of_every_type_has_nine_fields_and_a_cause_among_the_jobs_earlier_events",
        ),
    ),
    Mutant(
        "result-missing-in-the-view",
        "The view of results reads the live jobs, so that an ended task has none",
        "postgres/views.py",
        '("job_done",) if view.rows == "finished"',
        '("job",) if view.rows == "finished"',
        ("contracts/test_simple_lifecycle.py::test_success_leaves_a_task_result_with_the_value_and_none_before",),
    ),
)
