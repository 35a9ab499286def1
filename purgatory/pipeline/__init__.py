"""Reports over journals, replays with other settings, and streams, on Spark: ``aiopurgatory[spark]``.

===========  ============================================================================================
``java``     finds a Java for Spark
``session``  a Spark session for this machine, where the caller has none
``reading``  a journal as a DataFrame, with every file looked at first
``tables``   DataFrame in, DataFrame out: what the reports say
``report``   computes the tables and writes them, with ``plots`` and ``page``
``replay``   recorded operations through the real timer and purgatory, in virtual time
``whatif``   the same for many settings at once, and which of them serves best
``synthetic``  journals made up to measure, with known answers
``stream``   the purgatory's work as a stream: parks and signals in, outcomes out
===========  ============================================================================================

``python -m purgatory.pipeline --help`` has the commands.
"""

import sys

from purgatory.extras import need

# Python imports the package before it runs the commands, and argv begins with "-m" until then.  The commands have help
# without Spark, and say in one line what is missing.
if sys.argv[:1] != ["-m"]:
    need(__name__, "spark", "pyspark", "pandas", "numpy")
