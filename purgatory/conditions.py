"""Conditions that travel: declared in a word, kept as plain data.  Floor 4.

A :class:`DelayedOperation` says in code when it is complete, which is right within one process.  A condition of this
module says it in a text such as ``count(3)``, and keeps what it has seen as JSON values.  So it can stand in a row, go
over a wire, rest in a checkpoint and go on elsewhere, and the in-process library and the streaming engine of
:mod:`purgatory.pipeline.stream` decide by the same declaration.

==============================  =======================================================================================
declaration                     holds when
==============================  =======================================================================================
``count(n)``                    ``n`` signals have come on its keys, whichever: joins, acknowledgements, bytes in units
``at_least(value)``             a signal on one of its keys carried ``value`` or more: an offset, a size, a watermark
``all_keys``                    each of its keys has been signalled
``all_keys(count(n))``          each of its keys has been signalled ``n`` times
``all_keys(at_least(value))``   each of its keys has reached ``value``: a record that every follower has
==============================  =======================================================================================

**What counts** is every signal between the parking of the operation and its end.  Nothing is kept for a key on which
nobody waits, so an earlier signal is not seen: whoever knows that the condition holds already does not park.

More conditions are added by name with :func:`register`.

::

    operation = ConditionalOperation("count(2)", ["partition-0", "partition-1"], timeout=5.0)
    purgatory.try_complete_else_watch(operation, operation.wanted)
    signal(purgatory, "partition-0")
    signal(purgatory, "partition-1")     # completes it
"""

import ast
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from .delayed import DelayedOperation
from .room import Room
from .watch import WatchRoot
from .watchers import Walk

__all__ = ["AllKeys", "AtLeast", "Condition", "ConditionalOperation", "Count", "parse", "register", "signal"]

_LONGEST_TEXT = 200  # a declaration is a word, not a program; it also bounds what the parser is given
_NO_ID = 1 << 60  # later than every operation


class Condition:
    """A declaration.  It has no state of its own: what an operation has seen is handed in and out.

    A state is made of JSON values (None, bool, int, float, str, and lists and dicts of them), so that it can be stored.
    The methods are functions of their arguments and of nothing else, else a replay would decide differently.
    """

    __slots__ = ()

    def begin(self, keys: tuple[Any, ...]) -> Any:
        """The state of an operation that parks on these keys and has seen nothing."""
        raise NotImplementedError

    def signal(self, state: Any, key: Any, value: float | None) -> Any:
        """The state after a signal on one of the keys; the one given may be changed and returned."""
        raise NotImplementedError

    def holds(self, state: Any) -> bool:
        """Whether the operation is complete."""
        raise NotImplementedError

    def threshold(self) -> float | None:
        """The value below which a signal cannot matter, or None if every signal does.  It only saves work."""
        return None


class Count(Condition):
    """``count(n)``: ``n`` signals on its keys."""

    __slots__ = ("n",)

    def __init__(self, n: int) -> None:
        if type(n) is not int or n < 1:
            raise ValueError(f"count(n) takes a whole number of signals, at least 1, not {n!r}")
        self.n: int = n

    def begin(self, keys: tuple[Any, ...]) -> Any:
        return 0

    def signal(self, state: Any, key: Any, value: float | None) -> Any:
        return state + 1

    def holds(self, state: Any) -> bool:
        return bool(state >= self.n)

    def __str__(self) -> str:
        return f"count({self.n})"


