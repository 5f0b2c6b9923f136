"""Values of jobs and their checks: no I/O, no clock."""
