import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.audit.shared_words import shared_words

WORDS = st.lists(st.sampled_from(["a", "bb", "ab", "c\n"]), min_size=1, max_size=6).map(" ".join)


def test_chat_templates_and_system_prompts_are_cut():
    begin, end = "<|system|> Be good.\n<|user|> What is ", " now?\n<|assistant|>"
    texts = [f"{begin}{sum_}{end}" for sum_ in ("11 + 2", "11 + 3", "7 + 3")]
    shared = shared_words(texts)
    assert [shared.cut(text, 200) for text in texts] == [
        "...11 + 2...",
        "...11 + 3...",
        "...7 + 3...",
    ]
    assert shared.cut(texts[0], 2) == "...11..."


@pytest.mark.parametrize("texts", [[], ["What is it?"], ["same same"] * 3, ["ab", "ac"]])
def test_nothing_is_cut_where_nothing_is_shared_in_whole_words(texts):
    shared = shared_words(texts)
    assert (shared.num_first, shared.num_last) == (0, 0)
    assert [shared.cut(text, 99) for text in texts] == texts


@given(st.lists(WORDS, min_size=2, max_size=6))
def test_what_is_cut_is_shared_and_what_is_left_tells_texts_apart(texts):
    texts = [text.strip() for text in texts]
    shared = shared_words(texts)
    if len(set(texts)) > 1:
        assert len({text[: shared.num_first] for text in texts}) == 1
        assert len({text[len(text) - shared.num_last :] for text in texts}) == 1
        assert all(shared.num_first + shared.num_last <= len(text) for text in texts)
        cut = {text: shared.cut(text, 999) for text in texts}
        assert len(set(cut.values())) == len(cut)
        if shared.num_first:
            assert texts[0][shared.num_first - 1].isspace()
        first = {text[shared.num_first :].split()[:1][0] for text in texts if text}
        if shared.num_first:
            assert len(first) > 1 or len(min(texts, key=len).split()) == 1
