import math
from dataclasses import replace

import numpy as np
import pytest
from audit_helpers import (
    drawn_run,
    group_table,
    kind_of,
    recording_of,
    replay_result,
    share_of_kinds,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.audit import audit, bounds_to_replay, success_counts
from apportion.audit.waste import Rates
from apportion.errors import InvalidInputError
from apportion.recording import Curve, Recording


def curve(*values):
    return Curve(step_T=np.arange(len(values)), value_T=np.array(values, dtype=float))


def said(found, words):
    return any(words in sentence for sentence in found.limits)


def test_summary_agrees_with_plain_python():
    groups = drawn_run(0)
    summary = audit(recording_of(groups, notes=("a note",)), num_draws=5).summary
    assert summary.num_prompts == len({group[0] for group in groups})
    assert summary.num_steps == len({group[1] for group in groups})
    assert summary.num_groups == len(groups)
    assert summary.num_rollouts == summary.num_scored == 8 * len(groups)
    assert summary.num_tokens == sum(group[3] for group in groups)
    assert (summary.rollouts_per_prompt, summary.rollouts_per_step) == (8.0, 320.0)
    assert summary.visits_per_prompt == 6.0
    assert summary.notes == ("a note",)
    hidden = audit(recording_of(groups, has_steps=False), num_draws=5).summary
    assert hidden.rollouts_per_step is None


def test_prediction_and_observation_agree_on_the_run_itself():
    groups = drawn_run(1, prompts=200)
    found = audit(recording_of(groups), replay_result(), num_draws=20)
    expected = 1.0 - share_of_kinds(groups)["with_signal"]
    prediction = found.prediction
    assert prediction.observed == pytest.approx(expected)
    assert prediction.fitted == pytest.approx(expected, abs=0.01)
    own = next(size for size in prediction.sizes if size.rollouts_per_prompt == 8)
    assert own.without_signal.value == pytest.approx(expected, abs=0.01)
    assert found.waste.shares.without_signal == pytest.approx(expected)
    assert not prediction.filtering.found
    assert found.settings.mode == "adaptive"


def test_prompts_agree_with_plain_python():
    groups = drawn_run(2)
    prompts = audit(recording_of(groups), num_draws=5, num_listed=3).prompts
    for extreme, kind in ((prompts.always_right, "all_right"), (prompts.always_wrong, "all_wrong")):
        names = {group[0] for group in groups}
        names -= {group[0] for group in groups if kind_of(group[2]) != kind}
        assert extreme.num_prompts == len(names) > 0
        assert extreme.num_rollouts == 48 * len(names)
        assert extreme.num_revisited == len(names)
        assert extreme.median_visits == 6.0
        assert {row.prompt for row in extreme.listed} <= names
        assert len(extreme.listed) == min(3, len(names))
    assert prompts.forgotten.num_prompts == 0
    assert prompts.forgotten.num_revisited == 40


def test_a_forgotten_prompt_is_named_with_its_text():
    groups = drawn_run(3)
    fall = [("zz", step, [1.0] * 8 if step < 3 else [0.0] * 8) for step in range(6)]
    texts = {group[0]: "What is " + group[0] for group in [*groups, *fall]}
    found = audit(recording_of(group_table([*groups, *fall], texts=texts)), num_draws=5)
    (row,) = found.prompts.forgotten.listed
    assert (row.prompt, row.text, row.early, row.late) == ("zz", "...zz", 1.0, 0.0)
    assert (row.num_visits, row.num_rollouts) == (6, 48)


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.permutations(range(12)))
def test_names_of_prompts_do_not_matter(seed, order):
    groups = drawn_run(seed, prompts=12, visits=3, n=4)
    renamed = [(f"prompt {order[int(group[0][-3:])]:03}", *group[1:]) for group in groups]
    one, other = (audit(recording_of(run), num_draws=0) for run in (groups, renamed))
    assert one.summary == other.summary
    assert one.waste.shares == other.waste.shares
    assert one.waste.worst_tenth_share == other.waste.worst_tenth_share
    assert one.prediction.sizes == other.prediction.sizes
    assert one.settings == other.settings
    for name in ("always_right", "always_wrong"):
        left, right = getattr(one.prompts, name), getattr(other.prompts, name)
        assert replace(left, listed=()) == replace(right, listed=())


