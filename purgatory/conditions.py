"""Conditions that are declared as strings and whose state is plain data.

A :class:`DelayedOperation` defines in code when it is complete, which suffices within one process.  A condition from
this module is declared in a string such as ``count(3)``, and its state consists of JSON values.  A condition can
therefore be stored in a row, sent over the wire, and restored from a checkpoint.  The in-process library and the
streaming engine of :mod:`purgatory.pipeline.stream` evaluate the same declaration.

==============================  =======================================================================================
declaration                     holds when
==============================  =======================================================================================
``count(n)``                    ``n`` signals have arrived on any of its keys: joins, acknowledgements, blocks of bytes
``at_least(value)``             a signal on one of its keys carried ``value`` or more: an offset, a size, a watermark
``all_keys``                    each of its keys has been signaled
``all_keys(count(n))``          each of its keys has been signaled ``n`` times
``all_keys(at_least(value))``   each of its keys has reached ``value``: every follower has the record
==============================  =======================================================================================

A signal **counts** if it arrives after the operation is parked and before the operation ends.  Nothing is stored for a
key without watchers, so an earlier signal is not counted: if the condition already holds, do not park the operation.

:func:`register` adds conditions by name.

::

    operation = ConditionalOperation("count(2)", ["partition-0", "partition-1"], timeout=5.0)
    purgatory.try_complete_else_watch(operation, operation.wanted)
    signal(purgatory, "partition-0")
    signal(purgatory, "partition-1")     # completes it
"""

import ast
import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from .core.operation.delayed_operation import DelayedOperation
from .core.purgatory import BasePurgatory
from .core.watch.cursor import NO_ID, WatchCursor
from .core.watch.watch import WatchList
from .texts import error_text, names_of, safe_repr

__all__ = ["AllKeys", "AtLeast", "Condition", "ConditionalOperation", "Count", "parse", "register", "signal"]


def __dir__() -> list[str]:
    return names_of(globals())


_LONGEST_TEXT = 200  # declarations are short; this limit also bounds the parser's input


class Condition:
    """A declared condition.  It has no state of its own: its methods receive and return an operation's state.

    A state consists of JSON values (None, bool, int, float, str, and lists and dicts of them), so that it can be
    stored; the state itself must not be None.  A condition whose state contains other values converts it in
    :meth:`to_json` and :meth:`from_json`.  The methods must depend only on their arguments; otherwise, a replay could
    reach a different result.
    """

    __slots__ = ()

    def begin(self, keys: tuple[Any, ...]) -> Any:
        """Return the state of an operation that is parked on these keys, before the first signal."""
        raise NotImplementedError

    def signal(self, state: Any, key: Any, value: float | None) -> Any:
        """Return the state after a signal on one of the keys; the given state may be modified and returned."""
        raise NotImplementedError

    def holds(self, state: Any) -> bool:
        """Return whether the operation is complete."""
        raise NotImplementedError

    def threshold(self) -> float | None:
        """Return the value below which a signal has no effect, or None.  The threshold only saves work."""
        return None

    def to_json(self, state: Any, keys: tuple[Any, ...]) -> Any:
        """Return the state of an operation on these keys as JSON values."""
        return state

    def from_json(self, stored: Any, keys: tuple[Any, ...]) -> Any:
        """Restore the state from the value that :meth:`to_json` returned.  The keys are the same, in the same order."""
        return stored


class Count(Condition):
    """``count(n)``: ``n`` signals on its keys."""

    __slots__ = ("n",)

    def __init__(self, n: int) -> None:
        if type(n) is not int or n < 1:
            raise ValueError(f"n of count(n) must be a positive int, got {safe_repr(n)}")
        self.n: int = n

    def begin(self, keys: tuple[Any, ...]) -> Any:
        return 0

    def signal(self, state: Any, key: Any, value: float | None) -> Any:
        return state + 1

    def holds(self, state: Any) -> bool:
        return bool(state >= self.n)

    def from_json(self, stored: Any, keys: tuple[Any, ...]) -> Any:
        return _like(self.begin(keys), stored, self)

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
        return bool(state or (value is not None and value >= self.value))

    def holds(self, state: Any) -> bool:
        return bool(state)

    def from_json(self, stored: Any, keys: tuple[Any, ...]) -> Any:
        return _like(self.begin(keys), stored, self)

    def threshold(self) -> float | None:
        return self.value

    def __str__(self) -> str:
        return f"at_least({self.value})"


