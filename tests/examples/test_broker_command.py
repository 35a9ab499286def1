"""The broker's command line, and what the soak calls a broken promise."""

from collections.abc import Callable

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")
pytest.importorskip("aiokafka", reason="the extra 'test' is not installed")
pytest.importorskip("confluent_kafka", reason="the extra 'test' is not installed")

from examples.broker import Server, Settings
from examples.broker.__main__ import main, parser, settings_from, table
from examples.broker.soak import judge
from examples.broker.soak_clients import Books


def test_without_options_the_settings_are_the_defaults() -> None:
    """The command line and the library say the same."""
    assert settings_from(parser().parse_args([])) == Settings()


def test_every_option_reaches_the_settings() -> None:
    """Nothing that is given is forgotten."""
    line = "--host ::1 --port 1 --advertised-host h --followers 0 --replication-delay 0.5 --partitions 7"
    line += " --no-auto-create --retention-bytes 8 --max-connections 9 --max-frame-bytes 10 --max-fetch-bytes 11"
    line += " --max-buffered-bytes 12 --write-buffer-bytes 13 --write-timeout 14 --frame-timeout 15 --idle-timeout 16"
    line += " --initial-rebalance-delay 17 --min-session-timeout 18"
    given = settings_from(parser().parse_args(line.split()))
    default = Settings()
    same = {name for name in Settings.__slots__ if getattr(given, name) == getattr(default, name)}
    assert same == {
        "stall_prefix",
        "max_partitions",
        "segment_bytes",
        "max_message_bytes",
        "max_producers",
        "max_offset_metadata",
        "max_committed",
        "shutdown_timeout",
    }
    assert (given.group.initial_rebalance_delay, given.group.min_session_timeout) == (17.0, 18.0)


def test_an_option_that_makes_no_sense_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is that of a wrong command line."""
    with pytest.raises(SystemExit) as left:
        main(["--max-frame-bytes", "0"])
    assert left.value.code == 2
    assert "max_frame_bytes is at least 1" in capsys.readouterr().err


async def test_the_statistics_have_a_line_for_every_purgatory() -> None:
    """And one for the connections."""
    async with Server(Settings(port=0)) as server:
        lines = table(server).splitlines()
    names = [line.split()[0] for line in lines]
    assert names == ["purgatory", "produce", "fetch", "delete_records", "join", "sync", "heartbeat", "connections"]
    assert len({len(line) for line in lines[:-1]}) == 1


CLIENTS = (b"aiokafka", b"kafka-python", b"confluent-kafka")


def perfect() -> tuple[Books, list[list[bytes]]]:
    """Three records of each producer, each in its partition, all seen."""
    log = [[b"%s %d" % (name, number) for number in range(3)] for name in CLIENTS]
    books = Books()
    for name in CLIENTS:
        books.acknowledged[name.decode()] = [0, 1, 2]
    books.seen = {value for values in log for value in values}
    return books, log


def test_a_log_with_every_record_once_and_in_order_keeps_all_promises() -> None:
    """Nothing is found where there is nothing."""
    books, log = perfect()
    judge(books, log)
    assert books.failures == []


@pytest.mark.parametrize(
    ("damage", "failure"),
    [
        (lambda books, log: log[1].remove(b"kafka-python 1"), "kafka-python: 1 acknowledged records are not"),
        (lambda books, log: log[0].append(b"aiokafka 2"), "aiokafka: records twice, or out of order"),
        (lambda books, log: log[0].reverse(), "aiokafka: records twice, or out of order"),
        (lambda books, log: books.seen.remove(b"confluent-kafka 0"), "the group has not seen 1 of 9 records"),
        (lambda books, log: books.acknowledged["aiokafka"].clear(), "aiokafka was never acknowledged anything"),
    ],
)
def test_a_broken_promise_is_found(damage: Callable[[Books, list[list[bytes]]], object], failure: str) -> None:
    """A record lost, doubled, out of order or unseen, or a producer that never got through."""
    books, log = perfect()
    damage(books, log)
    judge(books, log)
    assert any(found.startswith(failure) for found in books.failures), books.failures
