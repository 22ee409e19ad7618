"""Where should my rollouts go? Exact rollout allocation for RL with verifiable rewards.

The step floor needs numpy and scipy alone: `allocate` splits a budget over success probabilities,
`RolloutAllocator` does so step after step and learns from what came back. Trainers are met in
`apportion.integrations`; the small language model that everything is shown on is in
`apportion.embedded`.
"""

from importlib.metadata import version as _version

from apportion.allocation import allocate
from apportion.allocator import RolloutAllocator
from apportion.errors import ApportionError
from apportion.types import Allocation, Forecast, Outcomes, Prompts

__all__ = [
    "Allocation",
    "ApportionError",
    "Forecast",
    "Outcomes",
    "Prompts",
    "RolloutAllocator",
    "allocate",
]
__version__ = _version("apportion")
