"""Standard error without the messages of Spark's start."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", "4.2")


def test_the_filter_drops_only_what_it_knows() -> None:
    """Lines of Spark's start go, with the blank line behind them; everything else stays, blank lines too."""
    program = (
        "import os\n"
        "from purgatory.pipeline.spark.stderr_filter import without_chatter\n"
        "with without_chatter():\n"
        "    os.write(2, b'first\\n\\nStarting Streaming TransformWithStateInPandas Python worker.\\n\\nsecond\\n')\n"
        "    os.write(2, b'To adjust logging level use x\\nthird\\n')\n"
        "os.write(2, b'last\\n')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert ran.stderr == "first\n\nsecond\nthird\nlast\n"
