"""The audit of a recorded run: what sampling bought, and what to set instead."""

from apportion.audit.audit import (
    Audit,
    Summary,
    audit,
    bounds_to_replay,
    success_counts,
)
from apportion.audit.prediction import Prediction

__all__ = ["Audit", "Prediction", "Summary", "audit", "bounds_to_replay", "success_counts"]
