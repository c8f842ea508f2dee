"""Progress bars for verbs that take a `progress` callback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Bar:
    """A tqdm bar as a progress callback: it follows (done, total), closes when they meet, and serves many calls."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._drawn: Any = None

    def __call__(self, done: int, total: int) -> None:
        """Moves the bar to `done` of `total`; less than before is another call, with a bar of its own."""
        if self._drawn is not None and done <= self._drawn.n:
            self._close()
        if self._drawn is None:
            self._drawn = self._make(total=total)
        self._drawn.update(done - self._drawn.n)
        if done >= total:
            self._close()

    def _close(self) -> None:
        self._drawn.close()
        self._drawn = None


def bar(**options: Any) -> Bar:
    """Makes a callback that draws a tqdm bar: `trainer.save(path, progress=uform.progress.bar())`.

    Where IPython's widgets are there it is a widget of the notebook, else a line of the terminal.

    Args:
        **options: for `tqdm.tqdm`, such as `desc` or `unit`; the total is the call's.

    Raises:
        ImportError: tqdm is not installed.
    """
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError('uform.progress.bar needs tqdm: pip install "uform[progress]"') from error
    return Bar(lambda total: tqdm(**{**options, "total": total}))
