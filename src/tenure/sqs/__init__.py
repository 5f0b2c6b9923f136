"""Wake-ups through Amazon SQS, or a server that speaks its protocol.

    publisher ──▶ MessageQueues.send ──▶ SQS ──▶ Inbox.receive ──▶ worker claims the task by its id

A message says `{"task_id": "…"}` and nothing else: PostgreSQL has the state. Messages may be lost, doubled, late and
out of order; that changes only when a job starts. Needs the extra `sqs`.
"""
