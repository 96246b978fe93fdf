"""Several sources at once: each is read by a thread of its own, so that a slow one holds up no other."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Update_co = TypeVar("Update_co", covariant=True)
Update = TypeVar("Update")


class Feed(Protocol[Update_co]):
    """Something that yields updates until it is closed, which another thread may do."""

    def updates(self) -> Iterator[Update_co]:
        """Yield what is new."""
        ...

    def close(self) -> None:
        """Make `updates` end soon."""
        ...


class MergedFeeds(Generic[Update]):
    """The updates of several feeds as they come.

    Args:
        feeds: closed with this.
    """

    def __init__(self, feeds: Sequence[Feed[Update]]) -> None:
        self._feeds = tuple(feeds)
        self._queue: queue.SimpleQueue[tuple[int, Update] | Exception | None] = queue.SimpleQueue()
        self._closed = False

    def updates(self) -> Iterator[tuple[int, Update]]:
        """Yield each update with its feed's position; ends when closed or when all feeds ended.

        Raises:
            Exception: what a feed raised, which none should.
        """
        for index, feed in enumerate(self._feeds):
            threading.Thread(
                target=self._read, args=(index, feed), daemon=True, name=f"source {index}"
            ).start()
        running = len(self._feeds)
        while running and not self._closed:
            item = self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item

    def close(self) -> None:
        """End `updates`, and let every feed end."""
        self._closed = True
        for feed in self._feeds:
            feed.close()
        self._queue.put(None)

    def _read(self, index: int, feed: Feed[Update]) -> None:
        try:
            for update in feed.updates():
                if self._closed:
                    break
                self._queue.put((index, update))
        except Exception as error:  # noqa: BLE001  raised by updates()
            self._queue.put(error)
        else:
            self._queue.put(None)
