"""On Spark: reports on journals; replays of journals with other timer settings; and streams (``aiopurgatory[spark]``).

=====================  =========================================================================================
``report``             the tables of a journal, their plots, and one HTML page
``compare``            two journals side by side: what got better, and what got worse
``replay``             recorded operations on the real timer, with other settings
``stream``             the same decisions in a stream: from rows of parks and signals to outcomes
``journal_reader``     a journal as a DataFrame; every file is checked first
``selection``          selects operations by time, purgatory, and kind
``selected_rows``      applies a selection to DataFrames, Arrow batches, and row groups
``synthetic_journal``  generates a journal for measurements, with known answers
``lake``               a journal as a table that is partitioned by date
``load_metrics``       a load as OpenTelemetry metrics
``recipe``             the parameters of a generated journal
``spark``              Java, the session, and progress
``output``             the directory with table files, figures, and the HTML page
``commands``           the command line: ``python -m purgatory.pipeline --help``
=====================  =========================================================================================
"""

import sys

from purgatory.extras import need

# Python imports the package before it runs a command; during the import, argv begins with "-m".  The commands print
# help without Spark and report in one line which extra is missing.
if sys.argv[:1] != ["-m"]:
    need(__name__, "spark", "pyspark", "pandas", "numpy")
