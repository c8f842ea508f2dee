# cython: language_level=3, annotation_typing=False
"""The threads that calls deferred to an executor run on."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

_MOST_BEGUN = 32  # fewer than the outcomes that the core keeps


class Worker:
    """Runs calls one at a time, in the order submitted.

    A call that has the methods `begin` and `finish` is made in two parts: it begins in its turn, and finishes on a
    second thread while those behind it begin. Results come in order all the same.
    """

    __slots__ = ("_beginning", "_begun", "_finishing")

    def __init__(self) -> None:
        self._beginning = ThreadPoolExecutor(max_workers=1, thread_name_prefix="uform-executor")
        self._finishing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="uform-executor-finish")
        self._begun = threading.BoundedSemaphore(_MOST_BEGUN)

    def submit(self, call: Callable[[], Any], /) -> Future[Any]:
        """Answers a future of what the call answers; it can be cancelled until the call's turn comes."""
        future = Future()
        self._beginning.submit(_begin, call, future, self._finishing, self._begun)
        return future


# The threads are given what they need, but not the worker, whose end is what ends them.


def _begin(call, future, finishing, begun) -> None:
    if not future.set_running_or_notify_cancel():
        return
    answer = error = None
    finish = getattr(call, "finish", None)
    begun.acquire()
    try:
        answer = call() if finish is None else call.begin()
    except BaseException as raised:
        error, finish = raised, None
    try:
        finishing.submit(_finish, future, finish, answer, error, begun)
    except RuntimeError:
        # The interpreter ends and takes no more work on: what has begun is finished here.
        _finish(future, finish, answer, error, begun)


def _finish(future, finish, answer, error, begun) -> None:
    if finish is not None:
        try:
            answer = finish()
        except BaseException as raised:
            error = raised
    begun.release()
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
