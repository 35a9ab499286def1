"""The report over a journal.

=============  =====================================================================================
``report``     computes all tables, and writes them
``one_pass``   all tables from one pass over the rows, and one over the rows of the hot keys
``aggregates`` rows reduced to sums, maxima, and histograms, without Spark
``time_span``  the time that a journal covers
``plots``      the pictures
``page``       the HTML page
=============  =====================================================================================
"""

from .report import Report, compute, write_report

__all__ = ["Report", "compute", "write_report"]
