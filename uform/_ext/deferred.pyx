# cython: language_level=3, annotation_typing=False, auto_pickle=False, nonecheck=True
"""Calls on an executor: blocking ones through `on`, submitted ones through `deferred`."""

from uform._ext.executor cimport Executor
from uform._ext.fields cimport as_double, refused

import asyncio
import concurrent.futures
import functools
import logging
import os
import threading
import types

from uform._ext.worker import is_own_thread


class Deferred:
    """A call that was submitted, and what it will answer.

    Calls on one executor run one at a time, in the order submitted; a verb that blocks comes after all that were
    deferred before, but one that a progress callback calls on other devices comes at once. Arguments are read when the
    call is submitted, numbers in buffers as well: what says which item is meant may be overwritten at once. Contents
    alone, the bytes of texts and the elements of arrays, are borrowed where they lie until the call is done:
    overwritten before, they count as they are by then, in part or whole.

    A call runs whether or not its Deferred is kept, and the interpreter ends after all that were submitted. An error
    that nobody has asked for is logged ("uform") when its Deferred is let go of.
    """

    __slots__ = ("_future", "_process")
    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, future: Future[Any]) -> None:
        if not isinstance(future, concurrent.futures.Future):
            raise refused("future", future, "a concurrent.futures.Future")
        self._future = future
        self._process = os.getpid()

    def result(self, timeout: float | None = None) -> Any:
        """Waits, then answers or raises what the call did.

        Args:
            timeout: the most seconds to wait, not at all where it is 0 or less; None waits until the end.

        Raises:
            TimeoutError: the call is not done by then; it goes on.
            CancelledError: (of `concurrent.futures`) it was cancelled before it started.
        """
        if timeout is not None:
            timeout = min(as_double(timeout, "timeout"), threading.TIMEOUT_MAX)
        return _future_of(self).result(timeout)

    def done(self) -> bool:
        """Whether the call has ended, in whichever way."""
        return _future_of(self).done()

    def cancel(self) -> bool:
        """Cancels the call unless it has started; answers whether it is cancelled."""
        return _future_of(self).cancel()

    def add_done_callback(self, callback: Callable[[Deferred[Any]], object], /) -> None:
        """Has `callback` called with this object when the call is done, at once where it is.

        Verbs that it calls run before those that are submitted and have not begun. What it raises is logged.
        """
        if not callable(callback):
            raise refused("callback", callback, "a callable (deferred)")
        _future_of(self).add_done_callback(functools.partial(_call_back, callback, self))

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(_future_of(self)).__await__()

    def __reduce__(self):
        raise TypeError("a Deferred cannot be pickled or copied: it waits for a call of this process")

    def __repr__(self) -> str:
        future = getattr(self, "_future", None)
        if future is None:
            return "<Deferred not initialised>"
        if self._process != os.getpid():
            return "<Deferred of another process>"
        state = "cancelled" if future.cancelled() else "done" if future.done() else "pending"
        return f"<Deferred {state}>"


def _call_back(callback: Callable[[Deferred[Any]], object], deferred: Deferred, _: Future[Any]) -> None:
    try:
        callback(deferred)
    except Exception:
        raise  # the future logs it
    except BaseException:
        # On an executor's thread it would keep other callbacks, and whoever awaits the call, from being told.
        if not is_own_thread():
            raise
        logging.getLogger("uform").exception("a done callback of a deferred call ended by what ends threads")


def _future_of(deferred: Deferred) -> Future[Any]:
    future = getattr(deferred, "_future", None)
    if future is None:
        raise ValueError("the Deferred is not initialised: the verbs of deferred(executor) answer them")
    if deferred._process != os.getpid():
        raise RuntimeError("the call was submitted in the process that this one was forked from: its result stays")
    return future


