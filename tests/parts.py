"""Parts that a machine may lack: optional packages, Maven, a JDK, a broker.

Tests that need a missing package are not collected, and the summary has one line for each part.  A test that needs
another missing program is skipped with the reason.  With ``PURGATORY_REQUIRE_PARTS=1`` both are failures instead, so a
run that should have had all parts cannot pass without them.
"""

import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import pytest

__all__ = ["PARTS", "REQUIRED", "REQUIRE_PARTS", "Part", "missing", "part_without_packages"]

REQUIRED: Final = "PURGATORY_REQUIRE_PARTS"
REQUIRE_PARTS: Final = os.environ.get(REQUIRED) == "1"


class Part(NamedTuple):
    """A part of the tests: its name, the paths below ``tests``, and the modules it imports."""

    name: str
    paths: tuple[str, ...]
    modules: tuple[str, ...]

    def lacks(self) -> list[str]:
        """Return the modules that are not installed."""
        return [module for module in self.modules if not _installed(module)]


PARTS: Final = (
    Part(
        "the pipeline on Spark",
        ("pipeline", "benchmarks/test_stream.py"),
        ("pyspark", "pandas", "pyarrow", "matplotlib", "jinja2"),
    ),
    Part(
        "the pipeline on a cluster",
        ("pipeline/cluster/test_cluster.py",),
        ("grpc_status", "zstandard", "moto", "flask_cors"),
    ),
    Part("the streaming job between Kafka topics", ("kafka/test_spark.py",), ("pyspark", "pandas", "pyarrow")),
    Part("the journal", ("journal",), ("pyarrow",)),
    Part(
        "the broker",
        ("examples/broker", "examples/web/test_broker_page.py", "benchmarks/test_broker.py"),
        ("kafka", "crc32c"),
    ),
    Part(
        "Kafka's clients",
        ("kafka", "examples/broker/test_clients.py", "examples/broker/test_command.py"),
        ("kafka", "crc32c", "aiokafka", "confluent_kafka"),
    ),
    Part(
        "the relay on real engines",
        (
            "relay/test_engines.py",
            "relay/test_nats_connections.py",
            "relay/test_nemesis.py",
            "relay/test_notifier.py",
            "relay/test_proven_connections.py",
            "relay/test_receiving.py",
            "relay/test_redis_failover.py",
            "relay/test_secrets.py",
            "relay/test_wire_format.py",
            "examples/test_job_status_relayed.py",
        ),
        ("psycopg", "redis", "nats"),
    ),
    Part("the orders example", ("examples/orders/test_orders.py",), ("psycopg_pool", "redis", "nats")),
    Part(
        "pages in a browser",
        ("examples/web/test_page.py", "asgi/inspector/test_page.py"),
        ("playwright", "axe_playwright_python"),
    ),
    Part(
        "uvloop",
        (
            "aio/test_check_threadsafe.py",
            "aio/test_fork.py",
            "aio/test_loop_shutdown.py",
            "aio/test_second_loop.py",
        ),
        ("uvloop",),
    ),
    Part("gRPC", ("frameworks/test_grpc.py",), ("grpc",)),
    Part("Litestar", ("frameworks/test_litestar.py",), ("litestar",)),
    Part("Quart", ("frameworks/test_quart.py",), ("quart",)),
    Part("Django", ("frameworks/test_django.py",), ("django",)),
    Part("notices from Django", ("frameworks/test_django_notifier.py",), ("django", "psycopg")),
    Part("notices from Celery", ("frameworks/test_celery.py",), ("celery", "redis")),
    Part("notices from Taskiq", ("frameworks/test_taskiq.py",), ("taskiq",)),
    Part(
        "notices in transactions",
        ("relay/test_check_in.py",),
        ("sqlalchemy", "greenlet", "asyncpg", "aiosqlite", "psycopg"),
    ),
)


@cache
def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def part_without_packages(path: Path) -> Part | None:
    """Return the part that the test file or folder belongs to if one of its packages is not installed."""
    if REQUIRE_PARTS:
        return None
    here = Path(__file__).parent
    if not path.is_relative_to(here):
        return None
    relative = path.relative_to(here).as_posix()
    for part in PARTS:
        if any(relative == name or relative.startswith(f"{name}/") for name in part.paths) and part.lacks():
            return part
    return None


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it if every part is required."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, and {reason}")
    pytest.skip(reason)
