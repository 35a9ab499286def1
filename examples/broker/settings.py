"""What can be set; durations in seconds, sizes in bytes."""

from dataclasses import dataclass, field

from examples.group import GroupConfig

__all__ = ["Settings"]

_MIB = 1 << 20
_LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Settings:
    """The broker's settings.  There is a limit on everything that a client can make grow.

    ``host``, ``port``           where it listens; port 0 takes a free one
    ``advertised_host``          what Metadata tells the clients; None: ``host``
    ``followers``                simulated followers of a partition, so there are that many replicas and one more
    ``replication_delay``        how long a follower takes to copy; 0: one turn of the loop
    ``stall_prefix``             followers of topics with this prefix never catch up; empty: there are none such
    ``auto_create``              whether Metadata creates the topics that it is asked for
    ``default_partitions``       of a topic that is created without a number
    ``max_partitions``           of all topics together
    ``segment_bytes``            a log segment is closed at this size
    ``retention_bytes``          a partition's oldest segments are deleted beyond it
    ``max_message_bytes``        of one record batch
    ``max_producers``            idempotent producers remembered per partition
    ``max_offset_metadata``      of one committed offset
    ``max_committed``            committed offsets of all groups together
    ``max_connections``          further ones are closed at once
    ``max_frame_bytes``          of one request
    ``max_fetch_bytes``          of one fetch response, but for its first batch
    ``max_buffered_bytes``       of requests not read to their end and responses not sent, of all connections together
    ``write_buffer_bytes``       unsent bytes above which a connection's next request waits
    ``frame_timeout``            a request that has begun must have arrived by then
    ``write_timeout``            a response must have been sent by then
    ``idle_timeout``             a connection that asks nothing for so long is closed
    ``shutdown_timeout``         how long the last responses may take
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
    max_message_bytes: int = _MIB + 12
    max_producers: int = 10_000
    max_offset_metadata: int = 4096
    max_committed: int = 1_000_000
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
                raise ValueError(f"{name} is at least 0, not {value}")
        if self.port > _LAST_PORT:
            raise ValueError(f"port is at most {_LAST_PORT}, not {self.port}")
        for name in ("default_partitions", "max_partitions", "max_frame_bytes", "max_connections", "segment_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")
