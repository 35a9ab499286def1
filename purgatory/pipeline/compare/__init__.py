"""Two journals side by side: which figures got better, which got worse.

===============  ==========================================================================
``changes``      every figure of both reports, the change, and its verdict, without Spark
``times``        the intervals of time in which a journal differs from the baseline, without Spark
``comparison``   computes both reports, compares them, and writes the files
``plots``        the pictures
``page``         the HTML page
===============  ==========================================================================
"""

from .changes import VERDICTS, find_changes
from .comparison import Comparison, compare, write_comparison
from .times import find_times

__all__ = ["VERDICTS", "Comparison", "compare", "find_changes", "find_times", "write_comparison"]
