"""The cause of an error of Spark, in one line."""

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")

from pyspark.errors import PySparkException

from purgatory.pipeline.spark.reason import reason_of

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "processor.py", line 1, in handle
    condition = from_json(text)
ValueError: not JSON

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "processor.py", line 3, in handle
    raise LookupError("cannot restore")
    ^^^^^^^^^^^^^^^^^^^
LookupError: cannot restore
 SQLSTATE: 39000
"""
JAVA = """An error occurred while calling o1.parquet.
: java.util.concurrent.ExecutionException: Boxed Exception
\tat scala.concurrent.impl.Promise
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark
Caused by: java.io.EOFException
\tat java.base
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (WORKER, "LookupError: cannot restore"),
        (JAVA, "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."),
        (JAVA + WORKER, "LookupError: cannot restore"),
        (
            JAVA + "Caused by: java.io.IOException: No space left on device\n\tat java.base",
            "No space left on device, for ",
        ),
        ("\n  Job aborted: no reason \n  at once", "Job aborted: no reason"),
        ("", "PySparkException"),
        ("ModuleNotFoundError: No module named 'pandas'\n", "the Python of Spark's workers has no module 'pandas': "),
    ],
)
def test_the_line_says_most(text: str, reason: str) -> None:
    """That is the exception of the worker, the last cause in Java that says something, or the first line."""
    said = reason_of(PySparkException(text))
    assert said == reason or (reason.endswith(" ") and said.startswith(reason))
    assert "\n" not in said
