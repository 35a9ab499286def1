"""The report on a journal.

=============  =====================================================================================
``report``     computes all tables, and writes them
``one_pass``   all tables from one pass over the rows, and one over the rows of the hot keys
``aggregates`` rows reduced to sums, maxima, and histograms, without Spark
``time_span``  the time that a journal covers
``times``      the intervals of time in which a journal is worse than usual, without Spark
``verdicts``   what differs by more than chance, without Spark
``incident``   sentences about the worst interval: when, what, and which keys
``page``       the HTML page, and the pictures in it
=============  =====================================================================================
"""

from .report import Report, compute, find_key_shares, write_report

__all__ = ["Report", "compute", "find_key_shares", "write_report"]
