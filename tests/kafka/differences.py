"""The differences between the example broker and Kafka, with the reason for each.

``tests.kafka.judge`` compares its results with this list, line by line.  An unlisted difference is a failure, and so is
an entry without a difference.  ``docs/broker.md`` has the same list.
"""

from typing import NamedTuple

__all__ = ["DIFFERENCES", "NOT_COMPARED", "Difference", "markdown", "not_compared"]


class Difference(NamedTuple):
    """``reason``: one sentence.  ``pairs``: the lines at the real broker and at ours."""

    reason: str
    pairs: list[tuple[str, str]]


_OLD = {  # the versions that Kafka 4 has removed
    "Produce": 3,
    "Fetch": 4,
    "ListOffsets": 1,
    "OffsetCommit": 2,
    "OffsetFetch": 1,
    "CreateTopics": 2,
    "DeleteTopics": 1,
}
_OLD_ANSWERS = {"DeleteTopics": "UNKNOWN_TOPIC_OR_PARTITION"}
_NO_TRANSACTIONS = "This broker has no transactions; clients treat the error as final."

DIFFERENCES: dict[tuple[str, str], Difference] = {
    ("A fetch between the high watermark and the end of the log", "wire"): Difference(
        "Kafka returns an empty response at once, and the consumer retries; this broker waits for the followers.",
        [
            (f"{offset}: NONE hw 0 start 0 [] at once", f"{offset}: NONE hw 0 start 0 [] at the deadline")
            for offset in (1, 2, 3)
        ],
    ),
    ("A fetch whose records are deleted while it waits", "wire"): Difference(
        "Kafka does not check parked fetches when records are deleted; this broker ends the wait with the error.",
        [
            (
                "OFFSET_OUT_OF_RANGE hw -1 start -1 [] at the deadline",
                "OFFSET_OUT_OF_RANGE hw -1 start -1 [] at once",
            )
        ],
    ),
    ("A fetch that requests a session", "wire"): Difference(
        "This broker has no fetch sessions, so clients list all partitions in each fetch.",
        [("NONE session given", "NONE session none")],
    ),
    ("A produce request with null records", "wire"): Difference(
        "Kafka fails internally and never answers; this broker returns INVALID_RECORD.",
        [("answered False", "answered True")],
    ),
    ("Batches with a valid header and damaged records", "wire"): Difference(
        "This broker reads only the header of a batch and decompresses nothing; lengths must match exactly.",
        [
            ("an absurd length: UNKNOWN_SERVER_ERROR", "an absurd length: INVALID_RECORD"),
            ("bytes behind it: NONE", "bytes behind it: INVALID_RECORD"),
            ("a codec that does not fit: UNKNOWN_SERVER_ERROR", "a codec that does not fit: NONE"),
            ("records that are rubbish: UNKNOWN_SERVER_ERROR", "records that are rubbish: NONE"),
            ("a producer without an epoch: NONE", "a producer without an epoch: INVALID_RECORD"),
        ],
    ),
    ("A producer ID for a transactional ID", "wire"): Difference(
        _NO_TRANSACTIONS, [("NONE", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED")]
    ),
    ("FindCoordinator", "wire"): Difference(
        _NO_TRANSACTIONS,
        [("transaction NONE port True", "transaction TRANSACTIONAL_ID_AUTHORIZATION_FAILED port False")],
    ),
    ("A group whose only commit was rejected", "wire"): Difference(
        "Kafka keeps a group created by a rejected commit; this broker removes the group to save memory.",
        [("UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION")],
    ),
    ("Duplicate entries in a request", "wire"): Difference(
        "This broker returns one result for duplicate entries, so a small request cannot cause a large response.",
        [
            ("OffsetFetch NONE [(0, 2, '', 'NONE'), (0, 2, '', 'NONE')]", "OffsetFetch NONE [(0, 2, '', 'NONE')]"),
            ("DescribeGroups ['Empty', 'Empty']", "DescribeGroups ['Empty']"),
        ],
    ),
    ("ListOffsets by timestamp in compressed batches", "wire"): Difference(
        "This broker decompresses nothing; it returns the first offset and the highest timestamp of the batch.",
        [
            ("1000: NONE offset 0 timestamp 1000", "1000: NONE offset 0 timestamp 3000"),
            ("2500: NONE offset 2 timestamp 3000", "2500: NONE offset 0 timestamp 3000"),
            ("3000: NONE offset 2 timestamp 3000", "3000: NONE offset 0 timestamp 3000"),
            ("4000: NONE offset 3 timestamp 4000", "4000: NONE offset 3 timestamp 5000"),
            ("5000: NONE offset 4 timestamp 5000", "5000: NONE offset 3 timestamp 5000"),
        ],
    ),
    ("CreateTopics with replicas and configurations in the request", "wire"): Difference(
        "There are no other brokers to place replicas on, and this broker ignores topic configurations.",
        [
            ("placed NONE", "placed INVALID_REPLICA_ASSIGNMENT"),
            ("configured with an unknown name error 40", "configured with an unknown name NONE"),
        ],
    ),
    ("A member ID that is not used in time", "wire"): Difference(
        "Kafka keeps the empty group for a while; this broker removes the group to save memory.",
        [
            (
                "NONE Empty '' '' 0 members UNKNOWN_MEMBER_ID member id given",
                "NONE Dead '' '' 0 members UNKNOWN_MEMBER_ID member id given",
            )
        ],
    ),
    ("Every API in every version", "wire"): Difference(
        "Kafka 4 has removed the oldest versions; this broker keeps them, because librdkafka looks for Produce 0.",
        [
            (f"{name} {version}: closed", f"{name} {version}: {_OLD_ANSWERS.get(name, 'NONE')}")
            for name, first in _OLD.items()
            for version in range(first)
        ],
    ),
    ("A request followed by extra bytes", "wire"): Difference(
        "Kafka ignores bytes after the request; this broker treats a frame that is too long as malformed.",
        [("a heartbeat answered", "a heartbeat closed")],
    ),
}

# Error codes of this broker that no scenario provokes at a real one, with the reason.
NOT_COMPARED = {
    "COORDINATOR_NOT_AVAILABLE": "returned only while the broker shuts down",
    "FENCED_LEADER_EPOCH": "requires the election of a new leader, which no client can trigger here",
    "GROUP_ID_NOT_FOUND": "returned by the group coordinator for DeleteGroups, which this broker does not support",
    "GROUP_MAX_SIZE_REACHED": "a limit of this broker",
    "KAFKA_STORAGE_ERROR": "a limit of this broker",
    "NON_EMPTY_GROUP": "returned by the group coordinator for DeleteGroups, which this broker does not support",
    "NOT_COORDINATOR": "returned only while the broker shuts down or when a group is removed",
    "POLICY_VIOLATION": "a limit of this broker",
}


def markdown() -> str:
    """Return the list as the rows of a table."""
    return "\n".join(f"| {scenario} | {known.reason} |" for (scenario, _), known in DIFFERENCES.items())


def not_compared() -> str:
    """Return the error codes that are not compared as the rows of a table."""
    return "\n".join(f"| {code} | {reason} |" for code, reason in NOT_COMPARED.items())
