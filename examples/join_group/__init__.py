"""A simulator of Kafka's join-group barrier, with members that join, crash, leave, and return.

================  ==============================================================================
``cli``           the command line
``runner``        runs the simulation with the options of the command line
``scenario``      the settings, and the random plan of every member
``arrivals``      recorded arrival times from a CSV file
``simulation``    one coordinator, all members, a virtual or a real clock
``member``        one coroutine per member, which acts like a client of the group protocol
``recorder``      counts, the timeline, and the fingerprint of a run
``loop_monitor``  the longest turn of the event loop
``terminal``      the live view and the tables
``timeline``      the timeline as a picture
``canvas``        output of pictures as SVG or PNG
================  ==============================================================================
"""
