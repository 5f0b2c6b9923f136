"""Bugs in what operators rely on: doctor."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SERVER = "doctor/test_server.py::test_"
_WORK = "doctor/test_work.py::test_"

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
)
