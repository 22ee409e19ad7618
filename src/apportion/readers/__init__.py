"""Reads the records that trainers leave behind, each to the nouns of `apportion.recording`."""

from apportion.readers.columns import Columns
from apportion.readers.recordings import read

__all__ = ["Columns", "read"]
