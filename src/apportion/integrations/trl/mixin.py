"""A mixin that lets TRL's trainers give each prompt as many rollouts as an allocator says.

The rows of a batch are laid out anew right before generation, and the advantages are replaced right
after TRL has computed its own; everything in between, before and after is TRL's. While rows are
generated ``num_generations`` is 1, so that each row is a request of its own, and it is put back
when the rewards are there. TRL's advantages on the re-laid rows mean nothing and are overwritten,
but they are first compared with a restatement of TRL's formula: a release that computes something
else is noticed on the first batch.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import trl
from accelerate.utils import broadcast_object_list, gather, gather_object
from torch import Tensor
from trl import RLOOTrainer

from apportion.errors import FormulaDriftError, InvalidInputError
from apportion.state_file import load_state, save_state

from .candidates import DrawnRows, ExtraRows
from .checks import check_dataset, check_setup, described
from .default import default_allocator
from .formula import NONE_IS_UNSCORED, Formula, GRPOFormula, RLOOFormula
from .planner import RolloutPlanner
from .rows import Row, expand, group_heads
from .vllm_fan_out import fan_out
from .weighted_loss import TOKENS, WEIGHT, RowBeta, micro_batch_factor, row_weight, token_sums

T = TypeVar("T")

STATE_FILE = "rollout_allocator.safetensors"
_TOLERANCE = 1e-5 if NONE_IS_UNSCORED else 1e-2  # older releases round their moments differently


@dataclass
class _Batch:
    """One generation batch, from its new layout to its advantages."""

    num_groups: int
    group_N: Tensor
    is_even: bool
    first: int
    step: int
    reward_NK: Tensor | None = None
    seen_N: Tensor | None = None
    logps: list[Tensor] = field(default_factory=list)

    def local(self, value_N: Tensor, num_rows: int) -> Tensor:
        """Return this process's part."""
        return value_N[self.first : self.first + num_rows]