@pytest.mark.parametrize(
    ("values", "reward_range", "ends"),
    [
        ([0.0, 1.0], (0.0, 1.0), (0.0, 1.0)),
        ([1.0, 1.0], (1.0, 1.0), (0.0, 1.0)),
        ([-1.0, 1.0], (-1.0, 1.0), (-1.0, 1.0)),
        ([-1.0, -1.0], (-1.0, -1.0), (-1.0, 1.0)),
        ([0.1, 2.1], (0.1, 2.1), (0.1, 2.1)),
    ],
)
def test_two_values_are_successes_and_failures(values, reward_range, ends):
    groups = group_table([("a", 0, values * 3), ("b", 0, [values[0]] * 4)])
    found_ends, k = success_counts(groups, reward_range)
    assert found_ends == ends
    assert k.tolist() == [sum(v == ends[1] for v in values * 3), 4 * (values[0] == ends[1])]


@pytest.mark.parametrize("values", [[0.0, 0.5, 1.0], [0.2, 1.0, 0.0], [0.0, 1.0, 1.1]])
def test_more_than_two_values_are_not(values):
    groups = group_table([("a", 0, values)])
    assert success_counts(groups, (min(values), max(values)))[1] is None
    # One half twice is not one success of two.
    assert success_counts(group_table([("a", 0, [0.5, 0.5])]), (0.0, 1.0))[1] is None


def test_real_rewards_keep_what_can_be_said():
    rng = np.random.default_rng(0)
    groups = [
        (f"p{at}", step, [float(r) for r in rng.choice([0.0, 0.1, 1.1], 4)])
        for step in range(4)
        for at in range(10)
    ]
    found = audit(recording_of(groups, reward_range=(0.0, 1.1)), replay_result())
    expected = share_of_kinds(groups, high=1.1)
    assert found.waste.shares.in_between == pytest.approx(expected["in_between"])
    assert found.prediction is None
    assert found.prompts.forgotten is None
    assert said(found, "more than two values")
    assert found.settings.rollouts_per_prompt == 4


def test_filtered_records_are_not_taken_for_whole_ones():
    groups = [g for g in drawn_run(5, prompts=400, visits=4) if kind_of(g[2]) == "with_signal"]
    found = audit(recording_of(groups), num_draws=5)
    assert found.waste.shares.without_signal == 0.0
    assert found.prediction.filtering.found
    assert said(found, "missing beyond chance")


def test_limits_are_said_only_where_they_hold():
    whole = audit(recording_of(drawn_run(6)), num_draws=5)
    assert [sentence[:24] for sentence in whole.limits] == ["All groups have 8 rollou"]
    once = audit(recording_of(drawn_run(6, visits=1)), num_draws=5)
    assert said(once, "So few second visits")
    few = audit(recording_of(drawn_run(6, prompts=5)), num_draws=5)
    assert said(few, "5 prompts are too few")
    bare = audit(recording_of(drawn_run(6, tokens=False), has_steps=False), num_draws=5)
    assert said(bare, "Tokens are not recorded")
    assert said(bare, "Steps are not recorded")
    holed = [*drawn_run(6), ("prompt 000", 9, [1.0, math.nan, 0.0, 1.0]), ("x", 9, [1.0], 5)]
    mixed = audit(recording_of(holed), num_draws=5)
    assert said(mixed, "1 of 1,925 rollouts (0.1%) has no score. Groups are judged")
    assert said(mixed, "0.4% of groups have one scored rollout")
    assert not said(mixed, "All groups have")


def test_a_limit_that_the_reader_noted_is_said_once():
    notes = (
        "Steps are not recorded: the v-th visit of a prompt stands for step v.",
        "1 of 9 rows of a.csv has no finite reward and counts as asked for, not as scored.",
    )
    found = audit(recording_of(drawn_run(6), has_steps=False, notes=notes), num_draws=5)
    assert not said(found, "Steps are not recorded")
    found = audit(recording_of([("a", 0, [1.0]), ("b", 0, [math.nan, 0.0])], notes=notes))
    assert not said(found, "no score")
    assert said(found, "Groups are judged by the rollouts with a score alone")


