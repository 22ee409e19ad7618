"""TRL's two trainers with adaptive rollouts."""

from __future__ import annotations

from typing import Any

from trl import GRPOTrainer, RLOOTrainer

from .config import AdaptiveGRPOConfig, AdaptiveRLOOConfig
from .mixin import AdaptiveRolloutMixin


class AdaptiveGRPOTrainer(AdaptiveRolloutMixin, GRPOTrainer):
    """`GRPOTrainer` whose allocator splits each batch's rollouts among prompts.

    Args:
        model: as in `GRPOTrainer`, and so are all further arguments.
        reward_funcs: as in `GRPOTrainer`.
        args: an `AdaptiveGRPOConfig`.
        *others: as in `GRPOTrainer`.
        allocator: see `AdaptiveRolloutMixin`.
        **named: as in `GRPOTrainer`; `extra_rows` as in `AdaptiveRolloutMixin`.
    """

    _tag_names = ["trl", "grpo", "apportion"]  # noqa: RUF012
    _name = "GRPO with adaptive rollouts"

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: AdaptiveGRPOConfig | None = None,
        *others: Any,
        allocator: Any | None = None,
        **named: Any,
    ) -> None:
        if args is None:
            args = AdaptiveGRPOConfig(_output_dir(model, "GRPO"))
        super().__init__(model, reward_funcs, args, *others, allocator=allocator, **named)


class AdaptiveRLOOTrainer(AdaptiveRolloutMixin, RLOOTrainer):
    """`RLOOTrainer` whose allocator splits each batch's rollouts among prompts.

    Args:
        model: as in `RLOOTrainer`, and so are all further arguments.
        reward_funcs: as in `RLOOTrainer`.
        args: an `AdaptiveRLOOConfig`.
        *others: as in `RLOOTrainer`.
        allocator: see `AdaptiveRolloutMixin`.
        **named: as in `RLOOTrainer`; `extra_rows` as in `AdaptiveRolloutMixin`.
    """

    _tag_names = ["trl", "rloo", "apportion"]  # noqa: RUF012
    _name = "RLOO with adaptive rollouts"

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: AdaptiveRLOOConfig | None = None,
        *others: Any,
        allocator: Any | None = None,
        **named: Any,
    ) -> None:
        if args is None:
            args = AdaptiveRLOOConfig(_output_dir(model, "RLOO"))
        super().__init__(model, reward_funcs, args, *others, allocator=allocator, **named)


def _output_dir(model: Any, method: str) -> str:
    name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "")
    return f"{name.split('/')[-1] or 'model'}-{method}-adaptive"
