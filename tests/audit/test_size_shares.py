import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import betaln

from apportion.audit.size_shares import LikelyMixtures, shares_without_signal
from apportion.success_distribution import binomial, fit_success, grid


def beta_share(a, b, n):
    """Return E[p^n + (1-p)^n] of a beta distribution."""
    return sum(np.exp(betaln(*one) - betaln(a, b)) for one in ((a + n, b), (a, b + n)))


@pytest.mark.parametrize(
    ("a", "b", "prompts", "visits", "n"),
    [(5.0, 5.0, 200, 1, 8), (2.0, 2.0, 100, 3, 8), (0.6, 0.9, 150, 3, 8), (1.0, 6.0, 200, 1, 4)],
)
def test_intervals_cover_the_truth_at_every_size(a, b, prompts, visits, n):
    sizes = (n, 32, 64)
    covered, widths = [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        success_Q = rng.beta(a, b, prompts)
        prompt_G = np.repeat(np.arange(prompts), visits)
        k_G = rng.binomial(n, success_Q[prompt_G])
        found = fit_success(k_G, [n] * len(k_G), prompt_G, num_draws=60, seed=seed)
        shares = shares_without_signal(found, sizes)
        covered.append(
            [
                one.low <= beta_share(a, b, size) <= one.high
                for one, size in zip(shares, sizes, strict=True)
            ]
        )
        widths.append([one.high - one.low for one in shares])
    assert np.mean(covered, axis=0).min() >= 0.9
    assert np.mean(widths, axis=0)[0] < 0.25
    assert np.max(widths) < 0.65


def test_ends_are_those_of_a_search_by_scipy():
    found = fit_success([0, 0, 1, 1, 2, 3, 3, 4] * 5, [4] * 40, range(40), num_draws=0)
    likely = LikelyMixtures(found)
    point_J = grid(13)
    chance_KJ = binomial(np.arange(5), np.full(5, 4), point_J)
    fitted_K = binomial(np.arange(5), np.full(5, 4), found.success_J) @ found.weight_J

    def room(weight_J):
        apart = fitted_K @ np.log(fitted_K / np.maximum(chance_KJ @ weight_J, 1e-12))
        return 1.9207 / 40 - float(apart)

    for n in (4, 16):
        for sign in (1.0, -1.0):
            value_J = sign * (point_J**n + (1.0 - point_J) ** n)
            best = minimize(
                lambda weight_J, value_J=value_J: float(value_J @ weight_J),
                np.full(13, 1 / 13),
                bounds=[(0, 1)] * 13,
                constraints=[
                    {"type": "ineq", "fun": room},
                    {"type": "eq", "fun": lambda weight_J: weight_J.sum() - 1.0},
                ],
                options={"maxiter": 500, "ftol": 1e-10},
            )
            fine_J = sign * (found.success_J**n + (1.0 - found.success_J) ** n)
            # The coarser grid holds fewer mixtures, so its end lies inside.
            assert likely.least(fine_J) <= best.fun + 1e-4
            assert likely.least(fine_J) >= best.fun - 0.015


def test_more_groups_leave_less_open():
    sizes = (4, 8, 64)
    few, many = (
        shares_without_signal(
            fit_success([0, 1, 2, 3, 8] * num, [8] * (5 * num), range(5 * num), num_draws=20), sizes
        )
        for num in (10, 200)
    )
    for one, other in zip(few, many, strict=True):
        assert 0.0 <= one.low < other.low <= other.value <= other.high < one.high <= 1.0


def test_groups_that_are_all_alike_leave_room_for_others():
    found = fit_success([0] * 100, [4] * 100, range(100), num_draws=20)
    own, large = shares_without_signal(found, (4, 64))
    # exp(-1.92 / 100): the rarest others that would likely have shown.
    assert own.low == pytest.approx(np.exp(-1.9207 / 100), abs=5e-3)
    assert own.high == large.high == 1.0
    assert large.low < own.low + 1e-3
