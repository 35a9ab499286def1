"""The synchronous core: it takes the time from a clock it is given, and never imports asyncio.

mypyc compiles every module of this folder but two, which must stay interpreted: the generic operation class and the
stack guard.
"""

from purgatory.compiled import prefer_sources_in_subinterpreter

prefer_sources_in_subinterpreter()
