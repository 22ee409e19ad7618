"""Kappa from gradients whose kappa is known."""

import importlib.util

import numpy as np
import pytest

from apportion.errors import InvalidInputError
from apportion.gain import KAPPA_RANGE, Progress
from apportion.noise_ratio import NoiseRatio, from_halves, from_two_sizes
from apportion.types import Forecast


class Gaussian:
    """Prompts whose gradients have ``|g| = v`` (times a scatter) and noise ``kappa |g|^2 / v``."""

    def __init__(self, kappa, num_prompts=400, dimension=64, seed=0):
        self.rng = np.random.default_rng(seed)
        success_B = self.rng.uniform(0.05, 0.95, num_prompts)
        self.variance_B = success_B * (1 - success_B)
        direction_BD = self.rng.normal(size=(num_prompts, dimension))
        direction_BD /= np.linalg.norm(direction_BD, axis=1, keepdims=True)
        length_B = self.variance_B * self.rng.uniform(0.7, 1.3, num_prompts)
        self.gradient_BD = length_B[:, None] * direction_BD
        self.noise_B = kappa * length_B**2 / self.variance_B

    def estimate(self, num_B):
        """One leave-one-out gradient of each prompt."""
        _, dimension = self.gradient_BD.shape
        scale_B = np.sqrt(self.noise_B / (num_B - 1) / dimension)
        noise_BD = self.rng.normal(size=self.gradient_BD.shape)
        return self.gradient_BD + scale_B[:, None] * noise_BD


@pytest.mark.parametrize("kappa", [0.4, 1.0, 2.5])
def test_halves_give_the_kappa_of_gaussian_gradients(kappa):
    prompts = Gaussian(kappa)
    num_B = prompts.rng.integers(2, 12, 400)
    a_BD, b_BD = prompts.estimate(num_B), prompts.estimate(num_B)
    found = from_halves(
        (a_BD * b_BD).sum(1), ((a_BD - b_BD) ** 2).sum(1), prompts.variance_B, num_B
    )
    assert found.measured == pytest.approx(kappa, rel=0.1)
    assert found.kappa == found.measured
    assert found.signal == pytest.approx((prompts.gradient_BD**2).sum(), rel=0.1)


@pytest.mark.parametrize("kappa", [0.4, 1.0, 2.5])
def test_two_sizes_give_the_kappa_of_gaussian_gradients(kappa):
    prompts = Gaussian(kappa)
    num_B, more_B = prompts.rng.integers(2, 5, 400), prompts.rng.integers(12, 24, 400)
    small_B, large_B = ((prompts.estimate(n_B) ** 2).sum(1) for n_B in (num_B, more_B))
    found = from_two_sizes(small_B, large_B, prompts.variance_B, num_B, more_B)
    assert found.measured == pytest.approx(kappa, rel=0.15)


def test_without_sampling_error_both_are_exact_and_agree_with_the_law_of_gain():
    kappa, num = 0.8, np.array([3, 6, 9])
    v_B = np.array([0.25, 0.16, 0.05])
    square_B = v_B**2
    noise_B = kappa * square_B / v_B
    halves = from_halves(square_B, 2 * noise_B / (num - 1), v_B, num)
    sizes = from_two_sizes(
        square_B + noise_B / (num - 1), square_B + noise_B / (2 * num - 1), v_B, num, 2 * num
    )
    assert halves.measured == pytest.approx(kappa, rel=1e-12)
    assert sizes.measured == pytest.approx(kappa, rel=1e-9)
    success_B = 0.5 - np.sqrt(0.25 - v_B)
    gain_B = Progress.of(Forecast.of_success(success_B), kappa).value(num)
    np.testing.assert_allclose(gain_B, square_B**2 / (square_B + noise_B / (num - 1)), rtol=1e-9)


def test_pure_noise_is_not_identified():
    found = from_halves([-0.01, 0.005], [1.0, 1.0], [0.2, 0.2], [2, 2])
    assert not found.is_identified
    assert (found.measured, found.kappa) == (None, None)
    nothing = from_halves([0.0], [0.0], [0.2], [2])
    assert nothing.kappa is None
    assert from_two_sizes([1.0], [0.2], [0.2], [2], [3]).kappa is None


