"""The base class of observers that act on every end in the same way."""

from abc import abstractmethod

from purgatory.events import Event, Observer

__all__ = ["EndObserver"]


class EndObserver(Observer):
    """An observer with one method for the end of an operation, whatever its outcome is.

    A subclass overrides :meth:`ended`.  A subclass that treats one outcome differently also overrides the method for
    that outcome.  A subclass therefore also handles outcomes that are added to the library later, and it always
    finishes what it began when the operation was parked.
    """

    @abstractmethod
    def ended(self, event: Event) -> None:
        """Called when the operation ends; see ``event.outcome``."""

    def completed(self, event: Event) -> None:
        """Call :meth:`ended`."""
        self.ended(event)

    def expired(self, event: Event) -> None:
        """Call :meth:`ended`."""
        self.ended(event)

    def cancelled(self, event: Event) -> None:
        """Call :meth:`ended`."""
        self.ended(event)

    def failed(self, event: Event) -> None:
        """Call :meth:`ended`."""
        self.ended(event)
