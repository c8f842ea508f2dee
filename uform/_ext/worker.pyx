# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""The threads that calls deferred to an executor run on."""

from uform._ext.turns cimport Devices, Turn, Turns

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor

_NAME = "uform-executor"
_MOST_BEGUN = 32  # fewer than the outcomes that the core keeps
_LOG = logging.getLogger("uform")
_OF_THREAD = threading.local()


def is_own_thread() -> bool:
    """Whether this is a thread of some worker: deferred calls do not end while it waits."""
    return getattr(_OF_THREAD, "turns", None) is not None


class Outcome(Future):
    """What a deferred call will answer. An error that nobody has asked for when it is let go of is logged."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._asked = False
        self._turns = turns

    def result(self, timeout: float | None = None) -> Any:
        """Waits, then answers or raises what the call did."""
        self._prepare(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits, then answers what the call raised."""
        self._prepare(timeout)
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Cancels the call unless its turn has come; what it borrowed it lets go of before anyone is told."""
        cdef Turns turns = self._turns
        call = turns.withdraw_call(self)
        if call is None:
            return self.cancelled()
        call = None
        return super().cancel()

    def _prepare(self, timeout: float | None) -> None:
        """Refuses to wait for ever where the call itself waits for this thread."""
        cdef Turns turns = self._turns
        self._asked = True
        if timeout is None and not self.done() and (turns.runs_here() or turns.held_up_here(self)
                                                    or getattr(_OF_THREAD, "turns", None) is turns):
            raise RuntimeError("the call is behind the one whose callback this is: neither would end if it waited")

    def __del__(self):
        error = getattr(self, "_exception", None)
        if error is not None and not self._asked:
            _LOG.error("a deferred call failed, and nobody asked for its result", exc_info=error)


class Worker:
    """Runs calls one at a time, each in its turn.

    A call that has the methods `begin` and `finish` is made in two parts: it begins in its turn, and finishes on a
    second thread while those behind it begin. Results come in order all the same.
    """

    __slots__ = ("_beginning", "_begun", "_finishing", "_turns")

    def __init__(self, Turns turns not None) -> None:
        self._beginning, self._finishing = (
            ThreadPoolExecutor(max_workers=1, thread_name_prefix=name, initializer=_mark_thread, initargs=(turns,))
            for name in (_NAME, f"{_NAME}-finish")
        )
        self._begun = threading.BoundedSemaphore(_MOST_BEGUN)
        self._turns = turns
        # Handlers of signals run on the main thread alone. An exception of theirs in the midst of a pool's start of its
        # thread would leave that thread to nobody, and the interpreter waiting for it at its end.
        starter = threading.Thread(target=_start, args=(self._beginning,), name=_NAME)
        starter.start()
        starter.join()

    def __del__(self):
        # Whoever lets go of the worker finds its threads gone, unless it is one of them.
        wait = not is_own_thread()
        for pool in (getattr(self, "_beginning", None), getattr(self, "_finishing", None)):
            if pool is not None:
                pool.shutdown(wait)

    def submit(self, call: Callable[[], Any], /, Devices needs=None) -> Future[Any]:
        """Answers a future of what the call answers; it can be cancelled until the call's turn comes.

        Args:
            call: what is called.
            needs: the devices that it will wait for.

        Raises:
            RuntimeError: a handler of a signal has interrupted this thread as it submitted: the pool's locks are taken.
        """
        cdef Turns turns = self._turns
        if getattr(_OF_THREAD, "submits", False):
            raise RuntimeError("a signal's handler cannot defer a call: it has interrupted this thread as it deferred "
                               "one")
        future = Outcome(turns)
        cdef Turn turn = turns.take(call, future, needs)
        try:
            _OF_THREAD.submits = True
            self._beginning.submit(_begin, turns, self._finishing, self._begun)
        except BaseException:
            # The interpreter ends, or a signal's handler raised: unless the thread has the call by now, none was made.
            if not turn.ready:
                turns.withdraw(turn)
            turn.call = None
            Future.cancel(future)
            raise
        finally:
            _OF_THREAD.submits = False
        return future


def _mark_thread(turns) -> None:
    _OF_THREAD.turns = turns


def _start(pool) -> None:
    try:
        pool.submit(int)
    except RuntimeError:
        pass  # whoever wanted it was interrupted, and has let go of it


# The threads are given what they need, but not the worker, whose end is what ends them. What they are given they let go
# of before anyone learns of a result.


def _begin(Turns turns not None, finishing, begun) -> None:
    cdef Turn turn = turns.next_taken()
    if turn is None:
        return  # it was withdrawn
    future = turn.future
    begun.acquire()
    turns.begin(turn)
    call, turn.call = turn.call, None
    turn = None
    if call is None:
        Future.cancel(future)  # whoever took the call out may be about to
    if not future.set_running_or_notify_cancel():
        turns.end()
        begun.release()
        return
    answer = error = None
    finish = getattr(call, "finish", None)
    try:
        answer = call() if finish is None else call.begin()
    except BaseException as raised:
        error, finish = raised, None
    turns.end()
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