def test_it_is_kept_within_the_range():
    assert NoiseRatio(signal=1.0, noise=50.0).kappa == KAPPA_RANGE[1]
    assert NoiseRatio(signal=1.0, noise=50.0).measured == 50.0
    assert NoiseRatio(signal=1.0, noise=0.0).kappa == KAPPA_RANGE[0]
    assert from_two_sizes([0.2], [0.3], [0.2], [4], [8]).measured == 0.0


@pytest.mark.parametrize(
    ("estimate", "arguments", "words"),
    [
        (from_halves, ([], [], [], []), "no prompts"),
        (from_halves, ([1.0], [-1.0], [0.2], [2]), r"square_distance_B\[0\] is -1"),
        (from_halves, ([1.0], [1.0], [-0.2], [2]), r"reward_var_B\[0\]"),
        (from_halves, ([1.0], [1.0], [0.2], [1]), "at least 2"),
        (from_halves, ([1.0, 2.0], [1.0], [0.2], [2]), "dot_B has 2 values"),
        (from_halves, ([np.nan], [1.0], [0.2], [2]), "dot_B"),
        (from_two_sizes, ([1.0], [1.0], [0.2], [4], [4]), "more than num_small_B"),
        (from_two_sizes, ([1.0], [-1.0], [0.2], [4], [8]), r"square_large_B\[0\]"),
    ],
)
def test_malformed_input_is_refused(estimate, arguments, words):
    with pytest.raises(InvalidInputError, match=words):
        estimate(*arguments)


@pytest.mark.skipif(
    any(importlib.util.find_spec(p) is None for p in ("torch", "transformers", "reasoning_gym")),
    reason="needs the embedded model",
)
def test_both_agree_with_exact_gradients_of_the_embedded_model():
    """16 prompts of p in .1 to .5, 6 groups of 16 rollouts each, in halves and whole."""
    import torch

    from apportion.embedded.exact import exact_gradient
    from apportion.embedded.model import load
    from apportion.embedded.policy_gradient import estimate_gradient, reward
    from apportion.embedded.pools import pool
    from apportion.embedded.sampler import Rollouts, sample

    model, tokenizer = load()
    mixed = pool("mixed")
    rows = np.flatnonzero((mixed.success_Q > 0.1) & (mixed.success_Q < 0.5))
    rows = rows[np.linspace(0, len(rows) - 1, 16).astype(int)]
    v_B = mixed.success_Q[rows] * (1 - mixed.success_Q[rows])
    generator = torch.Generator().manual_seed(0)
    num, times = 8, 6
    dot_B, distance_B, noise_B, large_B, small_B, square_B = np.zeros((6, 16))
    for b, q in enumerate(rows.tolist()):
        problem = mixed.problems[q]
        exact = exact_gradient(model, tokenizer, [problem.prompt], [problem.answer])
        square_B[b] = float(exact @ exact)
        drawn = sample(model, tokenizer, [problem.prompt], 2 * num * times, generator=generator)
        reward_N = reward(drawn, [problem])

        def gradient(part, drawn=drawn, reward_N=reward_N):
            one = Rollouts(
                drawn.group_N[part],
                drawn.tokens.rows(torch.arange(part.start, part.stop)),
                drawn.text_N[part],
                drawn.is_finished_N[part],
            )
            return estimate_gradient(model, one, reward_N[part])

        for start in range(0, 2 * num * times, 2 * num):
            first = gradient(slice(start, start + num))
            second = gradient(slice(start + num, start + 2 * num))
            whole = gradient(slice(start, start + 2 * num))
            dot_B[b] += float(first @ second) / times
            distance_B[b] += float((first - second).square().sum()) / times
            small_B[b] += float(first.square().sum() + second.square().sum()) / 2 / times
            large_B[b] += float(whole.square().sum()) / times
            error = float((first - exact).square().sum() + (second - exact).square().sum())
            noise_B[b] += error * (num - 1) / 2 / times
    exact_kappa = float(v_B @ noise_B / square_B.sum())
    assert 0.3 < exact_kappa < 2.0
    for found in (
        from_halves(dot_B, distance_B, v_B, np.full(16, num)),
        from_two_sizes(small_B, large_B, v_B, np.full(16, num), np.full(16, 2 * num)),
    ):
        assert 0.5 < found.measured / exact_kappa < 2.0
