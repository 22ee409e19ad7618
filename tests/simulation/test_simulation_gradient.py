import itertools
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion import advantage
from apportion.simulation import Problems, ProblemSet, Training
from apportion.simulation.gradient import Groups, group_gradient
from apportion.simulation.learners import Learners, kl_gradient
from apportion.simulation.optimizer import Adam

POLICIES = [(0.5, 0.3, 0.2), (0.05, 0.9, 0.05), (0.97, 0.02, 0.01)]


def of_counts(count_BK, correct_B, estimator, num_B=None):
    """The gradient of one run's groups, and rewards."""
    count_RBK = np.array(count_BK)[None]
    size, num_modes = count_RBK.shape[1:]
    num_RB = count_RBK.sum(axis=2) if num_B is None else np.array(num_B)[None]
    place_RB = np.arange(size)[None] * num_modes + np.array(correct_B)
    groups = Groups.of(num_RB, size, estimator)
    gradient_RBK, reward_RB = group_gradient(count_RBK, place_RB, groups)
    return gradient_RBK[0], reward_RB[0]


def outcomes(policy_K, n):
    """Every count of n draws and its probability."""
    for count_K in itertools.product(range(n + 1), repeat=len(policy_K)):
        if sum(count_K) == n:
            ways = factorial(n) / np.prod([factorial(c) for c in count_K])
            yield np.array(count_K), ways * np.prod(np.array(policy_K) ** count_K)


@pytest.mark.parametrize("policy_K", POLICIES)
@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo"])
def test_the_expected_gradient_is_that_of_success(policy_K, n, estimator):
    policy_K = np.array(policy_K)
    expected_K = sum(
        chance * of_counts([count_K], [0], estimator)[0][0]
        for count_K, chance in outcomes(policy_K, n)
    )
    exact_K = policy_K[0] * (np.eye(3)[0] - policy_K)
    shrink = 1.0 if estimator == "rloo" else 1.0 - 1.0 / n
    np.testing.assert_allclose(expected_K, shrink * exact_K, atol=1e-12)


@pytest.mark.parametrize("policy_K", POLICIES)
@pytest.mark.parametrize("n", [2, 3, 6])
def test_the_noise_of_the_correct_mode_is_that_of_a_sample_variance(policy_K, n):
    # g_c = n/(n-1) r (1-r) is the unbiased sample variance of 0/1 rewards, whose own variance is
    # (m4 - (n-3)/(n-1) s^4) / n.
    p = policy_K[0]
    chances = list(outcomes(np.array(policy_K), n))
    value = np.array([of_counts([count_K], [0], "rloo")[0][0, 0] for count_K, _ in chances])
    chance = np.array([chance for _, chance in chances])
    square = p * (1 - p)
    fourth = p * (1 - p) ** 4 + (1 - p) * p**4
    found = chance @ value**2 - (chance @ value) ** 2
    assert found == pytest.approx((fourth - (n - 3) / (n - 1) * square**2) / n, abs=1e-12)


@given(
    count_BK=st.lists(
        st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=5
    ).filter(lambda rows: max(map(sum, rows)) >= 2),
    estimator=st.sampled_from(["rloo", "dr_grpo", "grpo"]),
    data=st.data(),
)
def test_counts_give_what_the_advantages_of_single_rollouts_do(count_BK, estimator, data):
    correct_B = data.draw(st.lists(st.integers(0, 2), min_size=5, max_size=5))[: len(count_BK)]
    rows = [
        (group, mode)
        for group, count_K in enumerate(count_BK)
        for mode, num in enumerate(count_K)
        for _ in range(num)
    ]
    group_N, mode_N = np.array(rows).T
    reward_N = (mode_N == np.array(correct_B)[group_N]).astype(float)
    advantage_N = getattr(advantage, estimator)(reward_N, group_N)
    centring = "leave_one_out" if estimator == "rloo" else "mean"
    weight_N = advantage.prompt_weight(group_N, centring=centring)
    policy_K = np.array([0.2, 0.5, 0.3])  # any: what it adds sums to nothing over a group
    expected_BK = np.zeros((len(count_BK), 3))
    np.add.at(
        expected_BK,
        group_N,
        (advantage_N * weight_N)[:, None] * (np.eye(3)[mode_N] - policy_K) / len(rows),
    )
    found_BK, reward_B = of_counts(count_BK, correct_B, estimator)
    np.testing.assert_allclose(found_BK, expected_BK, atol=1e-12)
    for group in set(group_N.tolist()):
        assert reward_B[group] == pytest.approx(reward_N[group_N == group].mean())


