"""The requests to one model, answered in batches by one thread."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, final

from qkv.tasks.settings import RequestSettings
from qkv.values.abandoning import abandoned_if

Answer = Mapping[str, object]
Compute = Callable[[Sequence[Any], Any], Sequence[Answer]]


@final
class BusyError(Exception):
    """As many inputs wait as may; or the model is being stopped."""


@final
class _Answers(Future[Sequence[Answer]]):
    """Answers that may be given up while they are computed, too."""

    given_up = False

    def cancel(self) -> bool:
        self.given_up = True
        return super().cancel()


@dataclass(eq=False)
class _Job:
    inputs: Sequence[Any]
    settings: RequestSettings
    future: _Answers = field(default_factory=_Answers)


@final
class RequestQueue:
    """A queue of bounded length, and the thread that empties it.

    Requests with equal settings are computed together. Those whose answers are drawn by chance are computed alone,
    because a draw depends on what else is in a batch.

    Args:
        compute: answers inputs, one answer each.
        most: the most inputs of a batch of several requests.
        waiting: the most inputs that may wait.
        observe: is told the number of inputs of each batch.

    Example:
        >>> queue = RequestQueue(lambda inputs, _: [{"length": len(text)} for text in inputs], most=8, waiting=16)
        >>> queue.submit(["one", "three"], RequestSettings()).result()
        [{'length': 3}, {'length': 5}]
        >>> queue.close()
    """

    def __init__(
        self, compute: Compute, most: int, waiting: int, observe: Callable[[int], object] = lambda _: None
    ) -> None:
        self._compute, self._most, self._waiting, self._observe = compute, most, waiting, observe
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition(threading.RLock())
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="qkv-batches", daemon=True)
        self._thread.start()

    def waiting_inputs(self) -> int:
        """How many inputs wait."""
        with self._changed:
            return sum(len(job.inputs) for job in self._jobs)

    def submit(self, inputs: Sequence[Any], settings: RequestSettings) -> "Future[Sequence[Answer]]":
        """Put a request into the queue.

        Returns:
            Its answers, later; those of a future that is cancelled are not computed, or no further.

        Raises:
            BusyError: the queue is full.
        """
        job = _Job(inputs, settings)
        with self._changed:
            if self._closed or (self._jobs and self.waiting_inputs() + len(inputs) > self._waiting):
                raise BusyError
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """End the thread; what waits is cancelled."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                job.future.cancel()
            self._jobs.clear()
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while jobs := self._next():
            if pending := [job for job in jobs if job.future.set_running_or_notify_cancel()]:
                self._answer(pending)

    def _next(self) -> list[_Job]:
        """Take the oldest request, and those behind it that can be computed with it; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return []
            first = self._jobs.popleft()
            chosen, count = [first], len(first.inputs)
            for job in [] if first.settings.draws else list(self._jobs):
                if job.settings == first.settings and count + len(job.inputs) <= self._most:
                    self._jobs.remove(job)
                    chosen.append(job)
                    count += len(job.inputs)
            return chosen

    def _answer(self, jobs: Sequence[_Job]) -> None:
        inputs = [one for job in jobs for one in job.inputs]
        self._observe(len(inputs))
        try:
            with abandoned_if(lambda: all(job.future.given_up for job in jobs)):
                answers = self._compute(inputs, jobs[0].settings)
        except Exception as error:  # of any request, whose client is told
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:  # an input that is refused is not the fault of the others
                self._answer([job])
            return
        start = 0
        for job in jobs:
            job.future.set_result(answers[start : start + len(job.inputs)])
            start += len(job.inputs)
