"""The errors of apportion: one base class, each child also the standard error that it refines.

A message names the value, the limit and the way out. Failure of an algorithm (a fit that does not
converge, a forecast without skill) is a result with a sentence of advice, never an exception.
"""

from __future__ import annotations


class ApportionError(Exception):
    """Base class of every error that apportion raises on purpose."""


class InvalidInputError(ApportionError, ValueError):
    """An argument or a file holds a value that cannot be used."""


class InfeasibleBudgetError(InvalidInputError):
    """No whole numbers within the bounds sum to the budget."""


class NonConvexLawError(InvalidInputError):
    """A variance law is not convex and decreasing from the lower bound."""


class StateError(ApportionError, ValueError):
    """A saved state does not fit: another version, another predictor, or damaged."""


class RunFolderError(ApportionError, OSError):
    """A run folder cannot be used: locked by another process, not ours, or not writable."""


class FormulaDriftError(ApportionError, RuntimeError):
    """A trainer no longer computes what this adapter was verified against."""


class MissingExtraError(ApportionError, ImportError):
    """An optional package is not installed; the message carries the install command."""

    def __init__(self, package: str, extra: str) -> None:
        """Name the missing package and the extra that brings it."""
        super().__init__(
            f"{package} is not installed. Install it with: pip install 'apportion[{extra}]'"
        )
        self.package = package
        self.extra = extra

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        """Stay picklable although the constructor takes other arguments than the message."""
        return type(self), (self.package, self.extra)


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's message, its full stop aside; its kind if it is empty.

    >>> first_line(ValueError("No such file.\nAnd a long story."))
    'No such file'
    """
    return str(error).splitlines()[0].rstrip(". ") if str(error) else type(error).__name__
