"""A real Kafka broker, started from its published jars on loopback.

``kafka-tools`` and ``kafka-tools-api`` 4.4.0 were not available when this was written, and the broker needs the latter,
so the version is the newest one for which every jar resolves.
"""

import hashlib
import os
import queue
import signal
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Self

from . import maven
from .maven import classpath, program

__all__ = ["SHORT_RUN", "UNVERIFIED", "VERSION", "RealKafka", "class_archive", "class_path", "java", "short_run"]

VERSION = "4.3.1"
_LOGGING = "2.25.4"
_START_TIMEOUT_S = 120.0  # enough for a JVM to start on a busy machine
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"

# Java trusts the bytecode in the jars: verification would take a seventh of the CPU time of a short run of Kafka's
# tools.
UNVERIFIED = ("-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote")

# A short run is over before more thorough compilation would pay for itself.
SHORT_RUN = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", *UNVERIFIED)

_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.name = out
appender.out.type = Console
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c{1}: %m%n%throwable
logger.started.name = kafka.server.KafkaRaftServer
logger.started.level = info
"""

_PROPERTIES = """
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
num.network.threads=1
num.io.threads=2
log.cleaner.enable=false
auto.create.topics.enable=true
"""


def class_path() -> str:
    """Return the class path of the broker, the clients, and the tools; raise Unavailable if they are not available."""
    program("java")
    return classpath(
        *(f"org.apache.kafka:{name}:{VERSION}" for name in ("kafka_2.13", "kafka-tools")),
        f"org.apache.logging.log4j:log4j-slf4j-impl:{_LOGGING}",
    )


@cache
def class_archive(path: str) -> Path:
    """Return the path of the class archive for these jars and this Java; :mod:`tests.kafka.fetch` makes the archive.

    Java maps an archive into memory instead of reading and parsing the classes.
    """
    files = [Path(program("java")).resolve(), *map(Path, path.split(os.pathsep))]
    state = "\0".join(f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
    return maven.cache() / f"kafka-{hashlib.sha256(state.encode()).hexdigest()[:16]}.jsa"


def short_run(path: str) -> tuple[str, ...]:
    """Return ``SHORT_RUN``, with the class archive if there is one.

    The archive reduces the CPU time of a tool by two fifths.  The class path may have further entries after the jars.
    """
    archive = class_archive(path)
    return (*SHORT_RUN, f"-XX:SharedArchiveFile={archive}") if archive.is_file() else SHORT_RUN


def java(path: str, *arguments: str, options: Sequence[str] | None = None) -> list[str]:
    """Return the command that runs a class from the jars with these arguments, by default as a short run."""
    return [program("java"), *(short_run(path) if options is None else options), "-cp", path, *arguments]


def free_port() -> int:
    """Return a port on 127.0.0.1 that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class _Node:
    """One process of a cluster, from its formatted storage to its end."""

    def __init__(self, folder: Path, properties: str, path: str, options: Sequence[str]) -> None:
        folder.mkdir()
        (folder / "log4j2.properties").write_text(_LOG4J)
        config = folder / "server.properties"
        config.write_text(properties.format(folder=folder))
        format_storage = java(path, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(config))
        formatted = subprocess.run(
            format_storage, capture_output=True, text=True, timeout=_START_TIMEOUT_S, check=False
        )
        if formatted.returncode:
            raise RuntimeError(f"the storage cannot be formatted:\n{formatted.stdout}{formatted.stderr}")
        self._lines: deque[str] = deque(maxlen=200)
        self._started: queue.SimpleQueue[bool] = queue.SimpleQueue()
        options = [*options, f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"]
        self.process = subprocess.Popen(
            java(path, "kafka.Kafka", str(config), options=options),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env={**os.environ, "LOG_DIR": str(folder)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self) -> None:
        """Wait until the node serves requests; raise RuntimeError, with the node's output, if it ends."""
        if not self._started.get(timeout=_START_TIMEOUT_S):
            raise RuntimeError("the broker has ended:\n" + "".join(self._lines))

    def stop(self) -> None:
        """End the process.  Its data need not be saved."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line)
            if "Kafka Server started" in line:
                self._started.put(True)
        self._started.put(False)


class RealKafka:
    """A single node that is both broker and controller; a context manager.

    ``properties`` are added to its configuration; ``options`` are the JVM options, by default the ones for a short run.
    The storage is a temporary folder, formatted before the start.  ``add_follower`` has a second node join as a broker
    only; ``pause_follower`` stops that node, so that it lags.  Raises Unavailable if Maven or a JDK is missing.
    """

    def __init__(self, *, options: Sequence[str] | None = None, **properties: Any) -> None:
        self._options = options
        self._properties = {name.replace("_", "."): value for name, value in properties.items()}
        self.port = free_port()
        self._controller = free_port()

    def __enter__(self) -> Self:
        self._path = class_path()
        self.nodes: list[_Node] = []
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-")))
            self._start(self.port, stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, port: int, stack: ExitStack) -> None:
        number = len(self.nodes) + 1
        options = short_run(self._path) if self._options is None else self._options
        configuration = self._configuration(number, port, self._controller)
        node = _Node(self.folder / str(number), configuration, self._path, options)
        stack.callback(node.stop)
        node.wait()
        self.nodes.append(node)

    def add_follower(self) -> None:
        """Start the second node, or let it continue."""
        if len(self.nodes) == 1:
            self._start(free_port(), self._stack)
        else:
            self.nodes[1].process.send_signal(signal.SIGCONT)

    def _configuration(self, number: int, port: int, controller: int) -> str:
        listeners = f"PLAINTEXT://127.0.0.1:{port}"
        if number == 1:
            listeners += f",CONTROLLER://127.0.0.1:{controller}"
        lines = [
            f"process.roles={'broker,controller' if number == 1 else 'broker'}",
            f"node.id={number}",
            f"listeners={listeners}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
            f"controller.quorum.voters=1@127.0.0.1:{controller}",
            _PROPERTIES.strip(),
            *(f"{name}={value}" for name, value in self._properties.items()),
        ]
        return "\n".join(lines)

    def pause_follower(self) -> None:
        """Stop the second node without ending it: it counts as in sync until it has lagged for long enough."""
        self.nodes[1].process.send_signal(signal.SIGSTOP)
