"""Gradient ascent for several runs at once, in place."""

from __future__ import annotations

import numpy as np

from apportion.validate import FloatArray

BETA1 = 0.9
_EPSILON = 1e-8


class Adam:
    """Steps of Adam: ``m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + 1e-8)``.

    Source: Kingma and Ba, 2015, algorithm 1.

    Args:
        shape: of the weights; the first axis are runs.
        beta2: decay of the second moment.
    """

    def __init__(self, shape: tuple[int, ...], beta2: float) -> None:
        self.beta2 = beta2
        self._first, self._second = np.zeros(shape), np.zeros(shape)
        self._root, self._step = np.empty(shape), np.empty(shape)
        self._keep1, self._keep2 = 1.0, 1.0

    def step_of(self, gradient: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the step for a rate of 1, in a buffer, and what gradients are divided by a run.

        The latter is the mean of the denominator over the weights.
        """
        self._keep1 *= BETA1
        self._keep2 *= self.beta2
        self._first *= BETA1
        np.multiply(gradient, 1.0 - BETA1, out=self._step)
        self._first += self._step
        np.multiply(gradient, gradient, out=self._step)
        self._step *= 1.0 - self.beta2
        self._second *= self.beta2
        self._second += self._step
        np.multiply(self._second, 1.0 / (1.0 - self._keep2), out=self._root)
        np.sqrt(self._root, out=self._root)
        self._root += _EPSILON
        np.divide(self._first, self._root, out=self._step)
        self._step *= 1.0 / (1.0 - self._keep1)
        return self._step, self._root.reshape(len(gradient), -1).mean(axis=1)


class SGD:
    """Steps of plain gradient ascent."""

    def step_of(self, gradient: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the gradient, and 1 a run."""
        return gradient, np.ones(len(gradient))
