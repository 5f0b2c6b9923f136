"""Bugs in what a worker and the publisher do with messages."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_LOOP = "worker/test_receive_loop.py::test_"
_TASKS = "worker/test_received_tasks.py::test_"
_INBOX = "sqs/test_inbox.py::test_"
_NO_CLAIM = f"{_LOOP}no_handler_runs_without_a_claim_and_only_messages_that_nobody_needs_are_deleted"
_PUBLISHER = "upkeep/test_publisher.py::test_"
_PLANS = "postgres/test_wakeup_plans.py::test_"

MUTANTS = (
    Mutant(
        "message-deleted-for-any-reason",
        "A message is deleted although its task may be claimed later",
        "worker/receive_loop.py",
        "        if reason in _DELETED:\n",
        "        if reason:\n",
        (f"{_NO_CLAIM}[AlreadyRunning-False]",),
    ),
    Mutant(
        "message-kept-after-completion",
        "The message of a completed task stays in the queue",
        "client/sqs_source.py",
        "                elif message is not None:\n",
        '                elif message is not None and answer.role == "ready":\n',
        (f"{_LOOP}until_idle_ends_when_no_message_is_left",),
    ),
    Mutant(
        "claimed-without-a-key",
        "A claim whose answer was lost is repeated without its key",
        "client/sqs_source.py",
        "body, read, key=kept.token)",
        "body, read, key=None)",
        (f"{_NO_CLAIM}[reset]",),
    ),
    Mutant(
        "received-beyond-the-slots",
        "A worker takes more messages than it can start tasks",
        "worker/receive_loop.py",
        "            free = (1 if self._claims_fail else self._slots.free) - len(self._claiming)\n",
        "            free = 10\n",
        (f"{_LOOP}a_worker_takes_only_the_messages_that_it_can_start_at_once",),
    ),
    Mutant(
        "message-hidden-by-a-stopped-worker",
        "A message that comes while the worker stops stays hidden",
        "worker/receive_loop.py",
        "                self._source.give_back(message)\n",
        "                pass\n",
        (f"{_LOOP}a_message_that_comes_while_the_worker_stops_is_visible_again_at_once",),
    ),
    Mutant(
        "message-kept-at-its-end",
        "A message is kept hidden only when its visibility is over",
        "sqs/inbox.py",
        "        return sent_at + self.extension_s / 2\n",
        "        return sent_at + self.extension_s\n",
        (f"{_INBOX}a_message_is_kept_twice_per_visibility_while_its_task_is_claimed_or_held",),
    ),
    Mutant(
        "message-of-a-lost-lease-kept",
        "A worker keeps hidden the message of a task that it has lost",
        "sqs/inbox.py",
        "            elif kept.keep_at <= now and holds.get(kept.token, True):\n",
        "            elif kept.keep_at <= now:\n",
        (f"{_INBOX}a_message_whose_lease_is_lost_is_kept_no_longer_and_not_forgotten_before_its_task_is",),
    ),
    Mutant(
        "message-forgotten-while-its-task-starts",
        "A message is forgotten when its task starts during the look at the held ones",
        "sqs/inbox.py",
        "            if is_claimed and kept.token not in holds:\n",
        "            if kept.is_claimed and kept.token not in holds:\n",
        (f"{_INBOX}a_task_that_starts_while_the_held_ones_are_read_keeps_its_message",),
    ),
    Mutant(
        "failure-reported-by-its-message-alone",
        "The completion of a failed attempt loses the type and the stack of its error",
        "client/sqs_source.py",
        '            request["error"] = dict(call.failure.facts())\n',
        "",
        (f"{_TASKS}failures_and_cancels_are_reported_and_their_messages_deleted",),
    ),
    Mutant(
        "silent-queue-stops-the-rounds",
        "A round waits for a queue that does not answer",
        "upkeep/publisher.py",
        "timeout=self._round_s)",
        "timeout=None)",
        (f"{_PUBLISHER}rounds_go_on_with_the_other_queues_while_one_does_not_answer",),
    ),
    Mutant(
        "unavailable-queue-gets-the-next-batch",
        "A round goes on with a queue that takes nothing",
        "upkeep/publisher.py",
        "        return not any(problem is not None and problem.is_unavailable for problem in answers)\n",
        "        return True\n",
        (f"{_PUBLISHER}a_queue_that_takes_nothing_is_left_for_the_round_after_one_batch",),
    ),
    Mutant(
        "unseen-jobs-never-woken",
        "Jobs that could not be seen when their queue was published get no wake-up",
        "postgres/queries/publish_queues.sql",
        "known.fill_again_at <= clock_timestamp() as is_time",
        "false as is_time",
        (f"{_PUBLISHER}a_task_that_was_not_to_be_seen_when_its_queue_was_published_is_woken_later",),
    ),
    Mutant(
        "wake-ups-for-later-walked",
        "Each round reads all wake-ups for later",
        "postgres/queries/take_wakeups.sql",
        "publish_at <= (select clock_timestamp())",
        "publish_at <= clock_timestamp()",
        (f"{_PLANS}wake_ups_for_later_are_not_read[analyzed-take_wakeups-values0]",),
    ),
    Mutant(
        "quarantined-job-never-woken-again",
        "The wake-up of a quarantined job is looked at for the last time",
        "postgres/queries/renew_wakeups.sql",
        "and role = 'ready'",
        "and quarantined_at is null and role = 'ready'",
        (f"{_PUBLISHER}a_quarantined_task_is_woken_again_when_it_is_released",),
    ),
    Mutant(
        "one-page-of-wake-ups-forgotten",
        "One page of old wake-ups is deleted, and the others stay",
        "postgres/outbox.py",
        "            if deleted < _PAGE:\n",
        "            if deleted <= _PAGE:\n",
        (f"{_PUBLISHER}all_old_and_unwanted_wake_ups_leave_however_many_there_are",),
    ),
    Mutant(
        "message-claims-from-a-paused-queue",
        "A worker that a message woke takes a task of a paused queue",
        "http/job_calls.py",
        "skip_locked=True, heeds_pause=True",
        "skip_locked=True",
        ("http/test_tasks.py::test_a_task_of_a_paused_queue_is_not_claimed_before_it_is_resumed",),
    ),
    Mutant(
        "paused-task-claimed-after-a-wait",
        "A worker that had to wait for the row takes a task of a paused queue",
        "http/job_calls.py",
        "partial(self.store.claim_ids_for_many, heeds_pause=True)",
        "self.store.claim_ids_for_many",
        ("http/test_tasks.py::test_a_paused_tasks_locked_row_is_waited_for_and_it_is_not_claimed",),
    ),
    Mutant(
        "every-claim-by-id-heeds-the-pause",
        "An operator cannot take a job by its id from a paused queue",
        "postgres/queries/templates/claim_by_id.template",
        "when :heeds_pause::boolean\n                   and queue",
        "when queue",
        ("postgres/test_queues.py::test_who_names_a_job_gets_it_from_a_paused_queue_too",),
    ),
    Mutant(
        "messages-for-a-paused-queue",
        "Messages are sent for tasks of a paused queue, whose claims are refused",
        "postgres/queries/take_wakeups.sql",
        "    where wanted.queue <> all (array(select name from tenure.queue where paused_at is not null))\n",
        "",
        (f"{_PUBLISHER}no_message_is_sent_while_a_queue_is_paused_and_one_for_each_task_when_it_is_resumed",),
    ),
    Mutant(
        "message-of-a-paused-queue-left",
        "The message of a task whose queue is paused comes again and again",
        "worker/receive_loop.py",
        '"WaitingForParents", "QueuePaused"}',
        '"WaitingForParents"}',
        (f"{_NO_CLAIM}[QueuePaused-True]",),
    ),
    Mutant(
        "late-for-the-pause",
        "The wake-ups of a queue that was paused count as late",
        "postgres/queries/mark_wakeups_published.sql",
        "(select resumed_at from tenure.queue where name = outbox.queue)",
        "null",
        (f"{_PUBLISHER}no_message_is_sent_while_a_queue_is_paused_and_one_for_each_task_when_it_is_resumed",),
    ),
)
