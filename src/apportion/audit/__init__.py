"""The audit of a recorded run: what sampling bought, and what to set instead."""

from apportion.audit.audit import Audit, Prediction, Summary, audit, success_counts

__all__ = ["Audit", "Prediction", "Summary", "audit", "success_counts"]
