"""The replay: recorded operations on the real timer, in virtual time, with other settings.

==================  ================================================================================
``simulation``      one trace with one setting, without Spark
``pieces``          cuts a journal into pieces; a task replays one with one setting
``what_if``         all settings on Spark, their costs, and the files
``recommendation``  which setting to choose, and why
``plots`` ``page``  the picture and the HTML page
==================  ================================================================================
"""
