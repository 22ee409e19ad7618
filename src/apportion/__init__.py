"""Where should my rollouts go? Exact rollout allocation for RL with verifiable rewards.

The step floor needs numpy and scipy alone: `allocate` splits a budget over success probabilities,
`select` also chooses which prompts get any, `allocate_tokens` counts tokens instead of rollouts,
`RolloutAllocator` does so step after step and learns from what came back. Trainers are met in
`apportion.integrations`; the small language model that everything is shown on is in
`apportion.embedded`.
"""

from importlib.metadata import version as _version

from apportion.allocation import allocate
from apportion.allocator import RolloutAllocator
from apportion.errors import ApportionError
from apportion.gain import Coverage, Progress
from apportion.selection import Selection, select
from apportion.tokens import TokenAllocation, allocate_tokens
from apportion.types import Allocation, Forecast, Outcomes, Prompts

__all__ = [
    "Allocation",
    "ApportionError",
    "Coverage",
    "Forecast",
    "Outcomes",
    "Progress",
    "Prompts",
    "RolloutAllocator",
    "Selection",
    "TokenAllocation",
    "allocate",
    "allocate_tokens",
    "select",
]
__version__ = _version("apportion")
