"""Finite features of the kernel of several widths: the kernel matrix itself is the oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import StateError
from apportion.predictor import features as module
from apportion.predictor.features import (
    KernelFeatures,
    evenly,
    gaussian_kernel,
    median_distance,
    multi_scale_kernel,
    squared_distance,
)


def rows(size, width, seed=0):
    return np.random.default_rng(seed).normal(size=(size, width))


tables = st.builds(
    rows, st.integers(1, 40), st.integers(1, 6), st.integers(0, 1_000)
) | st.sampled_from([np.zeros((5, 2)), np.full((4, 3), 1e50), np.eye(3) * 1e50, np.eye(3) * 1e-90])


@pytest.mark.parametrize(("size", "width"), [(1, 1), (2, 3), (40, 5), (90, 20)])
def test_products_of_features_are_the_kernel_between_anchors(size, width):
    row_QD = rows(size, width)
    phi_QM = KernelFeatures.fit(row_QD)(row_QD)
    exact_QQ = multi_scale_kernel(row_QD, row_QD, median_distance(row_QD))
    np.testing.assert_allclose(phi_QM @ phi_QM.T, exact_QQ, rtol=0, atol=1e-8)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5), st.floats(1e-3, 1e3))
def test_the_kernel_is_the_mean_of_three_gaussians(num_left, num_right, width, scale):
    left_AD, right_BD = rows(num_left, width, 1), rows(num_right, width, 2)
    squared_AB = ((left_AD[:, None] - right_BD) ** 2).sum(axis=2)
    exact_AB = sum(np.exp(-squared_AB / (2 * (s * scale) ** 2)) for s in (0.2, 0.4, 0.8)) / 3
    found_AB = multi_scale_kernel(left_AD, right_BD, scale)
    np.testing.assert_allclose(found_AB, exact_AB, rtol=0, atol=1e-10)
    three = [gaussian_kernel(left_AD, right_BD, s * scale) for s in (0.2, 0.4, 0.8)]
    np.testing.assert_allclose(found_AB, sum(three) / 3, rtol=0, atol=1e-10)


@given(tables)
def test_it_is_positive_semidefinite_with_ones_on_its_diagonal(row_QD):
    kernel_QQ = multi_scale_kernel(row_QD, row_QD, median_distance(row_QD))
    np.testing.assert_allclose(kernel_QQ, kernel_QQ.T, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.diag(kernel_QQ), 1.0, atol=1e-12)
    assert np.linalg.eigvalsh(kernel_QQ).min() >= -1e-12 * len(row_QD)
    assert ((kernel_QQ >= 0.0) & (kernel_QQ <= 1.0 + 1e-12)).all()


@given(tables, st.integers(0, 100))
def test_features_are_finite_and_no_longer_than_one(row_QD, seed):
    kernel = KernelFeatures.fit(row_QD)
    strange_BD = 3.0 * rows(7, row_QD.shape[1], seed)
    for row_BD in (row_QD, strange_BD, strange_BD * 1e50):
        phi_BM = kernel(row_BD)
        assert phi_BM.shape == (len(row_BD), kernel.num_features)
        assert (np.square(phi_BM).sum(axis=1) <= 1.0 + 1e-6).all()


def test_far_more_rows_than_features_are_told_as_well_as_any_features_can():
    row_QD = rows(300, 2)
    kernel_QQ = multi_scale_kernel(row_QD, row_QD, median_distance(row_QD))
    phi_QM = KernelFeatures.fit(row_QD)(row_QD)
    assert phi_QM.shape[1] == module.NUM_FEATURES
    value_Q, vector_QQ = np.linalg.eigh(kernel_QQ)
    best_QQ = (vector_QQ * np.where(np.arange(300) < 300 - module.NUM_FEATURES, 0.0, value_Q)) @ (
        vector_QQ.T
    )
    np.testing.assert_allclose(phi_QM @ phi_QM.T, best_QQ, rtol=0, atol=1e-8)


def test_rows_without_features_are_zero_and_fix_nothing():
    row_QD = rows(9, 3)
    with_gaps_QD = np.insert(row_QD, [0, 4], np.nan, axis=0)
    kernel, same = KernelFeatures.fit(row_QD), KernelFeatures.fit(with_gaps_QD)
    missing_Q = np.isnan(with_gaps_QD).any(axis=1)
    np.testing.assert_array_equal(same(with_gaps_QD)[missing_Q], 0.0)
    np.testing.assert_allclose(same(with_gaps_QD)[~missing_Q], kernel(row_QD), atol=1e-12)


def test_no_features_at_all():
    for table in (np.zeros((0, 0)), np.zeros((4, 0)), np.full((4, 2), np.nan)):
        kernel = KernelFeatures.fit(table)
        assert kernel.num_inputs == table.shape[1]
        assert kernel.num_features == 0
        assert kernel(table).shape == (len(table), 0)


@pytest.mark.parametrize("row_QD", [np.ones((6, 2)), np.full((5, 3), 1e50), np.full((1, 2), -3.0)])
def test_identical_rows_share_one_feature(row_QD):
    phi_QM = KernelFeatures.fit(row_QD)(row_QD)
    assert phi_QM.shape == (len(row_QD), 1)
    np.testing.assert_allclose(np.abs(phi_QM), 1.0)


def test_twins_are_closer_than_neighbours_and_strangers_are_unrelated():
    row_QD = np.array([[0.0], [0.01], [0.5], [100.0]])
    kernel_QQ = multi_scale_kernel(row_QD, row_QD, 1.0)
    assert 1.0 > kernel_QQ[0, 1] > kernel_QQ[0, 2] > kernel_QQ[0, 3] == 0.0


@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_squared_distances_keep_their_digits_far_from_zero(shift):
    left_AD, right_BD = rows(6, 3, 1) + shift, rows(8, 3, 2) + shift
    exact_AB = ((left_AD[:, None] - right_BD) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared_distance(left_AD, right_BD), exact_AB, rtol=1e-10)
    np.testing.assert_array_equal(
        squared_distance(right_BD, right_BD) >= 0.0, np.full((8, 8), True)
    )


@given(st.integers(2, 30), st.integers(1, 4), st.integers(0, 1_000))
def test_the_scale_is_the_median_of_all_distances(size, width, seed):
    row_QD = rows(size, width, seed)
    left, right = np.triu_indices(size, k=1)
    distance_P = np.linalg.norm(row_QD[left] - row_QD[right], axis=1)
    assert median_distance(row_QD) == pytest.approx(np.median(distance_P), rel=1e-9)


def test_the_scale_of_mostly_equal_rows_comes_from_the_others():
    row_QD = np.array([[0.0]] * 9 + [[1.0]])
    assert median_distance(row_QD) == pytest.approx(9 / 45)
    assert median_distance(np.full((5, 2), 0.1)) == 1.0
    assert median_distance(np.zeros((1, 2))) == 1.0


@given(st.integers(1, 2_000), st.integers(1, 100))
def test_chosen_rows_are_distinct_and_reach_from_end_to_end(size, most):
    chosen = evenly(size, most)
    assert len(np.unique(chosen)) == len(chosen) == min(size, most)
    assert chosen[0] == 0
    if len(chosen) > 1:
        assert chosen[-1] == size - 1


def test_equal_tables_give_equal_features_and_a_state_restores_them():
    row_QD = rows(30, 4)
    kernel = KernelFeatures.fit(row_QD)
    np.testing.assert_array_equal(kernel(row_QD), KernelFeatures.fit(row_QD.copy())(row_QD))
    restored = KernelFeatures.of_state(kernel.state_dict())
    np.testing.assert_array_equal(kernel(row_QD), restored(row_QD))
    for name, array in kernel.state_dict().items():
        np.testing.assert_array_equal(array, restored.state_dict()[name])
        array[...] = 0.0
    np.testing.assert_array_equal(kernel(row_QD), restored(row_QD))


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("anchor_AD", np.zeros(30)),
        ("anchor_AD", np.full((30, 4), np.nan)),
        ("anchor_AD", np.zeros((30, 4), dtype=np.int64)),
        ("anchor_map_AM", np.zeros((29, 5))),
        ("anchor_map_AM", np.full((30, 30), np.inf)),
        ("bandwidth", np.array([0.0])),
        ("bandwidth", np.array([-1.0])),
        ("bandwidth", np.array([np.nan])),
        ("bandwidth", np.array([1e200])),
        ("bandwidth", np.ones(2)),
    ],
)
def test_a_damaged_state_is_refused(name, array):
    state = KernelFeatures.fit(rows(30, 4)).state_dict()
    with pytest.raises(StateError, match=name):
        KernelFeatures.of_state(state | {name: array})
