"""Planted bugs in what joins a transaction of the caller's own: `enqueue_in`, `complete_in`, the SQL function."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_CONNECTION = "postgres/callers_connection.py"
_SQL = "postgres/migrations/0003_enqueue.sql"
_IN = "app/test_enqueue_in.py::test_"
_FROM_SQL = "postgres/test_sql_enqueue.py::test_"
_COMPLETE = "worker/test_complete_in.py::test_"

MUTANTS = (
    Mutant(
        "autocommit-accepted",
        "A job is enqueued on a connection that commits each statement alone",
        _CONNECTION,
        "    if connection.autocommit:\n",
        "    if False:\n",
        (f"{_IN}outside_of_a_transaction_nothing_is_made",),
    ),
    Mutant(
        "asyncpg-outside-of-a-transaction",
        "A job is enqueued on a connection of asyncpg that has no transaction",
        _CONNECTION,
        "        if not connection.is_in_transaction():\n",
        "        if False:\n",
        (f"{_IN}outside_of_a_transaction_nothing_is_made",),
    ),
    Mutant(
        "sqlalchemy-not-begun",
        "SQLAlchemy does not know of the transaction in which the job is, and does not commit it",
        _CONNECTION,
        '            own.exec_driver_sql("select 1")  # SQLAlchemy begins its transaction\n',
        "            pass\n",
        (f"{_IN}commit_makes_the_job_and_rollback_none[Connection]",),
    ),
    Mutant(
        "sqlalchemy-not-begun-on-asyncpg",
        "The first statement of an AsyncConnection is ours, and no transaction is begun for it",
        _CONNECTION,
        '            await own.exec_driver_sql("select 1")',
        "            pass",
        (f"{_IN}commit_makes_the_job_and_rollback_none[AsyncConnection, asyncpg]",),
    ),
    Mutant(
        "django-transaction-that-cannot-commit",
        "A transaction of Django that will be rolled back gets a job",
        _CONNECTION,
        "    connection.validate_no_broken_transaction()\n",
        "",
        (f"{_IN}django_transaction_that_cannot_commit_makes_no_job",),
    ),
    Mutant(
        "codecs-of-the-caller",
        "What the caller's codecs make of a value is written by asyncpg",
        "postgres/asyncpg_statement.py",
        'return _PARAMETER.sub(r"$\\1::text", text)',
        "return text",
        (f"{_IN}asyncpg_gets_every_parameter_of_every_statement_as_text",),
    ),
    Mutant(
        "savepoint-of-asyncpg-kept",
        "An error inside of several steps leaves asyncpg's transaction aborted",
        "postgres/asyncpg_statement.py",
        """    except Exception:
        await _send(connection, "rollback to savepoint tenure")
        await _send(connection, "release savepoint tenure")
        raise
""",
        """    except Exception:
        raise
