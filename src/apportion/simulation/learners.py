"""The kernel: several runs that learn the same problems side by side.

The policy of problem q is the softmax of ``base_logit[q] + feature[q] @ weight + memory[q]``.
Every array operation treats runs apart, so that a run comes out the same bit for bit whether others
stand beside it or not.
"""

from __future__ import annotations

import numpy as np

from apportion.simulation.gradient import Groups, group_gradient
from apportion.simulation.optimizer import SGD, Adam
from apportion.simulation.problems import Problems, ProblemSet
from apportion.simulation.training import Training
from apportion.validate import FloatArray, IntArray


class Learners:
    """The state of R runs: shared weights, what each problem remembers, and the optimiser's.

    Args:
        problems: learned by all.
        training: settings of all.
        num_runs: R.
    """

    def __init__(self, problems: Problems, training: Training, num_runs: int) -> None:
        self.problems, self.training = problems, training
        train = problems.train
        num_features, num_modes = train.feature_QD.shape[1], train.base_logit_QK.shape[1]
        shape = (num_runs, num_features, num_modes)
        self.weight_RDK = np.zeros(shape)
        self._optimizer = Adam(shape, training.beta2) if training.optimizer == "adam" else SGD()
        # Base logits and memory as one table; a row for each problem, with memory in each run.
        copies = num_runs if training.memory else 1
        self._logit_LK = np.tile(train.base_logit_QK, (copies, 1))
        self._first_R1 = np.arange(num_runs)[:, None] * (len(train) if training.memory else 0)
        self._base_log_QK = _log_softmax(train.base_logit_QK) if training.kl else None
        step_shape = (num_runs, training.prompts_per_step)
        self._mode_place_RB = np.arange(np.prod(step_shape)).reshape(step_shape) * num_modes
        self._feature_RBD = np.empty((*step_shape, num_features))
        self._logit_RBK = np.empty((*step_shape, num_modes))
        self.probability_RBK = np.empty((*step_shape, num_modes))

    def act(self, row_RB: IntArray) -> FloatArray:
        """Return the policy of a step's problems, in a buffer."""
        train, logit_RBK = self.problems.train, self._logit_RBK
        self._row_RB = row_RB
        train.feature_QD.take(row_RB, axis=0, out=self._feature_RBD, mode="clip")
        np.matmul(self._feature_RBD, self.weight_RDK, out=logit_RBK)
        self._own_RBK = self._logit_LK.take(row_RB + self._first_R1, axis=0)
        logit_RBK += self._own_RBK
        logit_RBK -= logit_RBK.max(axis=-1, keepdims=True)
        np.exp(logit_RBK, out=self.probability_RBK)
        self.probability_RBK /= self.probability_RBK.sum(axis=-1, keepdims=True)
        return self.probability_RBK

    def learn(self, count_RBK: IntArray, groups: Groups, rate: float) -> FloatArray:
        """Take a step from what the policy of the last `act` drew; returns reward_RB.

        ``weight += rate * step`` and ``memory_q += memory^2 * rate * gradient_q / scale``, where
        scale is the mean of what Adam divides the gradients of the weights by, or 1 for SGD.
        """
        training = self.training
        correct_RB = self._mode_place_RB + self.problems.train.correct_Q[self._row_RB]
        gradient_RBK, reward_RB = group_gradient(count_RBK, correct_RB, groups)
        if self._base_log_QK is not None:
            pull_RBK = kl_gradient(self.probability_RBK, self._base_log_QK[self._row_RB])
            gradient_RBK -= training.kl / training.prompts_per_step * pull_RBK
        gradient_RDK = np.matmul(self._feature_RBD.transpose(0, 2, 1), gradient_RBK)
        step_RDK, scale_R = self._optimizer.step_of(gradient_RDK)
        if training.shared:
            step_RDK *= rate
            self.weight_RDK += step_RDK
        if training.memory:
            gradient_RBK *= (training.memory**2 * rate / scale_R)[:, None, None]
            self._own_RBK += gradient_RBK
            self._logit_LK[self._row_RB + self._first_R1] = self._own_RBK
        return reward_RB

    def held_out_success(self) -> FloatArray:
        """Return the exact success of held-out problems, which have no memory: success_RV."""
        held_out = self.problems.held_out
        return self._success(held_out, held_out.base_logit_QK)

    def train_success(self) -> FloatArray:
        """Return the exact success of training problems: success_RQ."""
        train = self.problems.train
        return self._success(train, self._logit_LK.reshape(-1, *train.base_logit_QK.shape))

    def _success(self, problems: ProblemSet, own_RQK: FloatArray) -> FloatArray:
        logit_RQK = np.matmul(problems.feature_QD, self.weight_RDK) + own_RQK
        logit_RQK -= logit_RQK.max(axis=-1, keepdims=True)
        share_RQK = np.exp(logit_RQK)
        chosen_RQ = share_RQK[:, np.arange(len(problems)), problems.correct_Q]
        return np.asarray(chosen_RQ / share_RQK.sum(axis=-1))


def kl_gradient(probability_RBK: FloatArray, base_log_RBK: FloatArray) -> FloatArray:
    """Return the gradient of ``KL(policy || base)`` in the logits of the policy.

    ``p_k (log p_k/b_k - sum_j p_j log p_j/b_j)``

    >>> kl_gradient(np.array([0.5, 0.5]), np.log([0.5, 0.5]))
    array([0., 0.])
    """
    ratio_RBK = np.log(np.maximum(probability_RBK, np.finfo(float).tiny)) - base_log_RBK
    weighted_RBK = probability_RBK * ratio_RBK
    return np.asarray(weighted_RBK - probability_RBK * weighted_RBK.sum(axis=-1, keepdims=True))


def _log_softmax(logit_QK: FloatArray) -> FloatArray:
    logit_QK = logit_QK - logit_QK.max(axis=-1, keepdims=True)
    return np.asarray(logit_QK - np.log(np.exp(logit_QK).sum(axis=-1, keepdims=True)))