class AtLeast(Condition):
    """``at_least(value)``: a signal with that value or a greater one."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value: float = _number(value, "at_least(value)")

    def begin(self, keys: tuple[Any, ...]) -> Any:
        return False

    def signal(self, state: Any, key: Any, value: float | None) -> Any:
        return state or (value is not None and value >= self.value)

    def holds(self, state: Any) -> bool:
        return bool(state)

    def threshold(self) -> float | None:
        return self.value

    def __str__(self) -> str:
        return f"at_least({self.value})"


class AllKeys(Condition):
    """``all_keys(inner)``: the inner condition holds for each of the keys by itself; ``all_keys``: for one signal.

    Its state is what is still missing: of each key that does not hold yet the inner state.
    """

    __slots__ = ("inner",)

    def __init__(self, inner: Condition | None = None) -> None:
        if inner is None:
            inner = Count(1)
        suits: object = inner  # a number, where the text says so
        if not isinstance(suits, Condition) or isinstance(suits, AllKeys):
            raise ValueError(f"all_keys takes a condition for one key, such as count(2), not {inner!s}")
        self.inner: Condition = inner

    def begin(self, keys: tuple[Any, ...]) -> Any:
        return {key: self.inner.begin((key,)) for key in keys}

    def signal(self, state: Any, key: Any, value: float | None) -> Any:
        if key in state:
            seen = self.inner.signal(state[key], key, value)
            if self.inner.holds(seen):
                del state[key]
            else:
                state[key] = seen
        return state

    def holds(self, state: Any) -> bool:
        return not state

    def threshold(self) -> float | None:
        return self.inner.threshold()

    def __str__(self) -> str:
        return "all_keys" if isinstance(self.inner, Count) and self.inner.n == 1 else f"all_keys({self.inner})"


# Names

_factories: dict[str, Callable[..., Condition]] = {"count": Count, "at_least": AtLeast, "all_keys": AllKeys}


def register(name: str, factory: Callable[..., Condition]) -> None:
    """Make ``name(...)`` a condition: the factory is called with the arguments, numbers and conditions.

    Every process that meets the name must have registered it; where Spark's workers are concerned, do it when a module
    is imported and name the module to the job.  ValueError if the name is no identifier or means something else
    already; registering the same factory again does nothing.
    """
    if type(name) is not str or not name.isidentifier():
        raise ValueError(f"name is an identifier, not {name!r}")
    if not callable(factory):
        raise TypeError(f"factory is something to call that makes a Condition, not {factory!r}")
    taken = _factories.get(name)
    if taken is factory:
        return
    if taken is not None:
        raise ValueError(f"the condition {name!r} is registered already, as {taken!r}")
    _factories[name] = factory


def parse(text: str) -> Condition:
    """The condition that a text declares.  ValueError that says what is wrong with it."""
    if not isinstance(text, str):
        raise ValueError(f"a condition is a text such as 'count(3)', not {text!r}")
    return _parse(text)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Condition:
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"a condition is at most {_LONGEST_TEXT} characters long, not {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        made = _made(tree)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text!r} is no condition: it is a name, or a name(argument), such as count(3)") from None
    if not isinstance(made, Condition):
        raise ValueError(f"{text!r} is a number, not a condition: count({text.strip()}) perhaps?")
    return made


def _made(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _made(node.operand)
        if isinstance(value, (int, float)):
            return -value
    if isinstance(node, ast.Name):
        return _called(node.id, [])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _called(node.func.id, [_made(argument) for argument in node.args])
    raise SyntaxError


def _called(name: str, arguments: list[Any]) -> Condition:
    factory = _factories.get(name)
    if factory is None:
        known = ", ".join(sorted(_factories))
        raise ValueError(f"the condition {name!r} is unknown: {known} are registered")
    try:
        made = factory(*arguments)
    except TypeError as error:
        raise ValueError(f"{name} does not take such arguments: {error}") from error
    if not isinstance(made, Condition):
        raise ValueError(f"what is registered as {name!r} made {made!r}, which is no Condition")
    return made


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name} takes a finite number, not {value!r}")
    return value


# In a purgatory


class ConditionalOperation(DelayedOperation[bool]):
    """An operation that waits for a declared condition; its result is True if that held, False if the deadline passed.

    ``condition``: a text, or a :class:`Condition`; ``keys``: those that it is to be parked on; ``timeout``: seconds, as
    for every operation.  Hand :attr:`wanted` to the purgatory as its keys.  ``seen``: the state to go on with, for one
    that has waited elsewhere.
    """

    __slots__ = ("condition", "error", "seen", "wanted")

    def __init__(
        self, condition: str | Condition, keys: Iterable[Hashable], timeout: float | None, *, seen: Any = None
    ) -> None:
        super().__init__(timeout)
        if isinstance(keys, (str, bytes)):
            raise TypeError(f"keys is an iterable of keys, not the bare key {keys!r}: [{keys!r}] was meant")
        distinct = tuple(dict.fromkeys(keys))
        if not distinct:
            raise ValueError("keys is empty: an operation that waits on nothing could only expire")
        self.condition: Condition = condition if isinstance(condition, Condition) else parse(condition)
        self.seen: Any = self.condition.begin(distinct) if seen is None else seen
        self.error: Exception | None = None
        threshold = self.condition.threshold()
        self.wanted: tuple[Hashable, ...] | Mapping[Any, float] = (
            distinct if threshold is None else dict.fromkeys(distinct, threshold)
        )

    def notice(self, key: Hashable, value: float | None) -> None:
        """A signal has come; what it means is decided when the operation is tried."""
        try:
            self.seen = self.condition.signal(self.seen, key, value)
        except Exception as error:
            self.error = error

    def try_complete(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.condition.holds(self.seen)

    def on_complete(self) -> bool:
        return not self.expired


def signal(room: Room, key: Hashable, value: float | None = None) -> int:
    """Tell those who wait on the key that something has happened, and try them; return how many this completed.

    Every :class:`ConditionalOperation` that is parked on the key now sees the signal once, also when this is called
    from inside a callback: then they are tried, as always, before the outermost call returns.  ``room``: a
    :class:`Purgatory`.  ValueError if the value is neither None nor a finite number.
    """
    if value is not None:
        _number(value, "signal(value)")
    entry = room._desk.watchers.entry(key)
    if entry is None:
        return 0
    walk = Walk(entry, _NO_ID)
    if value is not None and isinstance(entry, WatchRoot) and entry.ranks is not None:
        walk.leave_out_ranked()
        for operation in entry.ranks.reached(value):
            if isinstance(operation, ConditionalOperation):
                operation.notice(key, value)
    while (next_one := walk.next()) is not None:
        if isinstance(next_one, ConditionalOperation):
            next_one.notice(key, value)
    return room.check_and_complete(key, value)