""",
        (f"{_IN}asyncpg_errors_reach_their_user_as_asyncpg_errors",),
    ),
    Mutant(
        "own-transaction-wakes-nobody",
        "A job in the caller's own transaction brings no wake-up",
        "postgres/callers_transaction.py",
        "        if self._wake and queues and not (yield from notify(queues)):",
        "        if False and not (yield from notify(queues)):",
        (f"{_IN}wakeup_comes_with_the_commit_and_not_before[psycopg]",),
    ),
    Mutant(
        "sql-key-takes-any-body",
        "A key that SQL uses for other work gives the first job",
        _SQL,
        "if (used.verb, used.hash) is distinct from ('enqueue', job_hash) then",
        "if false then",
        (f"{_FROM_SQL}key_makes_one_job_from_sql_and_from_the_library",),
    ),
    Mutant(
        "sql-hash-in-another-order",
        "The hash of a key's work depends on whether SQL or the library computes it",
        _SQL,
        """', ' order by name collate "C")""",
        "', ' order by length(name))",
        (f"{_FROM_SQL}key_makes_one_job_from_sql_and_from_the_library",),
    ),
    Mutant(
        "sql-beyond-the-last-range",
        "SQL makes a job for which no partition exists",
        _SQL,
        "    if new_id >= (select r.high",
        "    if false and new_id >= (select r.high",
        (f"{_FROM_SQL}beyond_the_last_id_range_no_job_is_made",),
    ),
    Mutant(
        "sql-wakes-for-later-jobs",
        "A job that SQL makes for later wakes workers at once",
        _SQL,
        "if enqueue.notify and due <= t and",
        "if enqueue.notify and",
        (f"{_FROM_SQL}wakeup_of_a_transaction_is_one_and_comes_with_its_commit",),
    ),
    Mutant(
        "sql-job-without-its-outbox",
        "A job that SQL makes under a contract with wake-ups writes none to the outbox",
        _SQL,
        "    if registered.wakeup = 'pointer' and",
        "    if false and",
        (f"{_FROM_SQL}contract_with_wakeups_gets_them_while_publishing_is_on",),
    ),
    Mutant(
        "sql-lends-its-owners-rights",
        "Whoever may call the function enqueues with its owner's rights",
        _SQL,
        "parallel unsafe security invoker",
        "parallel unsafe security definer",
        (f"{_FROM_SQL}function_does_not_lend_its_owners_rights",),
    ),
    Mutant(
        "sql-takes-the-first-version",
        "SQL enqueues under the oldest version of a contract",
        _SQL,
        "order by c.registered_at desc, c.version desc",
        "order by c.registered_at, c.version",
        (f"{_FROM_SQL}newest_registered_version_of_a_contract_is_taken",),
    ),
    Mutant(
        "sql-ignores-the-types-limit",
        "A job that SQL makes has the contract's limit where its type has another",
        _SQL,
        "where o.contract = enqueue.contract and o.type = enqueue.type)",
        "where false)",
        (f"{_FROM_SQL}row_is_the_one_that_the_library_makes[defaults-standard]",),
    ),
    Mutant(
        "sql-counts-blanks",
        "The blanks that PostgreSQL writes between the parts of a payload count against its limit",
        _SQL,
        "        size := size - (char_length(bare) - char_length(replace(bare, ' ', '')));\n",
        "",
        (f"{_FROM_SQL}what_the_library_takes_is_taken[8]",),
    ),
    Mutant(
        "uncommitted-end-is-a-success",
        "A job whose handler's transaction was rolled back succeeds, without the handler's rows",
        "worker/reports.py",
        "        if type(outcome) is not Returned or running.ends_in_transaction:\n",
        "        if type(outcome) is not Returned:\n",
        (f"{_COMPLETE}handler_that_returns_without_a_commit_has_failed[in_thread]",),
    ),
    Mutant(
        "committed-end-is-a-lost-lease",
        "A handler that has committed the end of its job is stopped by the next heartbeat",
        "worker/heartbeat.py",
        "        if find_own_end(log, running.job) is None:",
        "        if True:",
        (f"{_COMPLETE}nobody_takes_a_job_whose_end_is_being_committed",),
    ),
    Mutant(
        "rolled-back-end-is-never-lost",
        "A handler that rolled the end of its job back is not stopped when another worker has the job",
        "worker/heartbeat.py",
        "        if find_own_end(log, running.job) is None:",
        "        if False:",
        (f"{_COMPLETE}handler_whose_transaction_was_rolled_back_is_stopped_when_it_loses_the_job[lease]",),
    ),
    Mutant(
        "committed-end-is-refused",
        "A failure after the commit of the job's end counts as refused",
        "worker/running_job.py",
        "        self.answer_lost = True  # whether it commits is not known here\n",
        "",
        (f"{_COMPLETE}handler_may_fail_after_its_commit_and_the_job_stays_ended",),
    ),
    Mutant(
        "end-in-a-process-untold",
        "A handler in a process of its own ends its job, and its worker does not know of it",
        "worker/child_process.py",
        '        note = partial(self._send, "completion")\n',
        '        note = partial(str, "completion")\n',
        (f"{_COMPLETE}handler_that_returns_without_a_commit_has_failed[in_process]",),
    ),
    Mutant(
        "wrong-call-takes-the-job",
        "A call of complete_in that was refused as wrong makes the attempt fail",
        "worker/handler.py",
        """        done = task.app._succeed_in(connection, call)
    except BadInput:
        note(False)
""",
        """        done = task.app._succeed_in(connection, call)
    except BadInput:
""",
        (f"{_COMPLETE}wrong_call_leaves_the_job_to_its_handler",),
    ),
    Mutant(
        "dispatchers-worker-at-the-database",
        "A worker that must never see the database ends a job there",
        "postgres/callers_transaction.py",
        "        if not bound.contract.workers_see_database:\n",
        "        if False:\n",
        (f"{_COMPLETE}worker_that_never_sees_the_database_is_refused",),
    ),
)
