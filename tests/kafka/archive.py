"""The archive of the classes of Kafka: with it, the broker and the tools of the tests start in less CPU time."""

import subprocess
import tempfile
from pathlib import Path

from benchmarks.real_kafka import SHORT_RUN, RealKafka, class_archive, java
from benchmarks.row import Unavailable

__all__ = ["make_archive"]

_TIMEOUT_S = 300.0  # on a machine that may be busy


def make_archive(path: str) -> Path:
    """Make the archive for this class path if there is none, of the classes that a broker and three tools load.

    Unavailable with what Java printed if it cannot be made.
    """
    archive = class_archive(path)
    if not archive.is_file():
        with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
            classes = Path(folder) / "classes"
            classes.write_text("".join(sorted(_loaded(path, Path(folder)))))
            made = Path(folder) / archive.name
            options = ("-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={made}")
            _run(java(path, options=(*SHORT_RUN, *options)))
            for other in archive.parent.glob("kafka-*.jsa"):  # of other jars, or of another Java
                other.unlink()
            made.replace(archive)
    return archive


def _loaded(path: str, folder: Path) -> set[str]:
    """Return the lines of Java's lists of loaded classes."""
    options = (*SHORT_RUN, "-Dlog4j2.level=OFF", f"-XX:DumpLoadedClassList={folder / '%p.list'}")
    with RealKafka(options=options) as broker:
        server = ("--bootstrap-server", f"127.0.0.1:{broker.port}")
        topic = (*server, "--topic", "archive")
        storage = ("kafka.tools.StorageTool", "info", "-c", str(broker.folder / "1" / "server.properties"))
        _run(java(path, *storage, options=options))
        tools = "org.apache.kafka.tools"
        _run(java(path, f"{tools}.TopicCommand", *server, "--list", options=options))
        _run(java(path, f"{tools}.ConsoleProducer", *topic, options=options), "one\n")
        read = ("--group", "archive", "--from-beginning", "--max-messages", "1")
        _run(java(path, f"{tools}.consumer.ConsoleConsumer", *topic, *read, options=options))
    return {line for file in folder.glob("*.list") for line in file.read_text().splitlines(keepends=True)}


def _run(command: list[str], given: str = "") -> None:
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command[-3:])} has failed: {done.stdout[-500:]}{done.stderr[-500:]}")
