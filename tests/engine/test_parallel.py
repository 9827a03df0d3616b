"""Properties that threads compute side by side."""

import threading
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

from dfact.engine.threads import cached_without_lock


class Counted:
    """An object with a property that counts its computations, and waits until two objects compute theirs."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self.barrier, self.count = barrier, 0

    @cached_without_lock
    def value(self) -> int:
        """A value."""
        self.count += 1
        self.barrier.wait(60)
        return self.count


def test_threads_compute_the_property_of_two_objects_at_once() -> None:
    barrier = threading.Barrier(2)
    objects = [Counted(barrier), Counted(barrier)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(attrgetter("value"), objects)) == [1, 1]  # a lock for all objects would break the barrier


def test_a_property_is_computed_once() -> None:
    counted = Counted(threading.Barrier(1))
    assert counted.value == counted.value == counted.count == 1
    assert Counted.value.__doc__ == "A value."