class AdaptiveRolloutMixin:
    """Mix in before a subclass of `GRPOTrainer` or `RLOOTrainer`; ``args`` needs our fields.

    ::

        class AdaptiveGMPOTrainer(AdaptiveRolloutMixin, GMPOTrainer): ...

    Args:
        *args: the trainer's own arguments.
        allocator: decides how many rollouts each prompt gets, e.g. a `RolloutAllocator`; the
            default one is described in the documentation. Used on the first process only.
        extra_rows: ``extra_rows(step, heads)`` returns the rows to choose from besides the heads of
            the batch, in place of those that ``candidates`` draws from the training set. Called
            on the first process only.
        **kwargs: the trainer's own arguments.

    Raises:
        InvalidInputError: the settings leave nothing that could work; the message says what would.
    """

    def __init__(
        self,
        *args: Any,
        allocator: Any | None = None,
        extra_rows: ExtraRows | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_setup(self, allocator, extra_rows)
        draws = extra_rows is None and self.args.candidates > 1
        draws = draws and self.args.allocator_mode != "uniform"
        check_dataset(self.args, self.train_dataset, draws=draws)
        if draws:
            extra_rows = DrawnRows(
                self.train_dataset,
                self.args.candidates,
                seed=self.args.seed,
                key_column=self.args.prompt_key_column,
            )
        self._extra_rows = extra_rows
        self._batch: _Batch | None = None
        self._stock_num_generations: int | None = None
        self.planner: RolloutPlanner | None = None
        if self.accelerator.is_main_process:
            embed: Any = None
            first_rows: list[Row] = []
            if self.args.allocator_mode == "uniform":
                allocator = None
            elif allocator is None:
                allocator, embed, first_rows = default_allocator(self.args, self.train_dataset)
            self.planner = RolloutPlanner(self.args, allocator, embed)
            if allocator is not None and first_rows:
                allocator.add(self.planner.read(first_rows))

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train; the run log is finished whatever happens.

        Raises:
            RunFolderError: nothing is resumed, but ``rollout_log_dir`` holds a run.
        """
        if not resume_from_checkpoint:
            self._on_first_process(RolloutPlanner.check_run_folder)
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            if self.planner is not None:
                self.planner.close()

    # Generation: lay out, sample, overwrite.

    def _generate_and_score_completions(self, inputs: list[Row]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        self._batch, rows = self._laid_out(inputs)
        try:
            with self._one_request_a_row(self._batch):
                output = super()._generate_and_score_completions(rows)
            if self.args.allocator_mode == "adaptive":
                penalty_N = self._penalty(self._batch, output)
                self._check_formula(self._batch, output, penalty_N)
                if not self._batch.is_even:
                    self._overwrite(self._batch, output, penalty_N)
            self._learn(self._batch)
        finally:
            self._batch = None
        return output

    def _laid_out(self, inputs: list[Row]) -> tuple[_Batch, list[Row]]:
        """Ask for the group sizes and build this process's rows; they stay as they are if even."""
        num_rows = len(inputs)
        first = self.accelerator.process_index * num_rows
        budget = self.accelerator.num_processes * num_rows
        heads = gather_object(group_heads(inputs, first, self.num_generations))
        size_of_head, others = self._decide(heads, budget)
        groups = [(head, size) for head, size in zip(heads, size_of_head, strict=True) if size]
        groups += others
        group_N = np.repeat(np.arange(len(groups)), [size for _, size in groups])
        batch = _Batch(
            num_groups=len(groups),
            group_N=torch.as_tensor(group_N, device=self.accelerator.device),
            is_even=all(size == self.num_generations for size in size_of_head),
            first=first,
            step=self.state.global_step,
        )
        if self.args.allocator_mode != "adaptive":
            return batch, inputs
        rows = [row for row, _ in groups]
        return batch, expand(rows, group_N[first : first + num_rows].tolist())

    def _decide(self, heads: Sequence[Row], budget: int) -> tuple[list[int], list[tuple[Row, int]]]:
        """Let the first process decide, so that no two can disagree.

        Returns:
            The rollouts of each head, 0 for those left out, and the other rows that get any.
        """

        def decide(planner: RolloutPlanner) -> tuple[list[int], list[tuple[Row, int]]]:
            step = self.state.global_step
            planner.open_run_log(described(self), step)
            asked = self._extra_rows is not None and planner.allocator is not None
            extra = list(self._extra_rows(step, heads)) if asked else []
            sizes = planner.decide(heads, budget, step, extra=extra)
            others = zip(extra, sizes[len(heads) :], strict=True)
            return sizes[: len(heads)], [(row, size) for row, size in others if size]

        return self._on_first_process(decide)

    def _on_first_process(self, work: Callable[[RolloutPlanner], T]) -> T:
        """Do something on the first process; what it returns or raises reaches all of them."""
        answer: list[Any] = [None]
        failure: Exception | None = None
        if self.planner is not None:
            try:
                answer = [work(self.planner)]
            except Exception as error:
                failure = error
                answer = [_picklable(error)]
        if self.accelerator.num_processes > 1:
            broadcast_object_list(answer, from_process=0)
        if failure is not None:
            raise failure
        if isinstance(answer[0], Exception):
            raise answer[0]
        result: T = answer[0]
        return result

    @contextmanager
    def _one_request_a_row(self, batch: _Batch) -> Iterator[None]:
        if batch.is_even:
            yield
            return
        self._stock_num_generations, self.num_generations = self.num_generations, 1
        client = getattr(getattr(self, "vllm_generation", None), "vllm_client", None)
        try:
            if client is None:
                yield
            else:
                with fan_out(client):
                    yield
        finally:
            self._restore_num_generations()

    def _restore_num_generations(self) -> None:
        if self._stock_num_generations is not None:
            self.num_generations = self._stock_num_generations
            self._stock_num_generations = None

    def _calculate_rewards(
        self,
        inputs: list[Row],
        prompts: Any,
        completions: Any,
        completion_ids_list: list[list[int]],
    ) -> Tensor:
        """Catch the rewards of all processes, with the length of each completion.

        Raises:
            InvalidInputError: a reward is infinite, and no clipping makes it finite.
        """
        self._restore_num_generations()
        reward_NK = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if self._batch is not None:
            self._check_finite(reward_NK)
            ends = self._end_tokens()
            seen = [(len(ids), int(not ids or ids[-1] not in ends)) for ids in completion_ids_list]
            self._batch.seen_N = gather(torch.tensor(seen, device=self.accelerator.device))
            self._batch.reward_NK = reward_NK
        return reward_NK

    def _check_finite(self, reward_NK: Tensor) -> None:
        infinite_NK = torch.isinf(reward_NK)
        bad_N = infinite_NK.any(dim=1) & ~torch.isfinite(self._formula.reward(reward_NK))
        if not bad_N.any():
            return
        row = int(bad_N.nonzero()[0])
        column = int(infinite_NK[row].nonzero()[0])
        raise InvalidInputError(
            f"Reward function {column} ({self.reward_func_names[column]}) gave rollout {row} of "
            f"the batch the reward {reward_NK[row, column].item():g}, but rewards must be finite. "
            "Return a finite number, or None for a rollout that has no score."
        )

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        """Catch what RLOO's KL penalty is made of; TRL does not hand it out."""
        answer = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._batch is not None and isinstance(self, RLOOTrainer) and self.beta != 0.0:
            self._batch.logps.append(answer[0])
        return answer

    def _penalty(self, batch: _Batch, output: dict[str, Any]) -> Tensor | None:
        if not isinstance(self, RLOOTrainer) or self.beta == 0.0:
            return None
        if len(batch.logps) != 2:
            raise _drifted(f"RLOO took {len(batch.logps)} log-probabilities for its KL, not 2")
        old, reference = batch.logps
        kl_N = ((old - reference) * output["completion_mask"]).sum(-1)
        return self.beta * gather(kl_N)

    @property
    def _formula(self) -> Formula:
        return RLOOFormula.of(self) if isinstance(self, RLOOTrainer) else GRPOFormula.of(self)

    def _check_formula(
        self, batch: _Batch, output: dict[str, Any], penalty_N: Tensor | None
    ) -> None:
        """Compare TRL's advantages with its formula as we know it.

        Raises:
            FormulaDriftError: they differ, so ours might be wrong as well.
        """
        if batch.reward_NK is None:
            raise _drifted("the rewards did not pass through _calculate_rewards")
        told = output["advantages"]
        known = self._formula.stock(batch.reward_NK, self.num_generations, penalty_N)
        known = batch.local(known, len(told))
        if told.shape != known.shape:
            raise _drifted(f"advantages have shape {tuple(told.shape)}, not {tuple(known.shape)}")
        if not torch.allclose(told, known, rtol=1e-4, atol=_TOLERANCE):
            most = (told - known).abs().max().item()
            raise _drifted(f"advantages differ from the formula known to us by up to {most:.3g}")

    def _overwrite(self, batch: _Batch, output: dict[str, Any], penalty_N: Tensor | None) -> None:
        """Put the advantages of the real groups in place, and what goes with them."""
        weighting = self.args.weighting
        ragged = self._formula.ragged(
            batch.reward_NK,
            batch.group_N,
            batch.num_groups,
            weighting=weighting,
            penalty_N=penalty_N,
        )
        num_rows = len(output["advantages"])
        output["advantages"] = batch.local(ragged.advantage_N, num_rows).clone()
        if weighting == "prompt" and not isinstance(self, RLOOTrainer):
            weight_N = batch.local(row_weight(batch.group_N, batch.num_groups), num_rows)
            plain, weighted = gather(token_sums(output, weight_N)).view(-1, 2).sum(dim=0)
            output[WEIGHT], output[TOKENS] = weight_N, weighted.clamp(min=1.0)
            if "num_items_in_batch" in output and plain > 0:
                output["num_items_in_batch"] = output["num_items_in_batch"] * (weighted / plain)
        self._metrics["train"]["frac_reward_zero_std"][-1] = ragged.zero_std_fraction
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(ragged.advantage_N))):
            logged.pop()
        logged.extend(ragged.advantage_N.tolist())

    def _learn(self, batch: _Batch) -> None:
        if batch.seen_N is None:
            return
        seen_N = batch.seen_N.cpu().numpy()

        def learn(planner: RolloutPlanner) -> dict[str, float]:
            return planner.learn(
                self._formula.reward(batch.reward_NK).double().cpu().numpy(),
                batch.group_N.cpu().numpy(),
                num_tokens_N=seen_N[:, 0],
                truncated_N=seen_N[:, 1],
                step=batch.step,
            )

        for name, value in self._on_first_process(learn).items():
            if np.isfinite(value):
                self._metrics["train"][f"rollouts/{name}"].append(value)

    # The loss: what the advantages cannot carry.

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        weight_N = inputs.get(WEIGHT)
        if weight_N is None:
            return super()._compute_loss(model, inputs)
        if self.loss_type == "bnpo":
            num_parts = self.args.steps_per_generation * self.accelerator.num_processes
            factor = micro_batch_factor(inputs, num_parts)
            inputs = {**inputs, "advantages": inputs["advantages"] * factor}
            weight_N = weight_N * factor
        if self.beta == 0.0:
            return super()._compute_loss(model, inputs)
        beta, self.beta = self.beta, RowBeta(self.beta, weight_N)
        try:
            loss = super()._compute_loss(model, inputs)
            if not self.beta.used:
                raise _drifted("the loss does not add beta times its KL, so it cannot be weighted")
        finally:
            self.beta = beta
        return loss

    # Checkpoints and columns, by TRL's own pattern.

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        step = self.state.global_step
        folder = os.path.join(self._get_output_dir(trial=trial), f"checkpoint-{step}")

        def save(planner: RolloutPlanner) -> None:
            planner.checkpoint()
            if planner.allocator is not None:
                header = {"step": step, "trl": trl.__version__}
                save_state(os.path.join(folder, STATE_FILE), planner.allocator.state_dict(), header)

        self._on_first_process(save)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        path = os.path.join(checkpoint, STATE_FILE)

        def load(planner: RolloutPlanner) -> None:
            if planner.allocator is None:
                return
            if os.path.exists(path):
                planner.allocator.load_state_dict(load_state(path)[0])
                return
            warnings.warn(
                f"{checkpoint} holds no {STATE_FILE}: the allocator starts knowing nothing.",
                UserWarning,
                stacklevel=4,
            )

        self._on_first_process(load)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        args = self.args
        for column in (args.prompt_key_column, args.prior_mean_column, args.prior_count_column):
            if column is not None and column not in self._signature_columns:
                self._signature_columns = [*self._signature_columns, column]

    def _end_tokens(self) -> set[int]:
        tokenizer: Any = getattr(self.processing_class, "tokenizer", self.processing_class)
        ends = getattr(self, "eos_token_ids", None) or [tokenizer.eos_token_id]
        return {*ends, tokenizer.pad_token_id}


def _picklable(error: Exception) -> Exception:
    """Return the error as other processes can receive it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _drifted(what: str) -> FormulaDriftError:
    return FormulaDriftError(
        f"In TRL {trl.__version__} {what}. This adapter was verified against another formula and "
        "stops rather than train wrongly. Use a TRL release that apportion names as tested, or "
        'allocator_mode="shadow", which leaves all advantages to TRL.'
    )
