"""Progress bars for verbs that take a `progress` callback."""

from __future__ import annotations

from typing import Any


class Bar:
    """A tqdm bar as a progress callback: it follows (done, total), and closes when they meet."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def __call__(self, done: int, total: int) -> None:
        """Moves the bar to `done` of `total`."""
        if self._draw.total != total:
            self._draw.reset(total)
        self._draw.update(done - self._draw.n)
        if done >= total:
            self._draw.close()


def bar(**options: Any) -> Bar:
    """Makes a callback that draws a tqdm bar: `trainer.save(path, progress=uform.progress.bar())`.

    Args:
        **options: for `tqdm.tqdm`, such as `desc` or `unit`.

    Raises:
        ImportError: tqdm is not installed.
    """
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError('uform.progress.bar needs tqdm: pip install "uform[progress]"') from error
    return Bar(tqdm(**options))
