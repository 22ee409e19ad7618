import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError, NonConvexLawError
from apportion.gradient_variance import DR_GRPO, GRPO, GRPO_POPULATION_STD, LAWS, RLOO, law_for
from apportion.types import Forecast

NUM_GROUPS = 40_000
SCORE_MEAN, SCORE_STD = 0.7, 1.3


def group_gradients(advantage, success_G, n, rng):
    """Prompt gradients as a flat loss of mean group size G sees them, over that of equal groups.

    Rows are summed, not averaged, over the group: (1/G) sum_j w A_j Z_j. The constant that only G
    sets is divided out, which leaves w = 1/n or 1/(n-1).
    """
    reward_GN = (rng.random((len(success_G), n)) < success_G[:, None]).astype(float)
    score_GN = rng.normal(SCORE_MEAN, SCORE_STD, reward_GN.shape)
    advantage_GN, weight = advantage(reward_GN, n)
    return weight * (advantage_GN * score_GN).sum(axis=1)


def leave_one_out(reward_GN, n):
    others_GN = (reward_GN.sum(axis=1, keepdims=True) - reward_GN) / (n - 1)
    return reward_GN - others_GN, 1 / n


def centred(reward_GN, n):
    return reward_GN - reward_GN.mean(axis=1, keepdims=True), 1 / n


def centred_and_weighted(reward_GN, n):
    return centred(reward_GN, n)[0], 1 / (n - 1)


def over_sample_std(reward_GN, n):
    std_G1 = reward_GN.std(axis=1, ddof=1, keepdims=True)
    return centred(reward_GN, n)[0] / (std_G1 + 1e-9), 1 / (n - 1)


def over_population_std(reward_GN, n):
    return centred(reward_GN, n)[0] / (reward_GN.std(axis=1, keepdims=True) + 1e-9), 1 / n


CASES = [
    (leave_one_out, law_for("rloo")),
    (centred, law_for("dr_grpo", weighting="none")),
    (centred_and_weighted, law_for("dr_grpo")),
    (over_sample_std, law_for("grpo")),
    (over_population_std, law_for("grpo", std="population")),
]


def assert_is_law(gradient_G, law, forecast, n):
    squared_G = (gradient_G - gradient_G.mean()) ** 2 / SCORE_STD**2
    error = squared_G.std() / np.sqrt(len(squared_G))
    assert abs(squared_G.mean() - law(forecast, [n])[0]) < 4 * error


@pytest.mark.parametrize(("advantage", "law"), CASES)
@pytest.mark.parametrize("n", [2, 3, 5, 16])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.8])
def test_law_is_the_variance_of_simulated_gradients(advantage, law, n, p):
    rng = np.random.default_rng([n, int(100 * p)])
    gradient_G = group_gradients(advantage, np.full(NUM_GROUPS, p), n, rng)
    assert_is_law(gradient_G, law, Forecast.of_success([p]), n)


@pytest.mark.parametrize(("advantage", "law"), CASES)
@pytest.mark.parametrize(("a", "b"), [(0.3, 0.9), (2.0, 6.0)])
def test_law_under_a_belief_is_the_variance_over_drawn_success(advantage, law, a, b):
    rng = np.random.default_rng(int(10 * a))
    mean, n = a / (a + b), 6
    belief = Forecast.of_success([mean], [mean * (1 - mean) / (a + b + 1)])
    gradient_G = group_gradients(advantage, rng.beta(a, b, NUM_GROUPS), n, rng)
    assert_is_law(gradient_G, law, belief, n)


def mixed_group_by_quadrature(a, b, n):
    from scipy.integrate import quad
    from scipy.stats import beta

    def density(p):
        return (-np.expm1(n * np.log(p)) - (1 - p) ** n) * beta.pdf(p, a, b)

    return quad(density, 0, 1, epsabs=0, epsrel=1e-11, limit=400)[0]


@pytest.mark.parametrize(("a", "b"), [(1.5, 2.5), (3.0, 40.0), (60.0, 2.0), (500.0, 300.0)])
@pytest.mark.parametrize("n", [2, 7, 300])
def test_grpo_law_equals_quadrature_over_the_beta(a, b, n):
    mean = a / (a + b)
    belief = Forecast.of_success([mean], [mean * (1 - mean) / (a + b + 1)])
    assert GRPO(belief, [n])[0] * (n - 1) == pytest.approx(
        mixed_group_by_quadrature(a, b, n), rel=1e-9
    )


@pytest.mark.parametrize("concentration", [1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e8, 1e11])
@pytest.mark.parametrize("mean", [1e-30, 1e-9, 1e-3, 0.5, 0.999])
def test_grpo_law_keeps_its_digits_for_rare_successes_and_sharp_beliefs(mean, concentration):
    # E[p^n] = prod_k (a+k)/(a+b+k), in logarithms.
    n, k = 12, np.arange(1, 12)
    belief = Forecast.of_success([mean], [mean * (1 - mean) / (concentration + 1)])

    def repeat(m):
        return np.log1p(-(1 - m) * concentration / (concentration + k)).sum()

    expected = -mean * np.expm1(repeat(mean)) - (1 - mean) * np.expm1(
        np.log1p(-mean * concentration / (concentration + k)).sum()
    )
    assert GRPO(belief, [n])[0] * (n - 1) == pytest.approx(expected, rel=1e-9)
    assert repeat(mean) <= 0


