"""The loggers of a session that has its own log4j configuration."""

from typing import Any

import pytest

pytest.importorskip("pyspark", "4.2")

from purgatory.pipeline.spark.session import STATE_SERVER, silence_state_server


def test_the_state_server_does_not_warn(spark: Any) -> None:
    """Its warnings, one for each new key, are switched off; its errors are not."""
    log4j = spark._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(STATE_SERVER, log4j.Level.WARN)
    logger = log4j.LogManager.getLogger(STATE_SERVER)
    assert logger.isWarnEnabled()
    silence_state_server(spark)
    assert not logger.isWarnEnabled()
    assert logger.isErrorEnabled()
