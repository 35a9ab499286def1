"""Settings of the one Spark session of a test run: whichever fixture is used first makes it."""

from pathlib import Path
from typing import Final

from benchmarks.real_kafka import UNVERIFIED

__all__ = ["QUICK_JAVA", "SETTINGS"]

# Java compiles quickly instead of well: a test run is over before that pays.  It does not verify the bytecode of the
# jars, which takes 4 s of CPU for the classes of Spark; their compiler has made it valid.  The code of all tests does
# not fit into the 48 MB that Java's first compiler has by default: Java would drop some of it and compile it again,
# which costs 20 s of CPU.
QUICK_JAVA: Final = " ".join(("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=192m", *UNVERIFIED))

# Spark's default class runs ``readlink`` before it renames a file: 1800 processes, of about 5 ms of CPU each.
_CHECKPOINT_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

# Spark does not compile queries either: their code would not run for long.
SETTINGS: Final = {
    "spark.driver.defaultJavaOptions": QUICK_JAVA,
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
}
