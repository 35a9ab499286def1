"""Five services that hang, each for a different reason, for practice with the inspector.

=  ======================  ==================================================================================
1  ``hot_key``             every request waits on one key, and each check tries all of them
2  ``forgotten_check``     a state change without a check of its key
3  ``mute_relay``          a relay whose user may subscribe but not publish
4  ``leak``                operations without a deadline, parked and forgotten
5  ``payments``            a predicate that raises for some of the data
=  ======================  ==================================================================================

``python -m examples.hangs 1`` serves the first one, with its inspector at http://127.0.0.1:8000/purgatory/.  The page
"A hang at three in the morning" in the documentation shows how to find each cause.  The numbers alone do not reveal any
of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from purgatory import Clock

from .forgotten_check import ForgottenCheck
from .hot_key import HotKey
from .leak import Leak
from .mute_relay import MuteRelay
from .payments import Payments
from .service import Service

__all__ = ["SERVICES", "Service"]

SERVICES: Final[dict[str, Callable[[Clock | None, Sequence[Any]], Service]]] = {
    "1": HotKey,
    "2": ForgottenCheck,
    "3": MuteRelay,
    "4": Leak,
    "5": Payments,
}
