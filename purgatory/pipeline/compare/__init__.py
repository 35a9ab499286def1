"""Two journals side by side: which figures got better, and which got worse.

===============  ==========================================================================
``changes``      every figure in both reports, its change, and the verdict, without Spark
``comparison``   computes both reports, compares them, and writes the files
``page``         the HTML page, the rows as text, and the pictures
===============  ==========================================================================
"""

from .changes import VERDICTS, find_changes
from .comparison import Comparison, compare, write_comparison

__all__ = ["VERDICTS", "Comparison", "compare", "find_changes", "write_comparison"]
