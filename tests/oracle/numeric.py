"""Gradients, sums of exponentials and scaling to unit length, safe at any magnitude."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import autograd.numpy as np
from autograd import grad
from autograd.tracer import getval

# autograd passes its own boxes where NumPy arrays are expected, so an exact array type would be a false promise.
Array: TypeAlias = Any

UNIT_EPSILON = 1e-12


def logsumexp(x: Array) -> Array:
    """`log sum exp(x)` over the last axis, by the maximum taken out; the maximum itself carries no gradient."""
    peak = np.max(getval(x), axis=-1, keepdims=True)
    return peak[..., 0] + np.log(np.sum(np.exp(x - peak), axis=-1))


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    return np.exp(x - np.expand_dims(logsumexp(x), -1))


def softplus(x: Array) -> Array:
    """`log(1 + exp(x))`."""
    return np.logaddexp(0.0, x)


def unit(x: Array) -> Array:
    """The vector `x` scaled to unit length, `x / max(|x|, 1e-12)`; zero stays zero, with a finite gradient."""
    square = np.sum(x * x)
    if getval(square) <= UNIT_EPSILON**2:
        return x / UNIT_EPSILON
    return x / np.sqrt(square)


def gradient(function: Callable[[Any], Array], variables: Any) -> Any:
    """The gradient of a scalar function, of the structure of `variables` (an array, a tuple, a dictionary of arrays).

    A loss without rows or covered columns is a constant: autograd warns of it and answers the zeros that are meant.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Output seems independent of input")
        return grad(function)(variables)
