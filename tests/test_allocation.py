import heapq
import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from apportion.allocation import allocate
from apportion.bounds import even_split
from apportion.errors import InfeasibleBudgetError, InvalidInputError, NonConvexLawError
from apportion.gradient_variance import LAWS, law_for
from apportion.types import Forecast

P = [0.01, 0.1, 0.2, 0.4, 0.5, 0.8, 0.95, 0.99]
WITHOUT_TIES = ["rloo", "dr_grpo", "grpo"]
"""Laws whose drop falls strictly; that of grpo_population_std is the same at 3 and 4."""


def drop_table(law, forecast, lower_B, upper_B):
    """drop[i][k]: what the rollout after lower_i + k buys prompt i."""
    widest = int((upper_B - lower_B).max())
    layers = [
        law.drop(forecast, np.minimum(lower_B + k, np.maximum(upper_B, 2))) for k in range(widest)
    ]
    return np.array(layers).T.tolist() if layers else [[] for _ in lower_B]


def by_heap(law, forecast, budget, lower_B, upper_B):
    """One rollout at a time to the largest drop, then the fewest rollouts, then by position."""
    drops = drop_table(law, forecast, lower_B, upper_B)
    num = lower_B.tolist()
    heap = [(-drops[i][0], num[i], i) for i in range(len(num)) if num[i] < upper_B[i]]
    heapq.heapify(heap)
    for _ in range(budget - sum(num)):
        _, _, i = heapq.heappop(heap)
        num[i] += 1
        if num[i] < upper_B[i]:
            heapq.heappush(heap, (-drops[i][num[i] - lower_B[i]], num[i], i))
    return num


def by_dynamic_program(law, forecast, budget, lower_B, upper_B):
    best = np.full(budget + 1, np.inf)
    best[0] = 0.0
    for i in range(len(forecast)):
        n_N = np.arange(lower_B[i], upper_B[i] + 1)
        value_N = law(forecast.take(np.full(len(n_N), i)), n_N)
        after = np.full(budget + 1, np.inf)
        for n, value in zip(n_N.tolist(), value_N.tolist(), strict=True):
            if n <= budget:
                after[n:] = np.minimum(after[n:], best[: budget + 1 - n] + value)
        best = after
    return best[budget]


def by_brute_force(law, forecast, budget, lower_B, upper_B):
    ranges = [range(low, high + 1) for low, high in zip(lower_B, upper_B, strict=True)]
    return min(
        law(forecast, list(split)).sum()
        for split in itertools.product(*ranges)
        if sum(split) == budget
    )


@st.composite
def problems(draw, max_prompts=12, max_width=24, law_names=tuple(LAWS)):
    law = LAWS[draw(st.sampled_from(law_names))]
    size = draw(st.integers(1, max_prompts))
    success = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.8, 1.0]))
    mean_B = np.array(draw(st.lists(success, min_size=size, max_size=size)))
    share_B = np.array(
        draw(st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=size, max_size=size))
    )
    forecast = Forecast.of_success(mean_B, share_B * mean_B * (1 - mean_B))
    lower_B = law.convex_from + np.array(
        draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    )
    width_B = np.array(draw(st.lists(st.integers(0, max_width), min_size=size, max_size=size)))
    upper_B = lower_B + width_B
    budget = draw(st.integers(int(lower_B.sum()), int(upper_B.sum())))
    return law, forecast, budget, lower_B, upper_B


def solve(problem):
    law, forecast, budget, lower_B, upper_B = problem
    return allocate(forecast, budget, variance=law.name, lower=lower_B, upper=upper_B)


@given(problems(law_names=tuple(WITHOUT_TIES)))
@settings(max_examples=300)
def test_same_whole_numbers_as_the_heap(problem):
    assert solve(problem).num_rollouts_B.tolist() == by_heap(*problem)


@given(problems())
def test_same_variance_as_the_dynamic_program(problem):
    assert solve(problem).variance == pytest.approx(
        by_dynamic_program(*problem), rel=1e-12, abs=1e-300
    )