@given(
    count_BK=st.lists(st.permutations([0, 2, 3]), min_size=2, max_size=4),
    estimator=st.sampled_from(["rloo", "dr_grpo", "grpo"]),
    order=st.permutations([0, 1, 2]),
)
def test_the_names_of_the_modes_do_not_matter(count_BK, estimator, order):
    correct_B = [1] * len(count_BK)
    plain_BK, plain_B = of_counts(count_BK, correct_B, estimator)
    renamed = np.array(count_BK)[:, order]
    moved_BK, moved_B = of_counts(renamed, [order.index(1)] * len(count_BK), estimator)
    np.testing.assert_array_equal(moved_BK, plain_BK[:, order])
    np.testing.assert_array_equal(moved_B, plain_B)


def test_equal_groups_may_be_given_once():
    count_BK, correct_B = [[1, 3], [4, 0]], [0, 1]
    each = Groups.of(np.array([[4, 4]]), 2, "dr_grpo")
    once = Groups.of(np.array([[4]]), 2, "dr_grpo")
    place_RB = np.array([[0, 3]])
    found = [group_gradient(np.array([count_BK]), place_RB, groups)[0] for groups in (each, once)]
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(found[0][0], of_counts(count_BK, correct_B, "dr_grpo")[0])


def test_the_pull_to_the_base_is_the_gradient_of_the_divergence():
    rng = np.random.default_rng(0)
    logit_K, base_K = rng.normal(size=(2, 5))

    def log_policy(z_K):
        return z_K - np.log(np.exp(z_K).sum())

    def divergence(z_K):
        return np.exp(log_policy(z_K)) @ (log_policy(z_K) - log_policy(base_K))

    step = 1e-5
    slope_K = [
        (divergence(logit_K + step * e) - divergence(logit_K - step * e)) / (2 * step)
        for e in np.eye(5)
    ]
    found_K = kl_gradient(np.exp(log_policy(logit_K)), log_policy(base_K))
    np.testing.assert_allclose(found_K, slope_K, atol=1e-8)


def test_adam_is_as_published():
    rng = np.random.default_rng(0)
    gradient_MRDK = rng.normal(size=(6, 2, 3, 4)) * rng.uniform(0, 1, size=(1, 1, 3, 4))
    optimizer = Adam((2, 3, 4), 0.99)
    first, second = np.zeros((2, 3, 4)), np.zeros((2, 3, 4))
    for t, gradient in enumerate(gradient_MRDK, start=1):
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        under = np.sqrt(second / (1 - 0.99**t)) + 1e-8
        step, scale_R = optimizer.step_of(gradient)
        np.testing.assert_allclose(step, first / (1 - 0.9**t) / under, rtol=1e-12)
        np.testing.assert_allclose(scale_R, under.mean(axis=(1, 2)), rtol=1e-12)