def test_grpo_law_without_doubt_and_with_all_possible_doubt():
    p, n = 0.3, 5
    sure = GRPO(Forecast.of_success([p]), [n])[0]
    assert sure == pytest.approx((1 - p**n - (1 - p) ** n) / (n - 1), rel=1e-14)
    assert GRPO(Forecast.of_success([p], [p * (1 - p)]), [n])[0] == 0.0
    assert GRPO(Forecast.of_success([0.0, 1.0]), [2, 9]).tolist() == [0.0, 0.0]
    assert GRPO_POPULATION_STD(Forecast.of_success([p]), [n])[0] == pytest.approx(
        sure * (n - 1) / n
    )


def test_plug_in_overstates_grpo_noise_under_doubt():
    plug_in = GRPO(Forecast.of_success([0.2]), [8])[0]
    believed = GRPO(Forecast.of_success([0.2], [0.06]), [8])[0]
    assert 1.4 < plug_in / believed < 1.7


beliefs = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(
    lambda pair: Forecast.of_success([pair[0]], [pair[1] * pair[0] * (1 - pair[0])])
)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
@given(belief=beliefs, start=st.integers(0, 3000))
def test_law_is_convex_and_falls_from_where_it_says(law, belief, start):
    n_N = law.convex_from + start + np.arange(40)
    repeated = belief.take(np.zeros(40, dtype=int))
    value_N = law(repeated, n_N)
    drop_N = law.drop(repeated, n_N)
    noise = 1e-13 * value_N[0] + 1e-300
    assert (value_N >= 0).all()
    assert (drop_N >= 0).all()
    assert (np.diff(drop_N) <= noise).all()
    assert np.allclose(drop_N[:-1], -np.diff(value_N), rtol=1e-9, atol=noise)


@pytest.mark.parametrize("law", [DR_GRPO, GRPO_POPULATION_STD])
def test_law_is_not_convex_below_where_it_says(law):
    belief = Forecast.of_success([0.4, 0.4])
    before, after = law.drop(belief, np.array([law.convex_from - 1, law.convex_from]))
    assert before < after


def test_population_std_is_flat_from_two_to_three():
    two, three = GRPO_POPULATION_STD(Forecast.of_success([0.3, 0.3]), [2, 3])
    assert two == pytest.approx(three, rel=1e-14)


@pytest.mark.parametrize("law", [RLOO, DR_GRPO])
@given(belief=beliefs, price=st.floats(1e-12, 1.0))
def test_crossing_is_where_the_drop_meets_the_price(law, belief, price):
    n = np.floor(law.crossing(belief, price)).astype(int)
    if n[0] > law.convex_from + 2:
        assert law.drop(belief, n - 2)[0] >= price * (1 - 1e-12)
        assert law.drop(belief, n + 2)[0] <= price * (1 + 1e-12)


def test_law_follows_from_estimator_and_weighting():
    assert law_for("rloo") is law_for("rloo", weighting="none") is RLOO
    assert law_for("dr_grpo") is RLOO
    assert law_for("dr_grpo", weighting="none") is DR_GRPO
    assert law_for("grpo") is GRPO
    assert law_for("grpo", std="population") is GRPO_POPULATION_STD
    assert law_for("grpo", std="population", weighting="none") is GRPO_POPULATION_STD


def test_law_that_rises_with_n_is_refused_with_its_reason():
    with pytest.raises(NonConvexLawError, match=r"rises with n until about n = sqrt\(2/p\)"):
        law_for("grpo", weighting="none")
    p, n = 0.001, np.arange(2, 1000)
    value = (1 - p**n - (1 - p) ** n) * (n - 1) / n**2
    assert n[np.argmax(value)] == pytest.approx((2 / p) ** 0.5, rel=0.05)


def test_rollout_weighting_warns_that_its_noise_grows():
    with pytest.warns(UserWarning, match="noise grows with n"):
        assert law_for("dr_grpo", weighting="rollout") is RLOO


@pytest.mark.parametrize(
    "arguments",
    [
        {"estimator": "ppo"},
        {"estimator": "rloo", "weighting": "token"},
        {"estimator": "grpo", "std": "robust"},
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(arguments):
    with pytest.raises(InvalidInputError, match="must be one of"):
        law_for(**arguments)


@pytest.mark.parametrize("num", [[1], [2.5], [3, 4], [np.nan]])
def test_law_refuses_groups_without_an_advantage(num):
    with pytest.raises(InvalidInputError, match="num_rollouts_B"):
        RLOO(Forecast.of_success([0.5]), num)


def test_laws_raise_no_warnings_at_the_edges():
    edge = Forecast.of_success([0.0, 1.0, 5e-324, 1 - 1e-16, 0.5, 0.5], [0, 0, 0, 0, 0.25, 1e-300])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for law in LAWS.values():
            assert np.isfinite(law(edge, np.full(6, 10**6))).all()
            assert np.isfinite(law.drop(edge, np.full(6, 3))).all()