class AllKeys(Condition):
    """``all_keys(inner)``: the inner condition holds for each key separately; ``all_keys``: one signal for each key.

    The state contains the inner state of each key for which the inner condition does not hold yet.  The state is stored
    as a dict if all keys are strings; otherwise, it is stored as a list of pairs, each with the position of the key and
    the inner state.
    """

    __slots__ = ("inner",)

    def __init__(self, inner: Condition | None = None) -> None:
        if inner is None:
            inner = Count(1)
        given: object = inner  # a number, if the declaration contains a number here
        if not isinstance(given, Condition) or isinstance(given, AllKeys):
            raise ValueError(
                f"inner of all_keys(inner) must be a condition for one key, such as count(2), got {inner!s}"
            )
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

    def to_json(self, state: Any, keys: tuple[Any, ...]) -> Any:
        stored = {key: self.inner.to_json(seen, (key,)) for key, seen in state.items()}
        if all([type(key) is str for key in keys]):
            return stored
        return [[place, stored[key]] for place, key in enumerate(keys) if key in stored]

    def from_json(self, stored: Any, keys: tuple[Any, ...]) -> Any:
        if isinstance(stored, dict):
            # Earlier releases stored a dict for keys of every type, and JSON converted numbers to strings.
            texts = {
                json.dumps(key): key for key in keys if isinstance(key, (int, float)) and json.dumps(key) not in keys
            }
            pairs = [(texts.get(key, key), seen) for key, seen in stored.items()]
        else:
            places = dict(enumerate(keys))
            try:
                pairs = [(places[place], seen) for place, seen in stored]
            except (TypeError, ValueError, LookupError):
                raise self._bad_state(stored, keys) from None
        if not {key for key, _ in pairs} <= set(keys):
            raise self._bad_state(stored, keys)
        return {key: self.inner.from_json(seen, (key,)) for key, seen in pairs}

    def _bad_state(self, stored: Any, keys: tuple[Any, ...]) -> ValueError:
        return ValueError(f"seen must be a state of {self} on the keys {safe_repr(keys)}, got {safe_repr(stored)}")

    def __str__(self) -> str:
        return "all_keys" if isinstance(self.inner, Count) and self.inner.n == 1 else f"all_keys({self.inner})"


def _like(state: Any, stored: Any, condition: Condition) -> Any:
    """Return the stored state.  Raises ValueError unless it is of the same type as ``state``."""
    if type(stored) is not type(state):
        raise ValueError(f"seen must be a state of {condition}, such as {state!r}, got {safe_repr(stored)}")
    return stored


# Names

_factories: dict[str, Callable[..., Condition]] = {"count": Count, "at_least": AtLeast, "all_keys": AllKeys}


def register(name: str, factory: Callable[..., Condition]) -> None:
    """Register ``name(...)`` as a condition: ``factory`` is called with the arguments, which are numbers and
    conditions.

    Every process that parses the name must have registered it.  For Spark's workers, register the name when a module is
    imported, and pass the name of that module to the job.  Raises ValueError if the name is not an identifier or is
    already registered with another factory; registering the same factory again does nothing.
    """
    if type(name) is not str or not name.isidentifier():
        raise ValueError(f"name must be an identifier, got {safe_repr(name)}")
    if not callable(factory):
        raise TypeError(f"factory must be callable and return a Condition, got {safe_repr(factory)}")
    taken = _factories.get(name)
    if taken is factory:
        return
    if taken is not None:
        raise ValueError(f"name must not be registered yet, got {name!r}, which is {safe_repr(taken)}")
    _factories[name] = factory


