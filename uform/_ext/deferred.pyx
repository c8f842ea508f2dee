# cython: language_level=3, annotation_typing=False
"""Calls on an executor: blocking ones through `on`, submitted ones through `deferred`."""

import asyncio
import functools
import types


class Deferred:
    """A call that was submitted, and what it will answer.

    Calls deferred to one executor run one at a time, in the order submitted. Arguments are read when the call is
    submitted; buffers are borrowed, not copied, and must keep their values until the call is done.
    """

    __slots__ = ("_future",)
    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def result(self, timeout: float | None = None) -> Any:
        """Waits, then answers or raises what the call did.

        Args:
            timeout: the most seconds to wait; None waits until the end.

        Raises:
            TimeoutError: the call is not done by then; it goes on.
            CancelledError: (of `concurrent.futures`) it was cancelled before it started.
        """
        return self._future.result(timeout)

    def done(self) -> bool:
        """Whether the call has ended, in whichever way."""
        return self._future.done()

    def cancel(self) -> bool:
        """Cancels the call unless it has started; answers whether it is cancelled."""
        return self._future.cancel()

    def add_done_callback(self, callback: Callable[[Deferred[Any]], object], /) -> None:
        """Has `callback` called with this object when the call is done, at once where it is."""
        self._future.add_done_callback(lambda _: callback(self))

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self._future).__await__()

    def __repr__(self) -> str:
        state = "cancelled" if self._future.cancelled() else "done" if self._future.done() else "pending"
        return f"<Deferred {state}>"


class On:
    """A receiver whose verbs block on an executor."""

    __slots__ = ("_executor", "_receiver")
    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, receiver: Any, executor: Executor) -> None:
        self._receiver = _checked(receiver, executor)
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        _refuse_private(name)
        _call_of(self._receiver, name)
        return getattr(self._receiver, name)

    def __dir__(self) -> list[str]:
        return sorted(self._receiver._calls)

    def __repr__(self) -> str:
        return f"<On {self._receiver!r}>"


def _refuse_private(name: str) -> None:
    # No verb is private, whereas copying asks for such names before a receiver has its parts.
    if name.startswith("_"):
        raise AttributeError(name)


class DeferredOn:
    """A receiver whose verbs submit to an executor and answer a `Deferred`."""

    __slots__ = ("_executor", "_receiver")
    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, receiver: Any, executor: Executor) -> None:
        self._receiver = _checked(receiver, executor)
        self._executor = executor

    def __getattr__(self, name: str) -> Callable[..., Deferred[Any]]:
        _refuse_private(name)
        call = _call_of(self._receiver, name)
        receiver, executor = self._receiver, self._executor

        @functools.wraps(getattr(receiver, name))
        def submit(*args, **kwargs):
            prepared = call(receiver, *args, **kwargs)
            return Deferred(executor._submit(prepared))

        return submit

    def __dir__(self) -> list[str]:
        return sorted(self._receiver._calls)

    def __repr__(self) -> str:
        return f"<DeferredOn {self._receiver!r}>"


cdef class Receiver:

    # By verb: what prepares a call from the receiver and the verb's own arguments. Calling that runs it.
    _calls = {}


cdef object _checked(object receiver, object executor):
    """A receiver's memory lies on the devices of the executor it was made on: no other can serve its verbs."""
    made_on = receiver.executor
    if type(executor) is not type(made_on):
        raise TypeError(f"executor is of type {type(executor).__name__}: expected an Executor")
    if executor is not made_on:
        raise ValueError(f"executor is {executor!r}: this {type(receiver).__name__} was made on another, {made_on!r}")
    return receiver


cdef object _call_of(object receiver, str name):
    call = receiver._calls.get(name)
    if call is None:
        verbs = ", ".join(sorted(receiver._calls))
        raise AttributeError(f"a {type(receiver).__name__} has no verb {name!r} to run on an executor: it has {verbs}")
    return call
