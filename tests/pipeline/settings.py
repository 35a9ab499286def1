"""Settings of the one Spark session of a test run: whichever fixture is used first makes it."""

from typing import Final

__all__ = ["SETTINGS"]

# The JVM compiles quickly instead of well, and Spark compiles no queries: a test run is over before that pays.
SETTINGS: Final = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}
