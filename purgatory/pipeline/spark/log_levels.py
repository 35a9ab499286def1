"""Levels of Spark's loggers, for sessions whose log4j configuration is not that of this package."""

from typing import Any, Final

from pyspark.sql import SparkSession

from .session import is_connect

__all__ = ["STATE_SERVER", "silence_state_server"]

# It warns for each key without a state, which is every new one, and for each timer that was deleted already.
STATE_SERVER: Final = "org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkStateServer"


def silence_state_server(spark: SparkSession) -> None:
    """Set the logger of the state server to ``error`` in the JVM of the session.

    A Spark Connect server and the executors of a cluster have their own configuration, which is left as it is.
    """
    if is_connect(spark):
        return
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setLevel(STATE_SERVER, log4j.Level.ERROR)
