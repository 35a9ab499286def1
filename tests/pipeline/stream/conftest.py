"""A Spark session for the tests of this directory; one that is there already is shared."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.pipeline.settings import SETTINGS


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session of its own on the one Spark of the test run, with few partitions."""
    pytest.importorskip("pyspark", "4.2")
    from purgatory.pipeline.spark.session import spark_session

    with spark_session("local[2]", SETTINGS) as shared:
        session = shared.newSession()
        session.conf.set("spark.sql.shuffle.partitions", "2")
        session.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        yield session
