"""The peers as rules of the plain loop: published rules on published settings, fully charged.

Each is ``rule(step) -> num_rollouts_B | None``, see `apportion.embedded.step`. All but `dapo` spend
exactly the budget of a step. Where a paper's setting is absolute, it is scaled by the rollouts per
prompt; each rule says how. Rules that carry something from step to step are objects: make a new one
for every run. What the loop does not let a peer do is said too: prompts that are trained on weigh
the same, with RLOO advantages.
"""

from apportion.embedded.peers.one_step import dapo, equal_n, gvm, proportional, uniform
from apportion.embedded.peers.pass_rates import Knapsack, Mopps, ReinforceAda
from apportion.embedded.peers.pilot_commit import PilotCommit
from apportion.embedded.peers.vip import Vip, VipCode

__all__ = [
    "Knapsack",
    "Mopps",
    "PilotCommit",
    "ReinforceAda",
    "Vip",
    "VipCode",
    "dapo",
    "equal_n",
    "gvm",
    "proportional",
    "uniform",
]