def test_groups_without_any_score_are_no_waste():
    groups = [*drawn_run(6), ("prompt 000", 9, [math.nan] * 8)]
    found = audit(recording_of(groups), num_draws=5)
    dead = sum(kind_of(group[2]) not in ("with_signal", "not_scored") for group in groups)
    assert found.waste.num_rollouts == 8 * dead
    assert said(found, "8 of 1,928 rollouts (0.4%) have no score.")


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (
            "acc in this dump is 0 or 1: audit it with --reward-column acc.",
            "The column acc has them: see the notes of the reader.",
        ),
        ("Two rows of dump.csv have no prompt.", "If the record has a 0/1 column"),
    ],
)
def test_a_column_of_right_answers_is_named_where_the_notes_do(note, words):
    groups = [("a", 0, [0.0, 0.5, 1.0]), ("b", 0, [0.0, 0.2, 1.0])]
    found = audit(recording_of(groups, notes=(note,)))
    assert said(found, words)


def test_bounds_to_replay_are_those_that_are_recommended():
    for seed in range(4):
        recording = recording_of(drawn_run(seed, prompts=60))
        bounds = bounds_to_replay(recording)
        found = audit(recording, replay_result(), replayed_bounds=bounds, num_draws=5)
        if found.settings.rollouts_per_prompt == 8:
            assert (found.settings.lower, found.settings.upper) == bounds
        assert found.replayed_bounds == bounds
    assert bounds_to_replay(recording, lower=3, upper=11) == (3, 11)
    real = recording_of([("a", 0, [0.0, 0.5, 1.0]), ("b", 0, [0.0, 0.2, 1.0])])
    assert bounds_to_replay(real) == (2, 12)


def test_the_saving_is_priced_only_where_it_can_be_judged():
    rates = Rates(gpu_hours=10.0)
    found = audit(recording_of(drawn_run(1)), replay_result(), rates=rates, num_draws=5)
    assert found.saved.gpu_hours == pytest.approx(1.5)
    for recording in (
        recording_of(drawn_run(1, visits=1)),
        recording_of(drawn_run(1), config={"allocator_mode": "adaptive"}),
    ):
        assert audit(recording, replay_result(), rates=rates, num_draws=5).saved is None
    stuck = audit(recording_of(drawn_run(1)), replay_result(), lower=8, num_draws=5)
    assert stuck.saved is None
    assert not stuck.is_judged


def test_the_users_bounds_bind_the_largest_cut():
    recording = recording_of(drawn_run(1))
    free = audit(recording, num_draws=5).prediction.largest_cut.value
    assert audit(recording, lower=6, num_draws=5).prediction.largest_cut.value < free


def test_groups_of_one_are_named():
    found = audit(recording_of(drawn_run(7, n=1)), replay_result(), rates=Rates(gpu_hours=1.0))
    assert found.summary.is_mostly_single
    assert found.waste is found.prediction is found.settings is found.replayed is None
    assert found.saved is None
    assert found.prompts.always_wrong.num_prompts > 0


@pytest.mark.parametrize(("num_single", "is_unknown"), [(7, False), (8, False), (9, True)])
def test_most_groups_must_have_two_rollouts(num_single, is_unknown):
    groups = [(f"p{at}", 0, [0.0, 1.0]) for at in range(8)]
    groups += [(f"s{at}", 0, [1.0, math.nan]) for at in range(num_single)]
    groups += [(f"u{at}", 0, [math.nan] * 2) for at in range(5)]
    found = audit(recording_of(groups), num_draws=5)
    assert found.summary.is_mostly_single == is_unknown
    assert (found.waste is None) == is_unknown
    assert said(found, "have one scored rollout")


def test_tokens_are_counted_only_where_nearly_all_are_known():
    rates = Rates(price_per_million_tokens=2.0)
    groups = drawn_run(1, prompts=50)  # 300 groups
    for num_unknown, is_known in ((3, True), (4, False)):
        holed = [(*group[:3], 0) for group in groups[:num_unknown]] + groups[num_unknown:]
        found = audit(recording_of(holed), replay_result(), rates=rates, num_draws=5)
        assert (found.summary.num_tokens is not None) == is_known
        assert (found.waste.num_tokens is not None) == is_known
        assert (found.waste.cost is not None) == (found.saved.cost is not None) == is_known
        assert said(found, "for 98.7% of groups alone: waste is counted in rollouts") != is_known
        assert said(found, "The price per million tokens is not used") != is_known
        assert found.waste.share_of_sampling == pytest.approx(
            found.waste.num_tokens / found.waste.total_tokens
            if is_known
            else found.waste.num_rollouts / found.waste.total_rollouts
        )


