"""Work on items side by side: threads that each take the next item, and an item that is prepared while the previous one is in use."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class cached_without_lock(Generic[T]):  # noqa: N801  # a decorator, as property is
    """A property that each instance computes on first use, in one thread.

    ``functools.cached_property`` of Python 3.11 has one lock for all instances of a class, which it holds while it computes. With it,
    threads would wait for each other at every block that is converted.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Self | T:
        if instance is None:
            return self
        value = vars(instance)[self._name] = self._compute(instance)  # later reads find it in the instance, before the class
        return value


def run_items(
    work: Callable[[T], None],
    items: Sequence[T],
    pool: Executor | None,
    threads: int,
    *,
    stopped: threading.Event,
    prepare: Callable[[T], T] | None = None,
    may_start: Callable[[], bool] = lambda: True,
) -> None:
    """Call ``work`` for each item on this number of threads of the pool, or in the calling thread without a pool.

    Items start in their order, and none if ``may_start()`` is false or ``stopped`` is set, as it is by the first error, which is raised.
    With ``prepare``, each thread's next item is prepared while the thread works on the current one. No thread works any more when
    this returns or raises.
    """
    following, lock = iter(items), threading.Lock()

    def claim() -> Iterator[T]:
        while not stopped.is_set() and may_start():
            with lock:
                item = next(following, None)
            if item is None:
                return
            yield item

    def run_claimed() -> None:
        try:
            for item in claim() if prepare is None else prefetch(map(prepare, claim())):
                work(item)
        except BaseException:
            stopped.set()
            raise

    if pool is None:
        run_claimed()
        return
    futures = [pool.submit(run_claimed) for _ in range(min(threads, len(items)))]
    try:
        wait(futures)
    finally:
        stopped.set()  # a signal may have ended the wait
        wait(futures)
    for future in futures:
        future.result()


def prefetch(items: Iterable[T]) -> Iterator[T]:
    """Yield the same items, each computed in a helper thread while the previous one is in use."""
    iterator = iter(items)
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="dfact-read") as helper:
        following = helper.submit(next, iterator, end)
        while (item := following.result()) is not end:
            following = helper.submit(next, iterator, end)
            yield item  # type: ignore[misc]  # the loop's condition excludes the sentinel
