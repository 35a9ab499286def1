"""Five services that hang, each for another reason, to practise with the inspector.

======================  ==================================================================================
``forgotten_check``     a change of state without a check of its key
``raising_predicate``   a predicate that raises for some of the data
``mute_relay``          a relay whose user may subscribe, but not publish
``hot_key``             everything waits on one key, and each check tries all of it
``leak``                operations without a deadline, parked and forgotten
======================  ==================================================================================

``python -m examples.hangs leak`` serves one of them, with its inspector at http://127.0.0.1:8000/purgatory/.  The page
"A hang at three in the morning" of the documentation shows how to find each cause.
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
    "forgotten_check": ForgottenCheck,
    "raising_predicate": RaisingPredicate,
    "mute_relay": MuteRelay,
    "hot_key": HotKey,
    "leak": Leak,
}
