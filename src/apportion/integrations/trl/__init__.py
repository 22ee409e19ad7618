"""Adaptive rollouts in TRL: the trainers and configurations of the same names with `Adaptive`."""

try:
    import trl as _trl  # noqa: F401
except ImportError as error:
    from apportion.errors import MissingExtraError

    raise MissingExtraError("trl", "train") from error

from .config import AdaptiveGRPOConfig, AdaptiveRLOOConfig, AdaptiveRolloutConfig
from .mixin import AdaptiveRolloutMixin
from .trainers import AdaptiveGRPOTrainer, AdaptiveRLOOTrainer

__all__ = [
    "AdaptiveGRPOConfig",
    "AdaptiveGRPOTrainer",
    "AdaptiveRLOOConfig",
    "AdaptiveRLOOTrainer",
    "AdaptiveRolloutConfig",
    "AdaptiveRolloutMixin",
]
