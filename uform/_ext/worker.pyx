# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""The threads that calls deferred to an executor run on."""

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor

_NAME = "uform-executor"
_MOST_BEGUN = 32  # fewer than the outcomes that the core keeps


class Worker:
    """Runs calls one at a time, in the order submitted.

    A call that has the methods `begin` and `finish` is made in two parts: it begins in its turn, and finishes on a
    second thread while those behind it begin. Results come in order all the same.
    """

    __slots__ = ("_beginning", "_begun", "_finishing", "_process")

    def __init__(self) -> None:
        self._beginning = ThreadPoolExecutor(max_workers=1, thread_name_prefix=_NAME)
        self._finishing = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"{_NAME}-finish")
        self._begun = threading.BoundedSemaphore(_MOST_BEGUN)
        self._process = os.getpid()
        # Handlers of signals run on the main thread alone. An exception of theirs in the midst of a pool's start of its
        # thread would leave that thread to nobody, and the interpreter waiting for it at its end.
        starter = threading.Thread(target=_start, args=(self._beginning,), name=_NAME)
        starter.start()
        starter.join()

    def __del__(self):
        # Whoever lets go of the worker finds its threads gone, unless it is one of them.
        wait = not threading.current_thread().name.startswith(_NAME)
        for pool in (getattr(self, "_beginning", None), getattr(self, "_finishing", None)):
            if pool is not None:
                pool.shutdown(wait)

    def submit(self, call: Callable[[], Any], /) -> Future[Any]:
        """Answers a future of what the call answers; it can be cancelled until the call's turn comes."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "the executor's threads stayed in the process that this one was forked from: make an executor here"
            )
        future = Future()
        self._beginning.submit(_begin, [call], future, self._finishing, self._begun)
        return future


def _start(pool) -> None:
    try:
        pool.submit(int)
    except RuntimeError:
        pass  # whoever wanted it was interrupted, and has let go of it


# The threads are given what they need, but not the worker, whose end is what ends them. What they are given they let go
# of before anyone learns of a result.


def _begin(box, future, finishing, begun) -> None:
    call = box.pop()
    if not future.set_running_or_notify_cancel():
        return
    answer = error = None
    finish = getattr(call, "finish", None)
    begun.acquire()
    try:
        answer = call() if finish is None else call.begin()
    except BaseException as raised:
        error, finish = raised, None
    box = [finish, answer, error]
    call = finish = answer = error = None
    try:
        finishing.submit(_finish, box, future, begun)
    except RuntimeError:
        # The interpreter ends and takes no more work on: what has begun is finished here.
        _finish(box, future, begun)


def _finish(box, future, begun) -> None:
    finish, answer, error = box
    box.clear()
    if finish is not None:
        try:
            answer = finish()
        except BaseException as raised:
            error = raised
    finish = None
    begun.release()
    if error is None:
        future.set_result(answer)
    else:
        future.set_exception(error)