class On:
    """A receiver whose verbs block on an executor."""

    __slots__ = ("_executor", "_receiver")
    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, receiver: Any, executor: Executor) -> None:
        self._receiver = _checked(receiver, executor)
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        _refuse_private(self, name)
        call = _call_of(self._receiver, name)
        receiver, executor = self._receiver, self._executor
        verb = getattr(receiver, name)
        if executor is receiver.executor:
            return verb

        @functools.wraps(verb)
        def block(*args, **kwargs):
            return _run(executor, receiver.executor, call(receiver, *args, **kwargs))

        return block

    def __dir__(self) -> list[str]:
        return _verbs_of(self)

    def __copy__(self) -> On:
        return On(self._receiver, self._executor)

    def __reduce__(self):
        raise _unpicklable(self)

    def __repr__(self) -> str:
        return _shown_receiver(self)


class DeferredOn:
    """A receiver whose verbs submit to an executor and answer a `Deferred`.

    Whatever a call refuses it raises at its `result()`, a wrong argument too.
    """

    __slots__ = ("_executor", "_receiver")
    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, receiver: Any, executor: Executor) -> None:
        self._receiver = _checked(receiver, executor)
        self._executor = executor

    def __getattr__(self, name: str) -> Callable[..., Deferred[Any]]:
        _refuse_private(self, name)
        call = _call_of(self._receiver, name)
        receiver, executor = self._receiver, self._executor

        @functools.wraps(getattr(receiver, name))
        def submit(*args, **kwargs):
            try:
                prepared = call(receiver, *args, **kwargs)
            except Exception as error:
                prepared = functools.partial(_raise, error)
            return Deferred(executor._submit(prepared, receiver.executor))

        return submit

    def __dir__(self) -> list[str]:
        return _verbs_of(self)

    def __copy__(self) -> DeferredOn:
        return DeferredOn(self._receiver, self._executor)

    def __reduce__(self):
        raise _unpicklable(self)

    def __repr__(self) -> str:
        return _shown_receiver(self)


def _raise(error: Exception) -> None:
    raise error


def _refuse_private(on: On | DeferredOn, name: str) -> None:
    # No verb is private, whereas copying asks for such names before a receiver has its parts.
    if name.startswith("_"):
        raise AttributeError(f"{type(on).__name__} has no attribute {name!r}")
    if not hasattr(on, "_receiver"):
        raise AttributeError(f"{name}: the {type(on).__name__} is not initialised: a receiver's own methods make them")


def _verbs_of(on: On | DeferredOn) -> list[str]:
    return sorted(on._receiver._calls) if hasattr(on, "_receiver") else []


def _unpicklable(on: On | DeferredOn) -> TypeError:
    return TypeError(f"{type(on).__name__} cannot be pickled or copied deeply: its receiver lives on devices of this "
                     "process")


def _shown_receiver(on: On | DeferredOn) -> str:
    return f"<{type(on).__name__} {on._receiver if hasattr(on, '_receiver') else 'not initialised'}>"


cdef class Receiver:

    # By verb: what prepares a call from the receiver and the verb's own arguments. Calling that runs it.
    _calls = {}


cdef object _run(Executor executor, Executor on, object call):
    """In its turn on an executor, and on the devices of the one that the receiver was made on."""
    executor.begin(on)
    try:
        return call()
    finally:
        executor.end()


cdef object _checked(object receiver, object executor):
    """A receiver's memory lies on the devices of the executor it was made on; another on the same ones has an order of
    its own."""
    if not isinstance(receiver, Receiver):
        raise TypeError(f"receiver is of type {type(receiver).__name__}: expected a Trainer or a Model")
    if not isinstance(executor, Executor):
        raise TypeError(f"executor is of type {type(executor).__name__}: expected an Executor")
    made_on = receiver.executor
    if made_on is None:
        raise ValueError(f"receiver is a {type(receiver).__name__} that is not initialised")
    if (executor.kind, executor.devices) != (made_on.kind, made_on.devices):
        raise ValueError(f"executor is {executor!r}: this {type(receiver).__name__} lives on other devices, those of "
                         f"{made_on!r}")
    return receiver


cdef object _call_of(object receiver, str name):
    call = receiver._calls.get(name)
    if call is None:
        verbs = ", ".join(sorted(receiver._calls))
        raise AttributeError(f"a {type(receiver).__name__} has no verb {name!r} to run on an executor: it has {verbs}")
    return call
