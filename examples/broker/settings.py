"""The settings of the broker.  Durations are in seconds, sizes in bytes."""

from dataclasses import dataclass, field

from examples.group import GroupConfig

__all__ = ["Settings"]

_MIB = 1 << 20
_LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the broker.  Every resource that a client can consume has a limit.

    ``host``, ``port``           address to listen on; port 0 selects a free port
    ``advertised_host``          host that Metadata returns; None: ``host``
    ``followers``                simulated followers per partition; the leader is one more replica
    ``replication_delay``        time that a follower takes to copy; 0: one turn of the event loop
    ``stall_prefix``             followers of topics with this prefix never catch up; empty: no such topics
    ``auto_create``              whether Metadata creates missing topics
    ``default_partitions``       partitions of a topic that is created without a number of partitions
    ``max_partitions``           partitions of all topics together
    ``segment_bytes``            size at which a log segment is closed
    ``retention_bytes``          size above which a partition deletes its oldest segments
    ``max_log_bytes``            size of all logs together; above it, the largest log loses its oldest segment
    ``max_message_bytes``        size of one record batch
    ``max_producers``            idempotent producers that a partition remembers
    ``max_all_producers``        idempotent producers that all partitions together remember
    ``max_offset_metadata``      characters in the metadata of one committed offset
    ``max_committed``            committed offsets of all groups together
    ``max_committed_bytes``      size of the metadata of all committed offsets together
    ``max_committed_group_bytes``  the same for one group
    ``max_request_elements``     elements of all arrays of one request together
    ``timestamp_search_records`` records that one ListOffsets request reads
    ``max_parked_partitions``    partitions of all parked fetches together
    ``max_connections``          open connections; further ones are closed at once
    ``max_frame_bytes``          size of one request
    ``max_fetch_bytes``          size of one Fetch response; its first batch may exceed it
    ``max_buffered_bytes``       bytes of incoming, running, and parked requests and of unsent responses, for all
                                 connections together; above it, the largest connection is closed
    ``write_buffer_bytes``       unsent bytes above which the next request of a connection waits
    ``frame_timeout``            time within which the rest of a request must arrive
    ``write_timeout``            time within which a response must be sent
    ``idle_timeout``             time without a request after which a connection is closed
    ``shutdown_timeout``         time that sending the last responses may take
    """

    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str | None = None
    followers: int = 2
    replication_delay: float = 0.002
    stall_prefix: str = "stall"
    auto_create: bool = True
    default_partitions: int = 1
    max_partitions: int = 10_000
    segment_bytes: int = 4 * _MIB
    retention_bytes: int = 256 * _MIB
    max_log_bytes: int = 4096 * _MIB
    max_message_bytes: int = _MIB + 12
    max_producers: int = 10_000
    max_all_producers: int = 100_000
    max_offset_metadata: int = 4096
    max_committed: int = 1_000_000
    max_committed_bytes: int = 64 * _MIB
    max_committed_group_bytes: int = 8 * _MIB
    max_request_elements: int = 10_000
    timestamp_search_records: int = 10_000
    max_parked_partitions: int = 100_000
    max_connections: int = 10_000
    max_frame_bytes: int = 8 * _MIB
    max_fetch_bytes: int = 8 * _MIB
    max_buffered_bytes: int = 512 * _MIB
    write_buffer_bytes: int = 64 * 1024
    frame_timeout: float = 30.0
    write_timeout: float = 30.0
    idle_timeout: float = 600.0
    shutdown_timeout: float = 5.0
    group: GroupConfig = field(default_factory=GroupConfig)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be at least 0 and finite, got {value}")
        if self.port > _LAST_PORT:
            raise ValueError(f"port must be at most {_LAST_PORT}, got {self.port}")
        for name in ("default_partitions", "max_partitions", "max_frame_bytes", "max_connections", "segment_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
