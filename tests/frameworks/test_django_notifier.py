"""Django: a notice follows the commit of a view's transaction, or is part of it with Postgres."""

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.parts import missing
from tests.relay.engines import PostgresServer

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(120)

# Django's settings are those of a process, so each test has a process of its own.
PROGRAM = """
import asyncio, json, sys
import django
from django.conf import settings
settings.configure(DATABASES={"default": json.loads(sys.argv[1])}, USE_TZ=True)
django.setup()
from django.db import connection, connections, transaction
from purgatory.relay import MemoryTransport, Notifier, PostgresTransport

sent = []

class Recording(MemoryTransport):
    async def publish(self, payload):
        sent.append(payload)
    publish_in_sync = None  # like an engine without transactions
    def __copy__(self):
        return Recording()

transport = PostgresTransport(sys.argv[2], channel="orders") if len(sys.argv) > 2 else Recording()
notifier = Notifier(transport)
for one in (connection, connections["default"]):  # what django.db has, and what it stands for
    with transaction.atomic():
        notifier.check_in(one, {"o-1": 3})
        print("in the transaction", sent)
    print("committed", sent)
    sent.clear()
    try:
        with transaction.atomic():
            notifier.check_in(one, ["rolled back"])
            raise KeyError
    except KeyError:
        print("rolled back", sent)
notifier.check_in(connection, ["no transaction"])
print("autocommit", sent)

async def view():
    try:
        notifier.check_in(connection, ["a"])
    except RuntimeError as error:
        print(error)

asyncio.run(view())
notifier.close()
"""


def run(*arguments: str) -> list[str]:
    """Run the program, and return the lines that it prints."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(PROGRAM), *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.splitlines()


def test_after_the_commit() -> None:
    """With an engine without transactions, ``transaction.on_commit`` sends the notice."""
    notice = '[1,"","keys",[["o-1",3]]]'
    once = ["in the transaction []", f"committed {[notice]}", "rolled back []"]
    lines = run('{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}')
    assert lines[:6] == once * 2
    other = '[1,"","keys",[["no transaction"]]]'
    assert lines[6] == f"autocommit {[other]}"
    assert "Notifier.check_in blocks" in lines[7]


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """Yield a running Postgres server."""
    reason = PostgresServer.missing()
    if reason:
        missing(reason)
    server = PostgresServer()
    server.start()
    yield server
    server.close()


async def test_within_a_transaction_of_postgres(postgres: PostgresServer) -> None:
    """With Postgres, the notice is a query of the transaction: it arrives after a commit only."""
    parts = conninfo_to_dict(postgres.url)
    settings = (
        f'{{"ENGINE": "django.db.backends.postgresql", "NAME": "{parts["dbname"]}", "USER": "{parts["user"]}",'
        f' "HOST": "{parts["host"]}", "PORT": "{parts["port"]}"}}'
    )
    async with await psycopg.AsyncConnection.connect(postgres.url, autocommit=True) as listening:
        await listening.execute("LISTEN orders")
        await asyncio.to_thread(run, settings, postgres.url)
        await listening.execute("SELECT 1")
        payloads = [notify.payload async for notify in listening.notifies(timeout=0)]
    assert payloads == ['[1,"","keys",[["o-1",3]]]'] * 2 + ['[1,"","keys",[["no transaction"]]]']