@given(problems(max_prompts=4, max_width=5))
@settings(max_examples=60)
def test_same_variance_as_brute_force(problem):
    assert solve(problem).variance == pytest.approx(by_brute_force(*problem), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("name", WITHOUT_TIES)
@pytest.mark.parametrize("upper", [None, 40])
def test_same_as_the_heap_on_a_large_batch(name, upper):
    rng = np.random.default_rng(5)
    mean_B = rng.beta(0.3, 0.5, 700)
    forecast = Forecast.of_success(mean_B, rng.random(700) * mean_B * (1 - mean_B))
    lower_B = np.full(700, 3)
    upper_B = np.full(700, upper or 16 * 700 - 3 * 699)
    found = allocate(forecast, 16 * 700, variance=name, lower=3, upper=upper)
    table_B = np.minimum(upper_B, found.num_rollouts_B.max() + 5)
    assert found.num_rollouts_B.tolist() == by_heap(
        LAWS[name], forecast, 16 * 700, lower_B, table_B
    )


@given(problems())
def test_budget_and_bounds_hold_and_the_price_separates(problem):
    law, forecast, budget, lower_B, upper_B = problem
    found = solve(problem)
    num_B = found.num_rollouts_B
    assert num_B.dtype == np.int64
    assert num_B.sum() == budget
    assert (lower_B <= num_B).all()
    assert (num_B <= upper_B).all()
    assert found.variance <= found.uniform_variance * (1 + 1e-12)
    assert found.variance == pytest.approx(law(forecast, num_B).sum())
    assert found.relaxed_B.sum() == pytest.approx(budget)
    bought = num_B > lower_B
    if bought.any():
        paid = law.drop(forecast, np.maximum(num_B - 1, lower_B))[bought]
        assert found.price == paid.min()
        withheld = law.drop(forecast, num_B)[num_B < upper_B]
        assert (withheld <= found.price + 1e-15).all()
    else:
        assert found.price == 0.0


@given(problems(law_names=("rloo", "dr_grpo")), st.randoms(use_true_random=False))
def test_permuting_prompts_permutes_the_answer_up_to_ties(problem, random):
    law, forecast, budget, lower_B, upper_B = problem
    order = list(range(len(forecast)))
    random.shuffle(order)
    found = solve(problem)
    moved = solve((law, forecast.take(order), budget, lower_B[order], upper_B[order]))
    assert moved.variance == pytest.approx(found.variance, rel=1e-12, abs=1e-300)
    drop_B = law.drop(forecast, found.num_rollouts_B)
    last_B = law.drop(forecast, np.maximum(found.num_rollouts_B - 1, 2))
    if not np.isin(drop_B, last_B).any():
        assert moved.num_rollouts_B.tolist() == found.num_rollouts_B[order].tolist()


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=30),
    st.integers(0, 300),
    st.sampled_from(["rloo", "dr_grpo"]),
)
def test_more_reward_variance_never_gets_fewer_rollouts(success, extra, name):
    forecast = Forecast.of_success(success)
    found = allocate(forecast, 3 * len(success) + extra, variance=name, lower=3)
    order = np.argsort(forecast.reward_var_B)
    reward_var, num = forecast.reward_var_B[order], found.num_rollouts_B[order]
    assert (num[1:] - num[:-1])[np.diff(reward_var) > 0].min(initial=0) >= 0


@given(problems())
def test_a_larger_budget_takes_no_rollout_away(problem):
    law, forecast, budget, lower_B, upper_B = problem
    assume(budget < upper_B.sum() and law.name in WITHOUT_TIES)
    more = solve((law, forecast, budget + 1, lower_B, upper_B))
    assert np.sort(more.num_rollouts_B - solve(problem).num_rollouts_B).tolist() == [0] * (
        len(forecast) - 1
    ) + [1]


@pytest.mark.parametrize(
    ("name", "lower", "upper", "expected"),
    [
        ("rloo", 4, 12, [4, 7, 10, 11, 12, 10, 6, 4]),
        ("dr_grpo", 4, 12, [4, 7, 10, 12, 12, 10, 5, 4]),
        ("rloo", 3, 32, [3, 8, 10, 12, 12, 10, 6, 3]),
        ("dr_grpo", 3, 32, [3, 7, 10, 13, 13, 10, 5, 3]),
    ],
)
def test_reference_values(name, lower, upper, expected):
    found = allocate(P, 64, variance=name, lower=lower, upper=upper)
    assert found.num_rollouts_B.tolist() == expected


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("success", [0.0, 1.0, 0.3])
def test_equal_prompts_share_evenly(name, success):
    found = allocate([success] * 5, 33, variance=name, lower=3)
    assert found.num_rollouts_B.tolist() == [7, 7, 7, 6, 6]
    assert found.variance_ratio == 1.0
    assert found.relaxed_B.sum() == pytest.approx(33)


def test_useless_prompts_share_what_the_bounds_of_useful_ones_leave():
    found = allocate([0.5, 0.0, 1.0], 30, upper=[8, 20, 20])
    assert found.num_rollouts_B.tolist() == [8, 11, 11]
    assert found.relaxed_B.tolist() == [8, 11, 11]
    assert found.price == 0.0


