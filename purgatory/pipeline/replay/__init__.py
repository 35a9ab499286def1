"""Recorded operations with other settings: replayed on the real timer, in virtual time, or estimated.

==================  ================================================================================
``simulation``      one trace with one setting, without Spark
``pieces``          cuts a journal into pieces; a task replays one with one setting
``what_if``         all settings on Spark, their costs, and the files
``recommendation``  which setting to choose, and why
``page``            the HTML page, and the picture in it
``bounds``          lower and upper bounds with other timeouts or limits, without Spark
``estimates``       the bounds of a whole journal, on Spark, and the files
==================  ================================================================================
"""
