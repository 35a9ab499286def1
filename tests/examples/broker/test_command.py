"""The broker's command line, and the failures that the soak test detects."""

import sys
from collections.abc import Callable

import pytest

pytest.importorskip("kafka", reason="the extra 'broker' is not installed")
pytest.importorskip("crc32c", reason="the extra 'broker' is not installed")
pytest.importorskip("aiokafka", reason="the extra 'test' is not installed")
pytest.importorskip("confluent_kafka", reason="the extra 'test' is not installed")

from examples.broker import Server, Settings
from examples.broker.__main__ import main, parser, settings_from, table
from examples.broker.apis.api_01_fetch import DelayedFetch
from examples.broker.soak import broker_process
from examples.broker.soak.__main__ import main as soak
from examples.broker.soak.broker_process import BrokerProcess, is_at_rest
from examples.broker.soak.delivery_check import CLIENTS, DeliveryCheck, NumberSet


def test_without_options_the_settings_are_the_defaults() -> None:
    """The command line and the library have the same defaults."""
    assert settings_from(parser().parse_args([])) == Settings()


def test_the_live_page_needs_the_extra_of_the_examples(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the packages of the page, ``--web`` prints what to install and starts no broker."""
    monkeypatch.setitem(sys.modules, "starlette.applications", None)  # an import of it fails
    for name in [name for name in sys.modules if name.startswith("examples.web")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SystemExit):
        main(["--web", "--port", "0"])
    assert capsys.readouterr().err.endswith(
        "error: --web needs 'starlette.applications', which is not installed: pip install -e '.[examples]'\n"
    )


def test_every_option_reaches_the_settings() -> None:
    """Every option of the command line reaches the settings."""
    line = "--host ::1 --port 1 --advertised-host h --followers 0 --replication-delay 0.5 --partitions 7"
    line += " --no-auto-create --retention-bytes 8 --max-connections 9 --max-frame-bytes 10 --max-fetch-bytes 11"
    line += " --max-buffered-bytes 12 --write-buffer-bytes 13 --write-timeout 14 --frame-timeout 15 --idle-timeout 16"
    line += " --initial-rebalance-delay 17 --min-session-timeout 18 --segment-bytes 19"
    given = settings_from(parser().parse_args(line.split()))
    default = Settings()
    same = {name for name in Settings.__slots__ if getattr(given, name) == getattr(default, name)}
    assert same == {
        "stall_prefix",
        "max_partitions",
        "max_message_bytes",
        "max_producers",
        "max_offset_metadata",
        "max_committed",
        "max_all_producers",
        "max_committed_bytes",
        "max_committed_group_bytes",
        "max_log_bytes",
        "max_parked_partitions",
        "max_request_elements",
        "timestamp_search_records",
        "shutdown_timeout",
    }
    assert (given.group.initial_rebalance_delay, given.group.min_session_timeout) == (17.0, 18.0)


def test_an_option_that_makes_no_sense_is_an_error_that_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid option exits with the code of a wrong command line."""
    with pytest.raises(SystemExit) as left:
        main(["--max-frame-bytes", "0"])
    assert left.value.code == 2
    assert "max_frame_bytes must be at least 1, got " in capsys.readouterr().err


async def test_the_statistics_have_a_line_for_every_purgatory() -> None:
    """There is also a line for the connections; the statistics show whether the broker is idle."""
    async with Server(Settings(port=0)) as server:
        lines = table(server).splitlines()
        assert is_at_rest(lines)
        busy = DelayedFetch([], min_bytes=1, max_bytes=1, timeout=10.0)
        server.broker.fetch.try_complete_else_watch(busy, [("topic", 0)])
        assert not is_at_rest(table(server).splitlines())
        busy.cancel()
        assert is_at_rest(table(server).splitlines())
        assert not is_at_rest([*lines[:-1], lines[-1].replace("connections 0", "connections 1")])
    names = [line.split()[0] for line in lines]
    assert names == ["purgatory", "produce", "fetch", "delete_records", "join", "sync", "heartbeat", "connections"]
    assert len({len(line) for line in lines[:-1]}) == 1


def delivery_of(log: list[bytes]) -> DeliveryCheck:
    """Return a delivery check for this log, with three acknowledged and seen records of each producer."""
    delivery = DeliveryCheck()
    delivery.hostile = 1
    for name in CLIENTS:
        for number in range(3):
            delivery.acknowledged[name].add(number)
            delivery.add_seen(b"%s %d" % (name.encode(), number))
    for value in log:
        delivery.add_logged(value)
    return delivery


def perfect() -> list[bytes]:
    """Return a correct log."""
    return [b"%s %d" % (name.encode(), number) for number in range(3) for name in CLIENTS]


def test_a_log_with_every_record_once_and_in_order_keeps_all_promises() -> None:
    """A correct log causes no failure."""
    delivery = delivery_of(perfect())
    delivery.verify()
    assert delivery.failures == []
    assert delivery.all_seen()
    assert delivery.records() == 9


@pytest.mark.parametrize(
    ("damage", "failure"),
    [
        (lambda log: log.remove(b"kafka-python 1"), "kafka-python: 1 acknowledged records are missing from the log"),
        (lambda log: log.append(b"aiokafka 2"), "aiokafka: record 2 is a duplicate or out of order after 2"),
        (lambda log: log.reverse(), "aiokafka: record 1 is a duplicate or out of order after 2"),
        (lambda log: log.append(b"confluent-kafka 3"), "confluent-kafka: the group has not seen 1 records of the log"),
    ],
)
def test_a_broken_promise_is_found(damage: Callable[[list[bytes]], object], failure: str) -> None:
    """A record that is lost, duplicated, out of order or unseen is a failure."""
    log = perfect()
    damage(log)
    delivery = delivery_of(log)
    delivery.verify()
    assert failure in delivery.failures


def test_a_producer_that_never_got_through_is_a_broken_promise() -> None:
    """If no record of a producer was acknowledged, the check fails."""
    delivery = DeliveryCheck()
    delivery.verify()
    assert delivery.failures == [
        "no hostile connection was opened",
        *(f"{name}: no record was acknowledged" for name in CLIENTS),
    ]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_the_soak_takes_some_time(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid duration is refused before anything starts."""
    with pytest.raises(SystemExit) as left:
        soak(["--seconds", seconds])
    assert left.value.code == 2
    assert "--seconds must be above 0 and finite, got " in capsys.readouterr().err


def test_the_soak_does_not_judge_statistics_from_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that were already printed, and the table after them, may show what the broker held earlier."""

    def table(log: int) -> list[str]:
        rows = [
            f"{name} 0 0 0 9 0 0 1 5 0\n" for name in ("produce", "fetch", "delete_records", "join", "sync", "beat")
        ]
        idle = "connections 0, closed for a reason 3, buffered 0 bytes, timer 0, log"
        return ["purgatory parked\n", *rows, f"{idle} {log} bytes\n"]

    broker = BrokerProcess.__new__(BrokerProcess)  # without a process
    broker.output = table(1 << 20)
    sizes = iter([1 << 20, 0])
    monkeypatch.setattr(BrokerProcess, "has_ended", False)
    monkeypatch.setattr(broker_process.time, "sleep", lambda _: broker.output.extend(table(next(sizes))))
    assert broker.log_mib() == 1
    assert broker.wait_until_at_rest()
    assert broker.log_mib() == 0


def test_marks_know_which_numbers_they_have() -> None:
    """The set contains the added numbers, in whatever order and however often they were added."""
    marks, others = NumberSet(), NumberSet()
    for number in (5, 0, 5, 2):
        marks.add(number)
    others.add(2)
    others.add(9)
    assert (list(marks), len(marks)) == ([0, 2, 5], 3)
    assert 2 in marks
    assert 9 not in marks
    assert marks.lacks(others) == 1
    assert others.lacks(marks) == 2
