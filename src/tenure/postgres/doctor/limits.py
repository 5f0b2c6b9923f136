"""The numbers from which on doctor finds something wrong."""

from __future__ import annotations

from dataclasses import dataclass

from tenure.jobs.live_worker import SILENT_S


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in seconds, bytes, rows, or shares of a whole."""

    #: An old snapshot: a warning, and critical.
    snapshot_s: float = 300.0
    snapshot_critical_s: float = 3_600.0
    prepared_s: float = 300.0
    blocked_s: float = 10.0
    #: Transactions that a replication slot holds back, and WAL that it keeps while nobody reads it.
    slot_transactions: int = 1_000_000
    slot_bytes: int = 1 << 30
    notification_share: float = 0.25
    #: Free connections, and the share of used ones.
    free_connections: int = 15
    connection_share: float = 0.9
    xid_age: int = 1_500_000_000
    disk_share: float = 0.1
    #: The share of the lock table that all tables and indexes of Tenure may take.
    lock_share: float = 1.0
    skew_s: float = 2.0
    #: Timeouts of the server that are shorter.
    statement_timeout_ms: int = 5_000
    lock_timeout_ms: int = 1_000
    idle_in_transaction_ms: int = 1_000
    idle_session_ms: int = 60_000
    transaction_timeout_ms: int = 120_000
    #: Dead rows of a hot table, when they also outnumber the live ones.
    dead_rows: int = 50_000
    #: Ranges that are made ahead; upkeep keeps four.
    ranges_ahead: int = 2
    #: Jobs that no worker takes, and work of upkeep that is not done.
    unserved_s: float = 10.0
    behind_s: float = 60.0
    #: A worker writes its row every 5 seconds. Of those that were lost, the ones of the last hour.
    silent_s: float = SILENT_S
    lost_s: float = 3_600.0
    #: Upkeep looks for alarms every 15 seconds.
    alarm_round_s: float = 300.0
    #: A publisher refreshes its queues every minute.
    publisher_s: float = 180.0
