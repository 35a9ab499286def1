"""The synchronous core, which reads the time from a given clock and never imports asyncio.

mypyc compiles every module in this folder except two, which must stay interpreted: the generic operation class and the
stack guard.
"""

from purgatory.compiled import prefer_sources_in_subinterpreter

prefer_sources_in_subinterpreter()
