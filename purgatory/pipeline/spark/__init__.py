"""Spark itself.

===============  ===========================================================================================
``session``      a session: its settings, its loggers, and its end
``java``         the Java on which it runs
``scripts``      shell scripts that start Java and Python with other arguments
``workers``      the package for the Python workers, and the setup that tasks perform in them
``daemon``       the process from which the workers on this machine are forked
``directories``  directories by path or by URI
``progress``     the progress of the jobs
===============  ===========================================================================================
"""