def test_a_price_a_token_is_not_passed_over_without_a_word():
    rates = Rates(price_per_million_tokens=2.0)
    bare = audit(recording_of(drawn_run(6, tokens=False)), rates=rates, num_draws=5)
    curves = {"share_without_signal": curve(0.5, 0.4)}
    alone = audit(Recording(source="TRL log", groups=None), curves=curves, rates=rates)
    for found in (bare, alone):
        assert said(found, "The price per million tokens is not used")
    assert not said(audit(recording_of(drawn_run(6, tokens=False)), num_draws=5), "price")


def test_noise_on_rewards_is_read_alike_everywhere():
    rng = np.random.default_rng(0)
    noisy = [
        (name, step, [r + 1e-7 * float(rng.random()) for r in rewards])
        for name, step, rewards, _ in drawn_run(1)
    ]
    found = audit(recording_of(noisy, reward_range=(0.0, 1.0 + 1e-7)), num_draws=5)
    assert found.waste.shares.with_signal == 1.0
    assert found.prediction is None
    assert found.prompts.always_right.num_prompts == 0


@pytest.mark.parametrize("high", [1e-7, 1e-3, 1e3, 1e7])
def test_the_scale_of_rewards_does_not_matter(high):
    groups = drawn_run(1)
    scaled = [(*group[:2], [high * r for r in group[2]], group[3]) for group in groups]
    one = audit(recording_of(groups), num_draws=5)
    other = audit(recording_of(scaled, reward_range=(0.0, high)), num_draws=5)
    assert other.waste == one.waste
    assert other.prediction == one.prediction
    assert other.prompts == one.prompts
    assert other.prediction.observed == pytest.approx(other.waste.shares.without_signal)


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=4), min_size=1, max_size=5),
    st.sampled_from([1e-9, 1e-7, 1e-4, 1.0, 1e6]),
    st.booleans(),
)
def test_success_counts_never_contradict_the_signal(rewards, scale, is_rounded):
    rewards = [[scale * (round(r) if is_rounded else r) for r in group] for group in rewards]
    groups = group_table([(f"p{at}", 0, group) for at, group in enumerate(rewards)])
    values = [r for group in rewards for r in group]
    _, k = success_counts(groups, (min(values), max(values)))
    if k is not None:
        assert ((k > 0) & (k < groups.num_rollouts_G)).tolist() == groups.signal_G.tolist()


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_runs_without_any_signal_say_nothing_of_n(value):
    groups = [(f"p{at}", step, [value] * 4, 9) for step in range(4) for at in range(40)]
    recording = recording_of(groups)
    bounds = bounds_to_replay(recording)
    found = audit(recording, replay_result(saving=0.0), replayed_bounds=bounds, num_draws=5)
    assert found.settings.rollouts_per_prompt == 4
    assert any("tells nothing of other n" in reason for reason in found.settings.reasons)
    assert (found.settings.lower, found.settings.upper) == bounds


def test_curves_alone_say_what_they_can():
    recording = Recording(source="TRL log", groups=None)
    found = audit(
        recording,
        curves={
            "share_without_signal": curve(0.8, 0.6, math.nan, 0.4, 0.4, 0.3),
            "reward": curve(0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
        },
        rates=Rates(gpu_hours=100.0, price_per_gpu_hour=3.0),
    )
    assert found.waste is found.settings is found.prediction is None
    assert found.curves.without_signal == pytest.approx(0.5)
    assert [share for _, _, share in found.curves.parts] == [0.8, 0.6, 0.4, 0.4, 0.3]
    assert (found.curves.first_reward, found.curves.last_reward) == pytest.approx((0.15, 0.6))
    assert (found.curves.gpu_hours, found.curves.cost) == pytest.approx((50.0, 150.0))
    assert said(found, "log_completions=True")
    assert said(found, "trainer.rollout_data_dir")


@pytest.mark.parametrize("curves", [{}, {"kl": curve(1.0)}, {"reward": curve(math.nan)}])
def test_nothing_usable_is_one_sentence(curves):
    with pytest.raises(InvalidInputError, match=r"A log holds .* nothing to audit"):
        audit(Recording(source="A log"), curves=curves)
    with pytest.raises(InvalidInputError, match=r"^runs/mine holds neither"):
        audit(Recording(source="A log"), curves=curves, name="runs/mine")


def test_bounds_that_leave_no_room_are_refused():
    with pytest.raises(InvalidInputError, match="lower is 1"):
        audit(recording_of(drawn_run(8)), lower=1)
