"""What the deployment page prints can be used as it is: commands, units, files, and numbers that are the code's."""

from __future__ import annotations

import configparser
import inspect
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml  # type: ignore[import-untyped]

from tenure.app import App
from tenure.cli.command_table import COMMANDS, GROUPS, load_command, load_member
from tenure.cli.services import upkeep
from tenure.client.connections import Connections
from tenure.http import dispatcher
from tenure.settings import MAX_BODY_BYTES
from tenure.worker import Worker, worker
from tests.architecture.test_documented import commands, page
from tests.cli.forked import tenure

PAGE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
#: Seconds that a caller may let a claim wait.
LONG_POLL_S = 60


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def documents() -> list[dict[str, Any]]:
    return [one for block in blocks("yaml") for one in yaml.safe_load_all(block)]


def containers() -> Iterator[list[str]]:
    """What each container of the page runs."""
    compose, *kubernetes = documents()
    for service in compose["services"].values():
        if "command" in service:
            yield service["command"]
    for one in kubernetes:
        for container in one["spec"].get("template", {}).get("spec", {}).get("containers", ()):
            yield container["args"]


def printed() -> list[list[str]]:
    """The arguments of every whole command on the page."""
    lines = [line for block in blocks("console") for line in re.findall(r"^\$ (.*)$", block, flags=re.MULTILINE)]
    whole = [found[1] for line in lines if (found := re.match(r"(?:[A-Z_]+=\S+ )?tenure (.*)", line))]
    in_compose = [found[1] for line in lines if (found := re.search(r"compose run --rm -T migrate (.*?)\)", line))]
    units = re.findall(r"^ExecStart=\S+/tenure (.*)$", PAGE, flags=re.MULTILINE)
    return [*(shlex.split(one, comments=True) for one in (*whole, *in_compose, *units)), *containers()]


def wrong(arguments: list[str]) -> str | None:
    """What the command line would refuse in this call, without running it."""
    name, *words = arguments
    if name not in {*COMMANDS, *GROUPS}:
        return f"no command {[name]}"
    command = load_command(name)
    if name in GROUPS:
        if not words or words[0] not in command.commands:
            return f"no command {words[:1]}"
        command = load_member(name, words.pop(0))
    try:
        command.make_context("tenure", words)
    except Exception as error:  # what it is depends on what is wrong
        return f"{type(error).__name__}: {error}"
    return None


def test_every_command_of_the_page_would_be_taken() -> None:
    found = printed()
    assert len(found) > 15
    assert [(arguments, said) for arguments in found if (said := wrong(arguments))] == []


def test_commands_and_options_in_the_text_exist() -> None:
    options = commands()
    named = re.findall(r"`tenure ([^`]+)`", PAGE)
    assert len(named) > 30
    for text in named:
        words = text.split()
        name = next((one for one in (" ".join(words[:2]), words[0]) if one in options), None)
        assert name, f"tenure {text}"
        assert set(re.findall(r"--[a-z-]+", text)) <= {*options[name], "--no-upkeep", "--no-wakeups"}, text
    told = set(re.findall(r"`(--[a-z-]+)", PAGE)) - {"--no-upkeep"}
    assert told <= set(itertools.chain(*options.values()))


def test_the_check_notices_what_does_not_exist() -> None:
    assert wrong(["serve", "--no-such-option"])
    assert wrong(["serve", "--port", "many"])
    assert wrong(["workers"])
    assert wrong(["keys", "create", "x"]), "a key is for something"
    assert wrong(["serve", "--port", "8420"]) is None


def test_every_setting_of_the_page_exists() -> None:
    known = page("settings")
    named = set(re.findall(r"\b(TENURE_[A-Z_]+|DATABASE_URL)\b", PAGE))
    assert len(named) > 5
    assert [name for name in named if f"`{name}`" not in known] == []


def test_the_commands_of_the_page_work_as_they_are_printed(dsn: str, tmp_path: Path) -> None:
    lines = _tenure(section("Keys")) + _tenure(section("Backups, and what a restore means"))
    lines += [line for line in re.findall(r"`tenure ([^`]+)`", section("Monitoring")) if not re.search(r" \d+$", line)]
    assert len(lines) > 12
    for line in lines:
        words = [dsn if word == "$RESTORED_URL" else word for word in shlex.split(line, comments=True)]
        done = tenure(*words, cwd=tmp_path, DATABASE_URL=dsn)
        assert done.returncode == 0, f"{line}: {done.stderr}"


def _tenure(text: str) -> list[str]:
    return re.findall(r"^\$ tenure (.*)$", text, flags=re.MULTILINE)


def test_the_sql_of_the_page_runs(dsn: str) -> None:
    inline = [found for found in re.findall(r"`(select [^`]+)`", PAGE) if "setval" in found]
    assert len([*blocks("sql"), *inline]) == 4
    with psycopg.connect(dsn) as connection:
        for role in ("tenure_owner", "tenure_app", "tenure_read"):  # of the whole cluster, and gone with the rollback
            connection.execute(
                f"do $$ begin if to_regrole('{role}') is null then create role {role}; end if; end $$".encode()
            )
        for text in (*blocks("sql"), *inline):
            connection.execute(text.encode())
        connection.rollback()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    units = [block for block in blocks("ini") if "[Unit]" in block]
    assert len(units) == 3
    for unit in units:
        found = re.match(r"# /etc/systemd/system/(\S+\.service)", unit)
        assert found
        text = unit.replace("/opt/shop/.venv/bin/tenure", sys.executable)
        (tmp_path / found[1]).write_text(re.sub(r"^User=.*\n|^WorkingDirectory=.*\n", "", text, flags=re.MULTILINE))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True, text=True, timeout=60, env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )  # fmt: skip
    assert [line for line in (said.stdout + said.stderr).splitlines() if str(tmp_path) in line] == []
    assert said.returncode == 0, said.stderr


