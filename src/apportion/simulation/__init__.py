"""A simulated population of problems, learned by group policy gradient, to ask what-if questions.

Axis legend beside that of `apportion.types`:

====  =====================================================================
R     runs side by side, one a seed
B     prompts of a step
Q     training problems
V     held-out problems
D     features of a problem, shared by all
K     answer modes of a problem, one of them correct
M     steps of a run
T     evaluations of a run
P     requested points of a run
====  =====================================================================
"""

from apportion.simulation.loop import simulate
from apportion.simulation.population import Population
from apportion.simulation.problems import Problems, ProblemSet
from apportion.simulation.record import Measurement, SimulatedRun
from apportion.simulation.training import Training

__all__ = [
    "Measurement",
    "Population",
    "ProblemSet",
    "Problems",
    "SimulatedRun",
    "Training",
    "simulate",
]
