"""Bugs in what operators rely on: doctor and alarms."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SERVER = "doctor/test_server.py::test_"
_WORK = "doctor/test_work.py::test_"
_GATE = "contracts/test_gate_b2_alarms.py::test_"
_SINKS = "upkeep/test_alarm_sinks.py::test_"

MUTANTS = (
    Mutant(
        "doctor-reads-its-own-settings",
        "Doctor judges the settings that it has set itself, not those of the server",
        "postgres/doctor/examination.py",
        "server.check_settings, settings=False)",
        "server.check_settings)",
        (f"{_SERVER}a_setting_of_the_database_is_found[statement-timeout-short]",),
    ),
    Mutant(
        "doctor-stops-at-a-failed-part",
        "A part of the examination that fails ends all of it",
        "postgres/doctor/examination.py",
        "    except (psycopg.Error, TenureError) as error:\n",
        "    except TenureError as error:\n",
        (f"{_SERVER}a_session_that_waits_for_a_lock_is_found_with_its_blocker",),
    ),
    Mutant(
        "doctor-finds-itself",
        "Doctor names its own transaction as one that keeps dead rows",
        "postgres/queries/doctor_sessions.sql",
        "pid <> pg_backend_pid() and ",
        "",
        (f"{_SERVER}a_transaction_that_pins_rows_is_found_with_its_pid",),
    ),
    Mutant(
        "doctor-sees-ready-jobs-alone",
        "Doctor does not find a held job whose contract version is not registered",
        "postgres/queries/doctor_live_versions.sql",
        "where role in ('leased', 'active', 'settling') limit",
        "where role in ('leased', 'settling') limit",
        ("doctor/test_schema.py::test_jobs_of_a_version_that_is_not_registered_are_found",),
    ),
    Mutant(
        "doctor-takes-settling-for-expired",
        "Doctor takes a job at a commit point for one whose lease has expired",
        "postgres/queries/doctor_upkeep.sql",
        "min(updated_at) filter (where role = 'settling') as settling_at",
        "min(updated_at) filter (where role = 'active') as settling_at",
        (f"{_WORK}work_that_upkeep_has_not_done_is_found[settling]",),
    ),
    Mutant(
        "warnings-are-critical-exits",
        "Doctor exits with 1 although there are only warnings",
        "cli/doctor.py",
        '        exit_code=1 if severity == "critical" else ONLY_WARNINGS,\n',
        "        exit_code=1,\n",
        ("doctor/test_surfaces.py::test_the_exit_code_is_that_of_the_worst_finding",),
    ),
    Mutant(
        "refusals-never-forgiven",
        "A legal move does not end a row of invalid transitions",
        "postgres/queries/alarm_refusals.sql",
        "where moved.at is null or refused.at > moved.at\n",
        "",
        (f"{_GATE}a_legal_move_in_between_ends_the_row_of_invalid_ones",),
    ),
    Mutant(
        "refusals-of-all-tenants",
        "Invalid transitions of all tenants count together",
        "postgres/queries/alarm_refusals.sql",
        "    select contract, tenant_id, type, at, job_id, code\n",
        "    select contract, 'ada' as tenant_id, type, at, job_id, code\n",
        (f"{_GATE}five_consecutive_invalid_transitions_of_a_tenant_and_type_are_a_p1",),
    ),
    Mutant(
        "entries-of-all-time",
        "Dead letters count as new ones for ever",
        "postgres/queries/alarm_entries.sql",
        "(counted.unit = 'minute' and counted.start >= date_trunc('minute', t - clock.window))",
        "(counted.unit = 'minute')",
        (f"{_GATE}the_alarm_names_the_tenant_whose_dlq_pending_grows_and_no_other",),
    ),
    Mutant(
        "share-fires-at-the-threshold",
        "`>=` for `>`: the share of retrying fires at the threshold",
        "postgres/alarms.py",
        "        if share > limits.retrying_share:\n",
        "        if share >= limits.retrying_share:\n",
        (f"{_GATE}the_alarm_fires_above_the_share_of_retrying_jobs_and_clears_below_it",),
    ),
    Mutant(
        "alarm-fires-at-once",
        "An alarm fires before its condition has held for long enough",
        "postgres/queries/store_alarms.sql",
        "when hold_s <= 0 then t end",
        "when hold_s >= 0 then t end",
        (f"{_GATE}the_alarm_fires_above_the_share_of_retrying_jobs_and_clears_below_it",),
    ),
    Mutant(
        "alarm-fires-again",
        "An alarm fires again at each look",
        "postgres/queries/store_alarms.sql",
        "fired_at = coalesce(alarm.fired_at, case\n",
        "fired_at = coalesce(case\n",
        (f"{_GATE}the_alarm_fires_above_the_share_of_retrying_jobs_and_clears_below_it",),
    ),
    Mutant(
        "unread-kinds-clear",
        "Alarms of a kind that could not be read are cleared",
        "postgres/alarms.py",
        "kinds=sorted(known), began",
        "kinds=sorted(ALARMS), began",
        ("upkeep/test_alarms.py::test_a_kind_that_cannot_be_read_keeps_its_alarms_and_stops_no_other",),
    ),
    Mutant(
        "notice-taken-twice",
        "Two processes send the same notice",
        "postgres/queries/take_alarm_notices.sql",
        "t + :hold_s::double precision * interval '1 second'\n",
        "t\n",
        ("upkeep/test_alarms.py::test_many_processes_at_once_fire_an_alarm_once",),
    ),
    Mutant(
        "webhook-reaches-translated-addresses",
        "A webhook reaches this machine by an IPv4 address that is written as IPv6",
        "upkeep/alarm_sinks.py",
        "        inner = ip.ipv4_mapped or ip.sixtofour\n",
        "        inner = ip.ipv4_mapped\n",
        (f"{_SINKS}an_address_of_this_machine_or_a_private_network_is_not_public[2002:7f00:1::]",),
    ),
    Mutant(
        "webhook-judges-one-address",
        "A webhook's host may have a private address beside a public one",
        "upkeep/alarm_sinks.py",
        "        for address in addresses:\n",
        "        for address in addresses[:1]:\n",
        (f"{_SINKS}the_connection_goes_to_the_address_that_was_judged",),
    ),
    Mutant(
        "webhook-resolved-twice",
        "A webhook's host is resolved again when the connection is made",
        "upkeep/alarm_sinks.py",
        "socket.create_connection((address, port)",
        "socket.create_connection((host, port)",
        (f"{_SINKS}the_connection_goes_to_the_address_that_was_judged",),
    ),
    Mutant(
        "mute-ignores-its-subject",
        "A mute of one subject silences every alarm of its kind",
        "postgres/queries/take_alarm_notices.sql",
        "            and coalesce(mute.subject, alarm.subject) = alarm.subject)\n",
        ")\n",
        ("upkeep/test_alarms.py::test_a_mute_covers_what_it_names",),
    ),
)
