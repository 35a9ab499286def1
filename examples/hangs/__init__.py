"""Five services that hang, each for another reason, to practise with the inspector.

=  ======================  ==================================================================================
1  ``hot_key``             everything waits on one key, and each check tries all of it
2  ``forgotten_check``     a change of state without a check of its key
3  ``mute_relay``          a relay whose user may subscribe, but not publish
4  ``leak``                operations without a deadline, parked and forgotten
5  ``raising_predicate``   a predicate that raises for some of the data
=  ======================  ==================================================================================

``python -m examples.hangs 1`` serves one of them, with its inspector at http://127.0.0.1:8000/purgatory/.  The page
"A hang at three in the morning" of the documentation shows how to find each cause; the numbers do not reveal it.
"""

from collections.abc import Callable
from typing import Final

from purgatory import Clock

from .forgotten_check import ForgottenCheck
from .hot_key import HotKey
from .leak import Leak
from .mute_relay import MuteRelay
from .raising_predicate import RaisingPredicate
from .service import Service

__all__ = ["SERVICES", "Service"]

SERVICES: Final[dict[str, Callable[[Clock | None], Service]]] = {
    "1": HotKey,
    "2": ForgottenCheck,
    "3": MuteRelay,
    "4": Leak,
    "5": RaisingPredicate,
}