def test_even_split_with_uneven_bounds_fills_the_lowest_first():
    lower_B, upper_B = np.array([0, 5, 1, 0]), np.array([9, 9, 2, 0])
    assert even_split(10, lower_B, upper_B).tolist() == [3, 5, 2, 0]
    assert even_split(6, lower_B, upper_B).tolist() == [0, 5, 1, 0]
    assert even_split(20, lower_B, upper_B).tolist() == [9, 9, 2, 0]


def test_uniform_variance_is_that_of_the_clipped_even_split():
    found = allocate([0.5, 0.2, 0.5], 20, lower=[2, 9, 2], upper=[4, 20, 20])
    even = law_for("rloo")(Forecast.of_success([0.5, 0.2, 0.5]), [4, 9, 7])
    assert found.uniform_variance == pytest.approx(even.sum())


def test_belief_lowers_the_noise_that_is_expected():
    sure = allocate([0.5, 0.5], 20).num_rollouts_B
    doubtful = allocate(Forecast.of_success([0.5, 0.5], [0.2, 0.0]), 20)
    assert sure.tolist() == [10, 10]
    assert doubtful.num_rollouts_B[0] < doubtful.num_rollouts_B[1]
    assert doubtful.forecast is not None


def own_rloo(forecast, n_B):
    return forecast.reward_var_B / (n_B - 1)


def test_a_law_of_ones_own_gives_the_named_answer():
    rng = np.random.default_rng(2)
    success = rng.random(300)
    named = allocate(success, 5000).num_rollouts_B
    assert allocate(success, 5000, variance=own_rloo).num_rollouts_B.tolist() == named.tolist()
    assert allocate(success, 5000, variance=law_for("dr_grpo")).num_rollouts_B.tolist() == (
        named.tolist()
    )


def test_a_law_may_hold_a_value_of_each_prompt_and_be_straight():
    table = np.array([4.0, 1.0, 2.0])

    def line(forecast, n_B):
        return table * np.maximum(10 - n_B, 0)

    found = allocate([0.5] * 3, 19, variance=line)
    assert found.num_rollouts_B.tolist() == [10, 2, 7]
    assert found.price == pytest.approx(2.0)
    assert allocate([0.5] * 3, 40, variance=line).num_rollouts_B.tolist() == [14, 13, 13]


def test_a_law_may_be_defined_from_none():
    found = allocate([0.1, 0.9], 5, variance=lambda f, n_B: f.mean_B / (n_B + 1), lower=0)
    assert found.num_rollouts_B.tolist() == [1, 4]


def rising(forecast, n_B):
    return forecast.reward_var_B * n_B


def rises_once(forecast, n_B):
    return forecast.reward_var_B * (n_B - 1) / n_B**2


def rises_late(forecast, n_B):
    return np.where(n_B < 150, 1 / n_B, 0.1)


def constant_then_falls(forecast, n_B):
    return np.minimum(1.0, 20 / n_B)


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (rising, "rising .*lower = 2.*No lower bound"),
        (rises_once, "rises_once .*lower = 2.*set lower to 3"),
        (rises_late, "rises_late "),
        (constant_then_falls, "constant_then_falls .*set lower to 20"),
    ],
)
def test_own_law_that_is_not_convex_is_refused_by_name(law, words):
    with pytest.raises(NonConvexLawError, match=words):
        allocate([0.5, 0.2], 300, variance=law)


@pytest.mark.parametrize("name", ["dr_grpo", "grpo_population_std"])
def test_named_law_below_its_convex_part_is_refused_by_name(name):
    with pytest.raises(NonConvexLawError, match=rf"{name} .*lower = 2; it is from 3"):
        allocate(P, 64, variance=name)


def test_own_law_with_a_wrong_answer_is_refused():
    with pytest.raises(InvalidInputError, match=r"gave shape \(1,\)"):
        allocate([0.5, 0.2], 10, variance=lambda f, n_B: np.ones(1))
    with pytest.raises(InvalidInputError, match="but must be finite"):
        allocate([0.5, 0.2], 10, variance=lambda f, n_B: np.where(n_B > 4, np.nan, 1 / n_B))
    for answer in ("low", ["1", "2"], [[1.0], [1.0, 2.0]], np.ones(2) + 1j, None):
        with pytest.raises(InvalidInputError, match="law <lambda>"):
            allocate([0.5, 0.2], 10, variance=lambda f, n_B, answer=answer: answer)
    with pytest.raises(InvalidInputError, match=r"law <lambda> takes \(n_B\), but is called with"):
        allocate([0.5, 0.2], 10, variance=lambda n_B: 1.0 / n_B)


