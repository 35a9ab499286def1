"""The report over a journal.

=============  =====================================================================================
``report``     computes all tables, and writes them
``tables``     the tables as functions from DataFrame to DataFrame
``occupancy``  the number of parked operations over time
``plots``      the pictures
``page``       the HTML page
=============  =====================================================================================
"""

from .report import Report, compute, write_report

__all__ = ["Report", "compute", "write_report"]
