"""Settings of the one Spark session of a test run: whichever fixture is used first makes it."""

from typing import Final

__all__ = ["SETTINGS"]

# The JVM compiles quickly instead of well, and Spark compiles no queries: a test run is over before that pays.  The
# code of all tests does not fit into the 48 MB that Java's first compiler has by default: Java would drop some of it
# and compile it again, which costs 20 s of CPU.
SETTINGS: Final = {
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}
