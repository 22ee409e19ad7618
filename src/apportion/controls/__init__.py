"""Rules that others give rollouts by, to compare with, from the formulas of their papers.

Whole numbers within the bounds, exactly on budget, the same for the same input. Selection rules
return which prompts are taken. One file an idea:

* `plain`: even, proportional and inverse shares;
* `vip_code`: what VIP's released allocator does, which is not what its theorems say;
* `gvm`, `knapsack`, `reinforce_ada`: shares of a budget by estimated success;
* `pilot_commit`, `mopps`, `dapo`: which prompts are worth their rollouts;
* `selection`: the same choice by reward variance alone.
"""

from apportion.controls.dapo import dapo
from apportion.controls.gvm import gvm
from apportion.controls.knapsack import knapsack, knapsack_value
from apportion.controls.mopps import mopps
from apportion.controls.pilot_commit import Triage, pilot_commit
from apportion.controls.plain import (
    inverse_accuracy,
    inverse_variance,
    proportional_std,
    proportional_variance,
    uniform,
)
from apportion.controls.posterior import BetaPosterior
from apportion.controls.reinforce_ada import reinforce_ada
from apportion.controls.selection import equal_n, proportional
from apportion.controls.vip_code import vip_code

__all__ = [
    "BetaPosterior",
    "Triage",
    "dapo",
    "equal_n",
    "gvm",
    "inverse_accuracy",
    "inverse_variance",
    "knapsack",
    "knapsack_value",
    "mopps",
    "pilot_commit",
    "proportional",
    "proportional_std",
    "proportional_variance",
    "reinforce_ada",
    "uniform",
    "vip_code",
]
