"""A simulator of Kafka's join-group barrier: groups of members that come, crash, leave and return.

==============  ================================================================================
``scenario``    the settings, and from them every member's plan: all chance is spent here
``arrivals``    recorded arrival times from a CSV file
``member``      one coroutine per member, doing what a client of the group protocol does
``simulation``  one coordinator, all members, a virtual or a real clock
``record``      what happened: counts, the timeline, a fingerprint
``turns``       how long the event loop's turns are
``show``        the live view and the tables
``picture``     the timeline as SVG or PNG
``drive cli``   runs what a command line asks for
==============  ================================================================================
"""