def parse(text: str) -> Condition:
    """Return the condition that ``text`` declares.  Raises ValueError if ``text`` is not a valid declaration."""
    if not isinstance(text, str):
        raise ValueError(f"a condition must be a string such as 'count(3)', got {safe_repr(text)}")
    return _parse(text)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Condition:
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"a condition must be at most {_LONGEST_TEXT} characters long, got {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        made = _made(tree)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"a condition must be a name or a name(argument), such as count(3), got {text!r}") from None
    if not isinstance(made, Condition):
        raise ValueError(f"a condition must not be a bare number, got {text!r}: did you mean count({text.strip()})?")
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
        raise ValueError(f"a condition must be one of {known}, got {name!r}")
    try:
        made = factory(*arguments)
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{name} does not take such arguments: {error_text(error)}") from error
    if not isinstance(made, Condition):
        raise ValueError(f"the factory of {name!r} must return a Condition, got {safe_repr(made)}")
    return made


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
        raise ValueError(f"{name} must have a finite number, got {safe_repr(value)}")
    return value


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False  # an int beyond the largest float


# In a purgatory


class ConditionalOperation(DelayedOperation[bool]):
    """An operation that waits for a declared condition.  Its result is True if the condition held, and False if the
    operation expired.

    ``condition``: a declaration or a :class:`Condition`.  ``keys``: the keys of the condition.  ``timeout``: seconds or
    None.  ``seen``: the state to continue with, for an operation that was parked elsewhere with the same keys in the
    same order.  Pass :attr:`wanted` to the purgatory as the keys.  Raises ValueError if ``condition`` is not a valid
    declaration, or if ``seen`` is not a state of this condition on these keys.
    """

    __slots__ = ("_distinct", "_seen", "condition", "error", "wanted")

    def __init__(
        self, condition: str | Condition, keys: Iterable[Hashable], timeout: float | None, *, seen: Any = None
    ) -> None:
        super().__init__(timeout)
        if isinstance(keys, (str, bytes)):
            raise TypeError(f"keys must be an iterable of keys, such as [{keys!r}], got {keys!r}")
        distinct = tuple(dict.fromkeys(keys))
        if not distinct:
            raise ValueError("keys must contain at least one key, got none")
        self.condition: Condition = condition if isinstance(condition, Condition) else parse(condition)
        self._distinct = distinct
        self._seen: Any = self.condition.begin(distinct) if seen is None else self.condition.from_json(seen, distinct)
        self.error: Exception | None = None
        threshold = self.condition.threshold()
        self.wanted: tuple[Hashable, ...] | Mapping[Any, float] = (
            distinct if threshold is None else dict.fromkeys(distinct, threshold)
        )

    @property
    def seen(self) -> Any:
        """The state of the condition, as JSON values that can be stored."""
        return self.condition.to_json(self._seen, self._distinct)

    def notice(self, key: Hashable, value: float | None) -> None:
        """Record a signal in the state; the next try decides whether the operation completes."""
        try:
            self._seen = self.condition.signal(self._seen, key, value)
        except Exception as error:
            self.error = error

    def try_complete(self) -> bool:
        if self.error is not None:
            raise self.error
        return self.condition.holds(self._seen)

    def on_complete(self) -> bool:
        return not self.expired


def signal(room: BasePurgatory, key: Hashable, value: float | None = None) -> int:
    """Send a signal to the operations parked on the key, and try them; return how many this call completed.

    Every :class:`ConditionalOperation` parked on the key receives the signal once, even if a callback makes the call.
    In that case, the operations are tried before the outermost call returns.  Raises ValueError unless the value is
    None or a finite number, and RuntimeError if called from any thread other than the event loop's.  ``room``: a
    :class:`Purgatory`.
    """
    if value is not None:
        _number(value, "signal(value)")
    room._core.validate_thread()
    entry = room._core.watcher_lists.watches(key)
    if entry is None:
        return 0
    cursor = WatchCursor(entry, NO_ID)
    if value is not None and isinstance(entry, WatchList) and entry.thresholds is not None:
        cursor.skip_thresholds()
        for operation in entry.thresholds.reached(value):
            if isinstance(operation, ConditionalOperation):
                operation.notice(key, value)
    while (next_one := cursor.next()) is not None:
        if isinstance(next_one, ConditionalOperation):
            next_one.notice(key, value)
    return room.check_and_complete(key, value)