def test_the_ini_files_can_be_read() -> None:
    for block in blocks("ini"):
        file = configparser.ConfigParser(strict=True, interpolation=None)
        file.read_string(block)
        assert len(file.sections()) >= 2


def test_who_is_told_to_stop_gets_the_time_that_it_takes() -> None:
    grace = inspect.signature(Worker).parameters["grace"].default
    stopping = {
        "worker": grace + worker._LAST_CALLS_S,
        "serve": dispatcher._DRAIN_S + dispatcher._FLUSH_S,
    }
    given = {}
    for unit in (block for block in blocks("ini") if "TimeoutStopSec" in block):
        file = configparser.ConfigParser(interpolation=None)
        file.read_string(unit)
        given[f"unit {file['Service']['ExecStart'].split()[1]}"] = int(file["Service"]["TimeoutStopSec"])
    compose, *kubernetes = documents()
    for service in compose["services"].values():
        if "stop_grace_period" in service:
            given[f"compose {service['command'][0]}"] = int(service["stop_grace_period"].removesuffix("s"))
    for one in kubernetes:
        pod = one["spec"].get("template", {}).get("spec", {})
        if "terminationGracePeriodSeconds" in pod:
            (container,) = pod["containers"]
            before = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])
            seconds = pod["terminationGracePeriodSeconds"] - int(before[1])
            given[f"kubernetes {container['args'][0]}"] = seconds
    assert len(given) == 6
    for who, seconds in given.items():
        assert seconds >= stopping[who.split()[1]] + 5, who
    assert f"`--grace` ({grace:.0f} s)" in PAGE
    assert f"within {dispatcher._DRAIN_S} s" in PAGE


def test_probes_ask_for_what_needs_no_key() -> None:
    assert set(re.findall(r"path: (\S+?),", PAGE)) == {"/healthz", "/readyz"}
    for readiness in re.findall(r"readinessProbe: .*", PAGE):
        assert "/readyz" in readiness
    for liveness in re.findall(r"livenessProbe: .*", PAGE):
        assert "/healthz" in liveness, "a dispatcher is not to be killed because its database is away"


def test_proxies_let_a_long_poll_and_the_largest_body_pass(tmp_path: Path) -> None:
    (nginx,), (caddy,) = blocks("nginx"), blocks("caddyfile")
    mebibytes = MAX_BODY_BYTES // 1024**2
    assert f"client_max_body_size {mebibytes}m;" in nginx
    assert f"max_size {mebibytes}MiB" in caddy
    for waits in (r"proxy_read_timeout (\d+)s;", r"response_header_timeout (\d+)s"):
        found = re.search(waits, nginx + caddy)
        assert found
        assert int(found[1]) > LONG_POLL_S
    if shutil.which("nginx"):
        plain = re.sub(r" *ssl_\w+ .*\n", "", nginx).replace("443 ssl", "8443")
        file = tmp_path / "nginx.conf"
        file.write_text(f"pid {tmp_path}/pid; error_log {tmp_path}/log;\nevents {{}}\nhttp {{\n{plain}}}\n")
        subprocess.run(["nginx", "-t", "-c", str(file)], check=True, timeout=30)
    if shutil.which("caddy"):
        (tmp_path / "Caddyfile").write_text(caddy)
        subprocess.run(["caddy", "adapt", "--config", str(tmp_path / "Caddyfile")], check=True, timeout=30)


def test_the_connections_are_those_of_the_pools() -> None:
    app_has = inspect.signature(Connections.open).parameters["connections"].default
    found = re.search(r"connections=(\d+)", inspect.getsource(App.worker))
    assert found
    beats = int(found[1])
    at_most = {
        row.split("|")[1].strip(): row.split("|")[4].strip()
        for row in section("Connections").splitlines()
        if "|" in row
    }
    assert at_most["`tenure worker`"].startswith(f"{app_has + beats + 1}: {app_has} to claim and finish, {beats} for ")
    connections = dispatcher._CONNECTIONS + upkeep.CONNECTIONS + 1
    said = f"{connections}: {dispatcher._CONNECTIONS} for requests, {upkeep.CONNECTIONS} for upkeep"
    assert at_most["`tenure serve`"].startswith(said)
    assert at_most["`tenure serve --no-upkeep`"] == str(dispatcher._CONNECTIONS + 1)
    assert at_most["`tenure upkeep`"] == str(upkeep.CONNECTIONS)
    assert at_most["a process that enqueues with `App`"].startswith(f"{app_has} for each event loop")
    assert f"want {4 * 4 * (app_has + beats + 1 + app_has)} connections" in PAGE


def test_the_page_is_linked_from_where_people_begin() -> None:
    root = Path(__file__).parents[2]
    assert "](docs/deployment.md)" in (root / "README.md").read_text(encoding="utf-8")
    assert "](deployment.md)" in (root / "docs" / "guide.md").read_text(encoding="utf-8")