def problems_of(size=4, num_features=3, num_modes=3, seed=0):
    rng = np.random.default_rng(seed)
    return ProblemSet(
        feature_QD=rng.normal(size=(size, num_features)),
        base_logit_QK=rng.normal(size=(size, num_modes)),
        correct_Q=rng.integers(num_modes, size=size),
    )


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_a_step_follows_the_gradient_of_success_in_the_weights(kl):
    train = problems_of()
    training = Training(
        rollouts_per_prompt=2, prompts_per_step=4, optimizer="sgd", estimator="rloo", kl=kl
    )
    learners = Learners(Problems(train=train, held_out=train), training, 1)
    learners.weight_RDK[:] = np.random.default_rng(1).normal(size=(1, 3, 3))
    start_DK = learners.weight_RDK[0].copy()
    row_RB = np.arange(4)[None]

    def value(weight_DK):
        logit_QK = train.base_logit_QK + train.feature_QD @ weight_DK
        log_QK = logit_QK - np.log(np.exp(logit_QK).sum(axis=1, keepdims=True))
        base_QK = train.base_logit_QK
        base_QK = base_QK - np.log(np.exp(base_QK).sum(axis=1, keepdims=True))
        policy_QK = np.exp(log_QK)
        divergence_Q = (policy_QK * (log_QK - base_QK)).sum(axis=1)
        return (policy_QK[np.arange(4), train.correct_Q] - kl * divergence_Q).mean()

    policy_RBK = learners.act(row_RB)
    num = 10**9  # so many rollouts that the counts are the policy
    count_RBK = np.rint(policy_RBK * num).astype(np.int64)
    learners.learn(count_RBK, Groups.of(count_RBK.sum(axis=2), 4, "rloo"), 1.0)
    step = 1e-5
    slope_DK = np.array(
        [
            (value(start_DK + step * one) - value(start_DK - step * one)) / (2 * step)
            for one in np.eye(9).reshape(9, 3, 3)
        ]
    ).reshape(3, 3)
    np.testing.assert_allclose(learners.weight_RDK[0] - start_DK, slope_DK, atol=1e-7)


def test_memory_is_a_feature_that_a_problem_has_to_itself():
    train, held_out = problems_of(size=6), problems_of(seed=1)
    length = 1.7
    wide = Problems(
        train=ProblemSet(
            feature_QD=np.hstack([train.feature_QD, length * np.eye(6)]),
            base_logit_QK=train.base_logit_QK,
            correct_Q=train.correct_Q,
        ),
        held_out=ProblemSet(
            feature_QD=np.hstack([held_out.feature_QD, np.zeros((4, 6))]),
            base_logit_QK=held_out.base_logit_QK,
            correct_Q=held_out.correct_Q,
        ),
    )
    settings = {"rollouts_per_prompt": 8, "prompts_per_step": 2, "optimizer": "sgd"}
    remembering = Training(**settings, memory=length)
    by_memory = Learners(Problems(train=train, held_out=held_out), remembering, 2)
    by_feature = Learners(wide, Training(**settings), 2)
    rng = np.random.default_rng(0)
    groups = Groups.of(np.array([[8]]), 2, "dr_grpo")
    for _ in range(30):
        row_RB = np.stack([rng.permutation(6)[:2] for _ in range(2)])
        policy_RBK = by_memory.act(row_RB)
        np.testing.assert_allclose(by_feature.act(row_RB), policy_RBK, rtol=1e-9)
        count_RBK = rng.multinomial(8, policy_RBK)
        for learners in (by_memory, by_feature):
            learners.learn(count_RBK, groups, 3.0)
    np.testing.assert_allclose(by_feature.train_success(), by_memory.train_success(), rtol=1e-9)
    np.testing.assert_allclose(
        by_feature.held_out_success(), by_memory.held_out_success(), rtol=1e-9
    )


@given(order=st.permutations(range(4)), seed=st.integers(0, 20))
def test_the_names_of_the_modes_do_not_matter_to_learning(order, seed):
    plain = problems_of(size=5, num_modes=4, seed=seed)
    renamed = ProblemSet(
        feature_QD=plain.feature_QD,
        base_logit_QK=plain.base_logit_QK[:, order],
        correct_Q=np.argsort(order)[plain.correct_Q],
    )
    training = Training(rollouts_per_prompt=6, prompts_per_step=5, memory=2.0, kl=0.1)
    first, second = (Learners(Problems(train=p, held_out=p), training, 1) for p in (plain, renamed))
    rng, groups = np.random.default_rng(seed), Groups.of(np.array([[6]]), 5, "dr_grpo")
    for _ in range(4):
        policy_RBK = first.act(np.arange(5)[None])
        np.testing.assert_allclose(second.act(np.arange(5)[None]), policy_RBK[..., order])
        count_RBK = rng.multinomial(6, policy_RBK)
        first.learn(count_RBK, groups, 0.1)
        second.learn(count_RBK[..., order].copy(), groups, 0.1)
    np.testing.assert_allclose(second.held_out_success(), first.held_out_success())
    np.testing.assert_allclose(second.train_success(), first.train_success())
