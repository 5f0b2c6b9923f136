"""Bugs in what a worker does to its process, its event loop and its host."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BLOCKED = "faults/test_workers_blocked.py"
_FORKING = "faults/test_workers_forking.py"
_HOST = "worker/test_host.py"
_PROCESSES = "worker/test_processes.py"
_ODD = "worker/test_odd_errors.py"
_ALONE = "worker/test_run_alone.py::test_"
_FROM_THEN_ON = f"{_BLOCKED}::test_job_that_blocked_a_loop_once_runs_in_a_process_of_its_own_from_then_on[beside]"

MUTANTS = (
    Mutant(
        "neighbours-kept-by-a-blocked-loop",
        "A worker whose event loop is blocked keeps the jobs that it has not begun",
        "worker/watchdog.py",
        "        taken = [running for running in waiting if self._heartbeats.take(running)]\n",
        "        taken = [running for running in waiting if running.job.id < 0]\n",
        (
            "worker/test_hardship.py::"
            "test_neighbours_of_a_handler_that_blocks_the_loop_are_handed_back_after_half_a_lease",
        ),
    ),
    Mutant(
        "block-not-noted",
        "The heartbeat does not tell the database that a handler blocks the event loop",
        "worker/heartbeat.py",
        "HolderCall(running.held, blocks=running.blocks_loop)",
        "HolderCall(running.held)",
        (_FROM_THEN_ON,),
    ),
    Mutant(
        "blocked-once-and-on-the-loop-again",
        "A job that blocked an event loop runs on the next one",
        "worker/executor.py",
        "        if job.blocked_at is not None:\n",
        "        if job.blocked_at is not None and job.claims == 0:\n",
        (_FROM_THEN_ON,),
    ),
    Mutant(
        "turn-to-run-alone-waited-for-without-end",
        "A job that waits for a process of its own is held for as long as that takes",
        "worker/heartbeat.py",
        "        waits = running.runner is None or running.waits_for_process\n",
        "        waits = running.runner is None\n",
        (f"{_ALONE}a_job_whose_turn_to_run_alone_does_not_come_is_handed_back_and_another_worker_runs_it",),
    ),
    Mutant(
        "handed-back-without-a-turn-and-due-at-once",
        "A job whose turn did not come is due again at once, and the same worker takes it",
        "worker/watchdog.py",
        "_NO_PROCESS_DELAY_MS = 1_000\n",
        "_NO_PROCESS_DELAY_MS = 0\n",
        (f"{_ALONE}a_job_whose_turn_to_run_alone_does_not_come_is_handed_back_and_another_worker_runs_it",),
    ),
    Mutant(
        "slot-kept-by-what-was-handed-back",
        "A job that was handed back because its turn did not come keeps its slot",
        "worker/watchdog.py",
        "            self._heartbeats.call_in_loop(self._end_waits, taken)\n",
        "            pass\n",
        (f"{_ALONE}a_worker_has_its_slots_again_when_it_has_handed_back_what_had_no_turn",),
    ),
    Mutant(
        "ended-by-waiting-for-a-turn",
        "A job on its last attempt is handed back where that ends it",
        "worker/executor.py",
        """        if contract.path("hand_back") is None and is_last:\n""",
        """        if contract.path("hand_back") is None and is_last and job.id < 0:\n""",
        (f"{_ALONE}a_job_that_would_end_by_being_handed_back_keeps_its_lease_until_its_turn",),
    ),
    Mutant(
        "host-signals-taken-unasked",
        "A worker that is told to leave signals to its host handles them",
        "worker/worker.py",
        "        with deliver_signals(self._on_signal if handle_signals else None):\n",
        "        with deliver_signals(self._on_signal):\n",
        (f"{_HOST}::test_worker_that_is_not_to_handle_signals_leaves_them_to_the_host",),
    ),
    Mutant(
        "cancelled-worker-keeps-its-jobs",
        "A worker that is cancelled leaves its handlers running and its jobs held",
        "worker/worker.py",
        "            await complete(self._end_at_once(runs, claim_loop, claiming))\n",
        "            claiming.cancel()\n",
        (f"{_HOST}::test_cancelling_a_worker_ends_its_handlers_and_hands_back_their_jobs",),
    ),
    Mutant(
        "claim-begun-by-a-cancelled-worker",
        "What a claim has won when its worker is cancelled is begun",
        "worker/job_runs.py",
        "        if self.is_ending:\n",
        "        if self.is_ending and not jobs:\n",
        (f"{_HOST}::test_what_a_claim_has_won_when_its_worker_is_cancelled_is_handed_back",),
    ),
    Mutant(
        "host-signals-not-restored",
        "A worker that ends leaves its signal handlers behind",
        "worker/signals.py",
        "            if not _workers:\n                _restore()\n",
        "",
        (f"{_HOST}::test_signal_handlers_of_the_host_come_back",),
    ),
    Mutant(
        "forked-child-with-the-workers-signals",
        "A process that a handler forks answers SIGTERM as its worker does",
        "worker/signals.py",
        "os.register_at_fork(after_in_child=_after_fork)\n",
        "",
        (f"{_FORKING}::test_pool_that_a_handler_terminates_does_not_stop_its_worker",),
    ),
    Mutant(
        "forked-child-goes-on-as-a-worker",
        "A process that a handler has forked goes on after the handler",
        "worker/handler.py",
        "    if os.getpid() != process:\n",
        "    if os.getpid() < 0:\n",
        (f"{_FORKING}::test_child_that_a_handler_forks_and_lets_go_on_ends_and_settles_nothing",),
    ),
    Mutant(
        "ended-process-not-started-again",
        "A worker process that ends by itself with exit code 0 is not started again",
        "cli/services/worker_processes.py",
        "    ends_well = (0,) if until_idle else ()\n",
        "    ends_well = (0,)\n",
        (f"{_FORKING}::test_worker_process_that_ends_without_being_told_is_started_again",),
    ),
    Mutant(
        "deaf-handler-keeps-the-process",
        "A handler that swallows CancelledError keeps its process for ever",
        "worker/standalone.py",
        "        if _is_kept_alive(worker, threads):\n            # A thread",
        "        if worker.counts is None:\n            # A thread",
        (f"{_PROCESSES}::test_handler_that_cannot_be_ended_does_not_keep_the_process[swallow_cancels]",),
    ),
    Mutant(
        "second-signal-counted-as-the-first",
        "A second Ctrl-C soon after the first does not end the worker",
        "worker/signals.py",
        "        may_be_one = number != first or PROCESS in os.environ\n",
        "        may_be_one = True\n",
        (f"{_PROCESSES}::test_first_ctrl_c_says_what_it_waits_for_and_the_second_ends_at_once",),
    ),
    Mutant(
        "lost-start-spends-the-attempt",
        "A start whose answer was lost is refused when it is said again, and its job is not run",
        "worker/reports.py",
        "            if not running.answer_lost or not is_started(",
        "            if running.held or not is_started(",
        ("worker/test_start_repeated.py::test_lost_answer_to_a_start_spends_no_attempt",),
    ),
    Mutant(
        "own-cancel-taken-for-the-workers",
        "A handler that cancels its own task is taken for one that its worker has cancelled",
        "worker/executor.py",
        "        if self.cancels_all or worker is None or worker.cancelling() > self._cancels_before:\n",
        "        if running.runner is not None and running.runner.cancelling():\n",
        (f"{_ODD}::test_a_handler_that_cancels_its_own_task_has_failed_by_itself[waits-loop]",),
    ),
    Mutant(
        "error-that-cannot-be-shown-is-lost",
        "An exception whose text cannot be had is not recorded",
        "jobs/job.py",
        "            _storable(_message(error), _LONGEST_MESSAGE) or class_name,\n",
        "            str(error) or class_name,\n",
        (f"{_ODD}::test_an_error_that_is_hard_to_report_is_recorded_with_its_type[loop]",),
    ),
    Mutant(
        "second-cancel-loses-the-jobs",
        "A worker that is cancelled again while it ends leaves its jobs held",
        "worker/worker.py",
        "            await complete(self._end_at_once(runs, claim_loop, claiming))\n            raise\n",
        "            await self._end_at_once(runs, claim_loop, claiming)\n            raise\n",
        (f"{_HOST}::test_a_cancelled_worker_lets_a_handler_in_a_thread_end_before_it_hands_back[50]",),
    ),
    Mutant(
        "running-thread-handed-back",
        "A cancelled worker hands back a job whose handler still runs in a thread",
        "worker/worker.py",
        "        await self._wait_for_threads(runs)\n",
        "",
        (f"{_HOST}::test_a_cancelled_worker_lets_a_handler_in_a_thread_end_before_it_hands_back[1]",),
    ),
    Mutant(
        "source-of-a-cancelled-worker-left-open",
        "A worker that is cancelled in the moment in which it has connected leaves its connections open",
        "worker/worker.py",
        "        self._source = source  # set here: a worker that is cancelled right now closes it too\n",
        "        asyncio.get_running_loop().call_later(1, setattr, self, '_source', source)\n",
        (f"{_HOST}::test_a_worker_that_is_cancelled_when_it_has_just_connected_closes_its_connections",),
    ),
    Mutant(
        "store-of-a-cancelled-dispatcher-left-open",
        "A dispatcher that is cancelled in the moment in which it has connected leaves its connections open",
        "http/dispatcher.py",
        "        self._store = store  # here, so that a dispatcher that is cancelled now closes it too\n",
        "        asyncio.get_running_loop().call_later(1, setattr, self, '_store', store)\n",
        ("http/test_serve.py::test_a_dispatcher_that_is_cancelled_when_it_has_just_connected_closes_its_connections",),
    ),
)
