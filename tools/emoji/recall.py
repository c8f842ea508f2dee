"""How well pictures and names find each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]  # [n, hidden]
NEAREST = (1, 5)


def recalls(pictures: Vectors, names: Vectors, owners: NDArray[np.int64]) -> dict[str, float]:
    """Recall among the first `k` by cosine, ties counted against us.

    From a picture the first `k` of all names of all pictures in all languages are taken: a hit where one of them is its
    own. From a name the first `k` of all pictures are taken: a hit where its own is among them. Both are means, over
    pictures and over names.

    Args:
        pictures: unit vectors.
        names: unit vectors.
        owners: the picture of each name.
    """
    cosines = pictures @ names.T
    own = owners[None, :] == np.arange(len(pictures))[:, None]
    best = np.where(own, cosines, -np.inf).max(axis=1, keepdims=True)
    before_names = (~own & (cosines >= best)).sum(axis=1)
    before_pictures = (~own & (cosines >= cosines[owners, np.arange(len(names))][None, :])).sum(axis=0)
    return {
        f"{title}@{k}": float(np.mean(before < k))
        for title, before in (("picture to name", before_names), ("name to picture", before_pictures))
        for k in NEAREST
    }