def test_own_law_may_write_to_n_and_to_its_answer_but_not_to_the_forecast():
    out = np.empty(4)

    def untidy(forecast, n_B):
        n_B -= 1
        return np.divide(forecast.reward_var_B, n_B, out=out)

    def greedy(forecast, n_B):
        forecast.reward_var_B[:] = 0.0
        return own_rloo(forecast, n_B)

    forecast = Forecast.of_success([0.1, 0.5, 0.7, 0.9], [0.01] * 4)
    expected = allocate(forecast, 40)
    found = allocate(forecast, 40, variance=untidy)
    assert found.num_rollouts_B.tolist() == expected.num_rollouts_B.tolist()
    assert found.variance == pytest.approx(expected.variance)
    with pytest.raises(ValueError, match="read-only"):
        allocate(forecast, 40, variance=greedy)
    assert forecast.reward_var_B.min() > 0.0
    forecast.reward_var_B[0] = 0.0  # the caller's own array stays writeable


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([], 4), InvalidInputError, "empty"),
        (([0.5, np.nan], 8), InvalidInputError, r"success\[1\] is nan"),
        (([0.5, 1.2], 8), InvalidInputError, r"success\[1\] is 1.2, outside \[0, 1\]"),
        (([[0.5]], 8), InvalidInputError, "one axis"),
        ((["high"], 8), InvalidInputError, "numbers"),
        (([0.5], -4), InvalidInputError, "budget is -4"),
        (([0.5], 4.5), InvalidInputError, "budget is 4.5"),
        (([0.5], np.nan), InvalidInputError, "budget is nan, but must be finite.$"),
        (([0.5], [8]), InvalidInputError, "budget must be one number"),
        (([0.5], "8"), InvalidInputError, "budget must be numbers"),
        (([0.5], 10**400), InvalidInputError, "budget must be numbers below"),
        (([0.5], 10**5000), InvalidInputError, "budget must be numbers below"),
        (([0.5 + 1j], 8), InvalidInputError, "success must be numbers"),
        ((np.array([0.5 + 0j]), 8), InvalidInputError, "success must be numbers"),
        (([10**400], 8), InvalidInputError, "success must be numbers below"),
        ((["0.5"], 8), InvalidInputError, "success must be numbers"),
        ((np.array(["0.5"], dtype=object), 8), InvalidInputError, "success must be numbers"),
        (([0.5], 2**60), InvalidInputError, "at most 2"),
        (([0.5, 0.5], 3), InfeasibleBudgetError, "budget is 3, .* need 4 rollouts. Raise"),
    ],
)
def test_malformed_input_is_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        allocate(*arguments)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"upper": 4}, InfeasibleBudgetError, "budget is 16, .* allow only 12 rollouts. Cut"),
        ({"lower": 5, "upper": [9, 4, 9]}, InfeasibleBudgetError, r"lower\[1\] is 5, above"),
        ({"lower": [2, 2]}, InvalidInputError, "lower has 2 values, but there are 3 prompts"),
        ({"upper": [8.5, 9, 9]}, InvalidInputError, r"upper\[0\] is 8.5"),
        ({"lower": -1}, InvalidInputError, "lower is -1"),
        ({"lower": 1}, NonConvexLawError, "rloo .*lower = 1; it is from 2"),
        ({"variance": "ppo"}, InvalidInputError, "must be one of rloo, dr_grpo"),
        ({"variance": 3}, InvalidInputError, "variance is 3"),
        ({"variance": int}, InvalidInputError, "variance is the type int"),
        ({"lower": [[1], [1, 2]]}, InvalidInputError, "lower must be numbers"),
        ({"lower": "2"}, InvalidInputError, "lower must be numbers"),
        ({"lower": 2j}, InvalidInputError, "lower must be numbers"),
        ({"lower": np.nan}, InvalidInputError, "lower is nan, but must be finite.$"),
        ({"upper": [9, 1e300, 9]}, InvalidInputError, r"upper\[1\] is 1e\+300, .* at most 2"),
        ({"upper": [9, 10**400, 9]}, InvalidInputError, "upper must be numbers below"),
    ],
)
def test_malformed_options_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        allocate([0.1, 0.5, 0.9], 16, **options)


def test_doubt_above_what_the_mean_allows_is_refused():
    with pytest.raises(InvalidInputError, match="doubt"):
        allocate(Forecast.of_success([0.5], [0.3]), 4)


def test_one_prompt_takes_the_whole_budget():
    for name in LAWS:
        assert allocate([0.3], 10**6, variance=name, lower=3).num_rollouts_B.tolist() == [10**6]


def test_extreme_variances_stay_exact():
    tiny = allocate([5e-324, 1e-300, 1e-17, 0.5], 4000, upper=2000)
    assert tiny.num_rollouts_B.sum() == 4000
    assert tiny.num_rollouts_B[3] == 2000
