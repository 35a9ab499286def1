"""What it costs to park an operation, compared with the alternatives that a user would choose instead.

``python -m benchmarks``              one table; every row is measured now
``python -m benchmarks.experiment``   Kafka's purgatory experiment, with the first design and with this one
``python -m benchmarks.report``       writes the figures of saved runs into the documentation
``python -m benchmarks.pictures``     draws the plots of saved runs

Each section of the table has a module of the same name.  ``measure`` explains how a number is measured, and ``row``
defines a row of the table.  ``operations`` contains the operations that most sections park.
"""
