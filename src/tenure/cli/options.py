"""Options that many commands share: the database, filters, ids, and the log of services."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from tenure.cli.output import note_error
from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.search import LetterSearch, Search, filters_of


def os_user() -> str:
    """The name of the account that runs this command, from its uid and not from the environment."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run under a uid that has no account
        return f"uid {os.getuid()}"


def parse_id(name: str, text: str) -> int:
    """The id in this text; refuses anything but the digits of a possible id."""
    # Not int(): it accepts 4_2, and digits of other scripts.
    if not re.fullmatch(r"[0-9]{1,30}", text):
        raise BadInput(f"{name} must be a whole number, not {text!r}")
    return validation.check_integer(name, int(text), 1, validation.MAX_ID)


def id_parser(name: str) -> Callable[[str], int]:
    """Parse an id for typer; a refused one ends the command with its message and 1, where typer would end with 2."""

    def parse(text: str) -> int:
        try:
            return parse_id(name, text)
        except BadInput as error:
            note_error(error)
            raise typer.Exit(1) from None

    return parse


DatabaseUrl = Annotated[
    str | None, typer.Option("--database-url", help="Default: DATABASE_URL, else the embedded one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Actor = Annotated[str, typer.Option("--actor", default_factory=os_user, help="For the log; default: the OS user.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; recorded in the log.")]
OnlyContract = Annotated[str | None, typer.Option("--contract", help="Only this contract.")]
OnlyQueue = Annotated[str | None, typer.Option("--queue", help="Only this queue.")]
OnlyTenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")]
OnlyType = Annotated[str | None, typer.Option("--type", help="Only this job type.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Rows on one page.")]
JobId = Annotated[int, typer.Argument(metavar="ID", help="The job's id.", parser=id_parser("id"))]
LogLevel = Annotated[str, typer.Option("--log-level", help="The lowest level to log: debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option("--log-format", help="text or json; default: TENURE_LOG_FORMAT.")]


def merge_filters(search: Search | LetterSearch, options: Mapping[str, str]) -> dict[str, Any]:
    """The filters of the query and of the options together; refuses two values for one field."""
    filters = filters_of(search)
    for name, value in options.items():
        field = "tenant_id" if name == "tenant" else name
        if filters[field] not in (None, value):
            raise BadInput(f"--{name} is {value!r}, and the query has {filters[field]!r}; give one of them")
        filters[field] = value
    return filters


def set_up_logging(level: str, log_format: str | None) -> None:
    """Log to stderr, one line for each record."""
    from tenure import logs
    from tenure.settings import Settings

    logs.set_up(level, log_format or Settings.load().log_format)
