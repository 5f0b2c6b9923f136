"""Bugs in how connections are kept, what they are set to, and what is repeated on another one."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BETWEEN = "faults/test_session_ended_between_steps.py"
_CUT = "faults/test_idle_connections_cut.py"
_FROZEN = (
    "faults/test_upkeep_frozen.py"
    "::test_upkeep_frozen_inside_a_transaction_lets_go_of_its_rows_and_goes_on_when_it_wakes"
)
_READ_ONLY = "faults/test_read_only_session.py"
_FULL = "faults/test_notify_queue_full.py"
_CONNECTIONS = "postgres/test_connections.py"
_WITH_TIMEOUTS = f"{_CONNECTIONS}::test_every_connection_of_a_worker_has_timeouts"
_NONE_LEFT = f"{_CONNECTIONS}::test_heartbeat_has_its_connection_when_the_server_has_none_left"
_MADE_AGAIN = f"{_CONNECTIONS}::test_connection_of_heartbeats_is_made_again_although_nobody_waits_for_it"
_SETTINGS = "postgres/test_server_settings.py"
_ENCODINGS = "postgres/test_encodings.py"
_KEYS = "postgres/test_idempotent_enqueue.py"
_LEFT = f"{_READ_ONLY}::test_store_leaves_a_demoted_primary_and_finds_the_new_one"
_PREPARED = f"{_FULL}::test_transaction_that_enqueued_without_notify_can_be_prepared"
_CALLERS_COMMIT = f"{_FULL}::test_a_commit_of_the_callers_own_survives_a_full_queue_of_notifications"

MUTANTS = (
    Mutant(
        "frozen-transaction-kept",
        "A session may stand idle inside of a transaction for ever",
        "postgres/connect.py",
        '        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,\n',
        '        "idle_in_transaction_session_timeout": 0,\n',
        (_FROZEN, f"{_CONNECTIONS}::test_a_store_has_the_timeouts_of_its_use"),
    ),
    Mutant(
        "cut-transaction-continued",
        "Nobody looks whether the session of an open transaction was ended",
        "postgres/statement.py",
        "    if await is_ended(connection):\n",
        "    if connection.closed:\n",
        (f"{_CUT}::test_transaction_whose_session_ended_with_an_answer_is_reported_as_idle_for_too_long",),
    ),
    Mutant(
        "cut-connection-used",
        "A connection is used without a look whether the server has ended it",
        "postgres/engine.py",
        "                    if await self._close_if_unusable(connection):\n",
        "                    if connection.closed:\n",
        (
            f"{_CUT}::test_enqueue_after_idle_connections_were_cut_makes_one_job[1-by the administrator]",
            f"{_CUT}::test_connection_that_was_idle_for_long_is_tried_before_it_is_used",
        ),
    ),
    Mutant(
        "farewell-with-an-answer-forgotten",
        "A session that ended in the moment of an answer is used once more",
        "postgres/connection_health.py",
        "            _ended.add(ended)\n",
        "            pass\n",
        (f"{_CUT}::test_session_that_ended_with_an_answer_is_not_used_again",),
    ),
    Mutant(
        "unused-connection-never-tried",
        "A connection that waited in the pool for its first use, or ended while it was opened, is used without a try",
        "postgres/connection_health.py",
        "_used.get(connection, -math.inf)",
        "_used.get(connection, monotonic())",
        (
            f"{_CUT}::test_connection_is_tried_before_its_first_use",
            f"{_CUT}::test_session_that_ended_while_it_was_opened_is_not_used",
        ),
    ),
    Mutant(
        "idle-session-not-repeated",
        "What PostgreSQL refused on a session that was idle for too long is not run again",
        "postgres/connect.py",
        "    psycopg.errors.IdleSessionTimeout,\n",
        "",
        (f"{_CUT}::test_refusal_of_an_idle_session_is_run_again_on_another",),
    ),
    Mutant(
        "heartbeat-in-line",
        "A heartbeat waits for a connection like everybody else",
        "postgres/engine.py",
        "await self._run(plan, self._heartbeats if beat else self._calls)\n",
        "await self._run(plan, self._calls)\n",
        (
            f"{_CONNECTIONS}::test_heartbeat_waits_for_no_connection",
            f"{_CONNECTIONS}::test_worker_beats_while_upkeep_occupies_its_connections",
        ),
    ),
    Mutant(
        "heartbeat-connection-opened-late",
        "Heartbeats have a turn of their own, but no connection that is open",
        "postgres/engine.py",
        "            engine._heartbeats = _LimitedPool(heartbeat_pool, asyncio.Semaphore(1))\n",
        "            engine._heartbeats = _LimitedPool(pool, asyncio.Semaphore(1))\n",
        (_NONE_LEFT,),
    ),
    Mutant(
        "heartbeat-away-with-others",
        "Heartbeats are told that the database is away because others got no connection",
        "postgres/engine.py",
        "                    if monotonic() < limited.unavailable_until:\n",
        "                    if monotonic() < self._calls.unavailable_until:\n",
        (_NONE_LEFT,),
    ),
    Mutant(
        "heartbeat-connection-not-awaited",
        "A store is opened although its heartbeats have no connection",
        "postgres/engine.py",
        "await heartbeat_pool.open(wait=True, timeout=patience_s)",
        "await heartbeat_pool.open()",
        (f"{_CONNECTIONS}::test_store_is_refused_where_heartbeats_get_no_connection",),
    ),
    Mutant(
        "heartbeat-connection-given-up",
        "The connection of heartbeats is tried for only while a beat waits",
        "postgres/engine.py",
        "reconnect_failed=_reconnect,",
        "reconnect_failed=_reconnect_if_awaited,",
        (_MADE_AGAIN,),
    ),
    Mutant(
        "heartbeat-connection-not-looked-at",
        "A connection that was cut is no reason to look at the one of heartbeats",
        "postgres/engine.py",
        "                        if pool is not self._heartbeats.pool:",
        "                        if False:",
        (_MADE_AGAIN,),
    ),
    Mutant(
        "heartbeat-looks-up-in-line",
        "The first heartbeat of a contract waits for a connection to look the contract up",
        "postgres/hold.py",
        'bound_contract(contract, version, beat=verb == "heartbeat")',
        "bound_contract(contract, version)",
        (f"{_CONNECTIONS}::test_worker_beats_while_upkeep_occupies_its_connections",),
    ),
    Mutant(
        "any-host-will-do",
        "Of several hosts any is taken, also one that only reads",
        "postgres/connect.py",
        'ours["target_session_attrs"] = "read-write"\n',
        'ours["target_session_attrs"] = "any"\n',
        (
            _LEFT,
            f"{_CONNECTIONS}::test_several_hosts_mean_the_one_that_writes[engine_dsn]",
        ),
    ),
    Mutant(
        "demoted-primary-read",
        "A session that only ever reads stays with a demoted primary",
        "postgres/engine.py",
        "not (self._requires_primary and is_read_only(connection))",
        "True",
        (f"{_READ_ONLY}::test_store_that_only_reads_leaves_a_demoted_primary_too",),
    ),
    Mutant(
        "listener-stays-with-a-demoted-primary",
        "The listener stays with a server that does not write any more, and hears nobody but itself",
        "postgres/listener.py",
        "        if is_read_only(connection):",
        "        if connection.closed:",
        (f"{_READ_ONLY}::test_listener_leaves_a_demoted_primary_and_hears_the_new_one",),
    ),
    Mutant(
        "silent-server-waited-for",
        "A connection to a server that went silent waits for as long as the system does",
        "postgres/connect.py",
        ', "tcp_user_timeout": "20000",\n',
        ",\n",
        (_WITH_TIMEOUTS,),
    ),
    Mutant(
        "listener-of-a-lost-machine-kept",
        "The server keeps a listener whose machine is gone for hours",
        "postgres/listener.py",
        "    **SERVER_DEADLINES,\n",
        "",
        (_WITH_TIMEOUTS,),
    ),
    Mutant(
        "read-only-refusal-final",
        "What a server refused because it only reads is not asked of another",
        "postgres/connect.py",
        "    psycopg.errors.ReadOnlySqlTransaction,\n)\n",
        ")\n",
        (_LEFT,),
    ),
    Mutant(
        "key-compares-options",
        "A repeated key with another queue, priority or timeout is a conflict",
        "postgres/enqueue.py",
        "json.dumps([contract, job.type, payload], sort_keys=True)",
        "json.dumps([contract, job.type, job.payload, job.queue], sort_keys=True)",
        (
            f"{_KEYS}::test_repeat_with_other_options_gets_the_first_job[queue]",
            f"{_KEYS}::test_repeat_with_other_options_gets_the_first_job[payload]",
        ),
    ),
    Mutant(
        "full-queue-fails-enqueue",
        "A full queue of notifications fails a lone enqueue",
        "postgres/enqueue.py",
        "        except psycopg.errors.ProgramLimitExceeded:  # nothing was inserted\n",
        "        except psycopg.errors.DivisionByZero:\n",
        (f"{_FULL}::test_enqueues_survive_a_full_queue_of_notifications",),
    ),
    Mutant(
        "full-queue-fails-commit",
        "A full queue of notifications fails the caller's own commit",
        "postgres/queries/notify.sql",
        " where pg_notification_queue_usage() < 0.5",
        "",
        (_CALLERS_COMMIT,),
    ),
    Mutant(
        "notify-all-the-same",
        "A job that asked for no NOTIFY is notified",
        "postgres/notify.py",
        "        if job.notify and not job.delay_ms",
        "        if not job.delay_ms",
        (_PREPARED, f"{_FULL}::test_no_path_notifies_for_a_job_that_asked_for_none"),
    ),
    Mutant(
        "array-nulls-of-the-database",
        "Arrays are read as the database has them, where NULL may be a text",
        "postgres/connect.py",
        '    "array_nulls": "on", ',
        "    ",
        (f"{_SETTINGS}::test_a_job_lives_under_any_setting_of_the_database[array_nulls]",),
    ),
    Mutant(
        "encoding-of-the-address",
        "Texts are sent in the encoding that the address asks for",
        "postgres/connect.py",
        '    ours = {"client_encoding": "UTF8"}\n',
        "    ours: dict[str, str] = {}\n",
        (f"{_ENCODINGS}::test_encoding_of_the_client_is_the_engines_own",),
    ),
    Mutant(
        "unstorable-text-for-all",
        "A text that the database cannot store fails every caller of its batch",
        "postgres/connect.py",
        "    except (UnicodeEncodeError, *UNSTORABLE) as error:\n",
        "    except ZeroDivisionError as error:\n",
        (
            f"{_ENCODINGS}::test_callers_whose_text_can_be_stored_are_not_failed_by_one_whose_cannot",
            f"{_ENCODINGS}::test_one_result_or_reason_that_cannot_be_stored_fails_no_neighbour",
        ),
    ),
    Mutant(
        "unstorable-failure-lost",
        "A failure is not stored when the database has no letters for its text",
        "postgres/hold.py",
        "            if not is_unstorable(error) or len(calls) > 1:\n",
        "            if error:\n",
        (f"{_ENCODINGS}::test_failure_is_stored_whatever_its_text",),
    ),
    Mutant(
        "run-again-after-a-commit",
        "A call of which a part was committed is run again, and told as a refusal of what it did itself",
        "postgres/engine.py",
        "partly_done=any(query.changes for query in done)",
        "partly_done=False",
        (f"{_BETWEEN}::test_a_success_that_was_committed_is_not_told_as_a_refusal",),
    ),
    Mutant(
        "not-run-again-after-a-read",
        "A call that has only read is not run again when its session was ended",
        "postgres/engine.py",
        "partly_done=any(query.changes for query in done)",
        "partly_done=bool(done)",
        (f"{_BETWEEN}::test_a_call_that_has_only_read_is_run_again",),
    ),
    Mutant(
        "undone-transaction-counts-as-done",
        "What a transaction did that was undone counts as committed",
        "postgres/statement.py",
        "await run(connection, step.plan, inside, atomic=True)",
        "await run(connection, step.plan, done, atomic=True)",
        (f"{_BETWEEN}::test_a_transaction_that_was_undone_is_run_again",),
    ),
)
