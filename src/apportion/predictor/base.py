"""What every predictor of success does: add prompts, forecast, learn, keep a state."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from apportion.types import Forecast, Outcomes, Prompts
from apportion.validate import IntArray


class Predictor(Protocol):
    """A belief about the success of Q prompts, addressed by row number.

    Time is counted in policy steps (updates of the weights). The allocator that owns the predictor
    gives each prompt the next free row, merges groups of one prompt, and drops what cannot be
    learned from, so that an implementation may rely on what each method states.
    """

    def add(self, prompts: Prompts) -> None:
        """Append B new prompts; they get rows Q, Q + 1, ... in order."""
        ...

    def forecast(self, row_B: IntArray, step: int) -> Forecast:
        """Return the belief about these rows at this policy step; must not change any state."""
        ...

    def update(self, row_B: IntArray, outcomes: Outcomes) -> None:
        """Learn from the groups of one or more policy steps.

        ``row_B[i]`` is the row of ``outcomes.prompt_B[i]``. Rows are unique; every group has at
        least one scored rollout; rewards lie in [0, 1] (``0 <= reward_sum <= num_rollouts``);
        ``policy_step_B`` may lie before steps already learned from (late outcomes).
        """
        ...

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything learned, as arrays by name; constructor arguments are not part.

        An array with one row a prompt bears a name that ends in its axes, Q first (``mean_Q``,
        ``feature_QD``): the allocator checks its length against the prompts that it knows.
        """
        ...

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        """Restore what `state_dict` returned, bit for bit.

        Raises:
            StateError: it does not fit; nothing has changed then.
        """
        ...
