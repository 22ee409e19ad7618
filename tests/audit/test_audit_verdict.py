import math
from dataclasses import replace

import pytest
from audit_helpers import drawn_run, flat, kind_of, printed, recording_of, replay_result

from apportion.audit import audit
from apportion.audit.waste import Rates
from apportion.cli.audit import audit_as_json
from apportion.cli.audit_verdict import trust, verdict


def test_verdict_of_every_mode():
    run = recording_of(drawn_run(3))
    assert "adaptive" in verdict(audit(run, replay_result(), num_draws=5))["set"]
    losing = replay_result(saving=-0.1, saving_interval=(-0.2, 0.0))
    said = verdict(audit(run, losing, num_draws=5))
    assert "for every prompt" in said["set"]
    assert said["saving"].startswith("None: -10.0% [-20.0, 0.0] of the rollouts.")
    assert said["saving"].endswith(
        "80% less squared error than the mean success of all prompts: not enough to save."
    )
    once = verdict(audit(recording_of(drawn_run(3, visits=1)), replay_result(), num_draws=5))
    assert once["saving"].startswith("Cannot be judged")
    assert "shadow" in once["set"]
    kept = [group for group in drawn_run(4, prompts=300) if kind_of(group[2]) == "with_signal"]
    assert verdict(audit(recording_of(kept), num_draws=5))["waste"].startswith("Unknown")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "can be trusted: 80% less squared error"),
        ({}, "; their stated 90% intervals hold 91.0%."),
        ({"coverage": math.nan}, "the mean success of all prompts."),
        ({"standardised_sq": 3.0}, "too sure"),
        ({"standardised_sq": 0.3}, "surer than they say"),
        ({"standardised_sq": math.nan}, "The forecasts help: 80%"),
        ({"error": 0.1}, "no more than the mean"),
        ({"error": math.nan}, "no more than the mean"),
        ({"baseline_error": 0.0}, "no more than the mean"),
    ],
)
def test_trust_follows_error_and_doubt(changes, words):
    assert words in trust(replay_result(**changes))


def test_verl_is_told_what_verl_can_do():
    recording = replace(recording_of(drawn_run(3)), source="verl rollouts")
    found = audit(recording, replay_result(), num_draws=5)
    assert verdict(found)["set"] == (
        "n = 8, as now: in verl every prompt gets the same n, for apportion has no verl adapter; "
        f"in TRL it would be 2 to {found.settings.upper}, adaptive."
    )
    text = printed(found)
    assert "AdaptiveGRPOConfig" not in text
    assert flat(text).count("no verl adapter") == 1
    trl = printed(audit(replace(recording, source="TRL completions"), replay_result()))
    assert "verl" not in trl
    assert "AdaptiveGRPOTrainer(" in trl
    answer = audit_as_json(found)
    assert answer["settings"]["trl"]
    assert answer["settings"]["verl"]
    losing = replay_result(saving=-0.1, saving_interval=(-0.2, 0.0))
    assert (
        verdict(audit(recording, losing, num_draws=5))["set"] == "n = 8, as now, for every prompt."
    )


def test_hindsight_is_left_out_where_it_is_beaten():
    run = recording_of(drawn_run(3))
    better = audit(run, replay_result(), num_draws=5)
    meaning = "with hindsight, the same rule told the other visits, later ones too: 25.0%"
    assert meaning in verdict(better)["saving"]
    assert "0.700 with hindsight" in flat(printed(better))
    beaten = audit(run, replay_result(oracle_saving=0.1), num_draws=5)
    assert "hindsight" not in verdict(beaten)["saving"]
    assert "hindsight" not in printed(beaten)
    for found in (better, beaten):
        assert "oracle" not in printed(found)


def test_an_adaptive_run_is_told_to_stay_so():
    recording = recording_of(drawn_run(3), config={"allocator_mode": "adaptive"})
    found = audit(recording, replay_result(), rates=Rates(gpu_hours=10.0), num_draws=5)
    said = verdict(found)
    assert said["saving"].startswith("This run was adaptive already, so its saving is in what it ")
    assert "would have saved" not in said["saving"]
    assert said["set"].startswith("Keep it adaptive: n = 8 on average, between 2 and ")


def test_the_saving_has_its_price_and_its_reason():
    rates = Rates(gpu_hours=100.0, price_per_gpu_hour=2.5)
    found = audit(recording_of(drawn_run(3)), replay_result(), rates=rates, num_draws=5)
    said = verdict(found)["saving"]
    assert "Adaptive would have saved some 15.0 GPU-hours (37.50 at your price)." in said
    assert "Most of the waste cannot be saved: every prompt keeps at least 2 rollouts" in said
    most = f"{found.prediction.largest_cut.value:.1%} of the variance is the most."
    assert said.endswith(most)
    much = audit(recording_of(drawn_run(3)), replay_result(saving=0.4), num_draws=5)
    assert "cannot be saved" not in verdict(much)["saving"]
    tokens = Rates(price_per_million_tokens=100.0)
    found = audit(recording_of(drawn_run(3)), replay_result(), rates=tokens, num_draws=5)
    assert f"saved some {found.saved.cost:,.2f} at your price." in verdict(found)["saving"]


def test_forecasts_are_not_praised_for_a_saving_of_nothing():
    run = recording_of(drawn_run(3))
    nothing = {"saving": -1e-9, "saving_interval": (-1e-9, 1e-9), "error": 0.064}
    little = audit(run, replay_result(oracle_saving=0.01, **nothing), num_draws=5)
    assert verdict(little)["saving"] == (
        "None: 0.0% [0.0, 0.0] of the rollouts. The forecasts are good (36% less squared error), "
        "but there was little to move."
    )
    unskilled = replay_result(**(nothing | {"error": 0.1}))
    assert "know no more" in verdict(audit(run, unskilled, num_draws=5))["saving"]
    unsure = audit(run, replay_result(saving_interval=(-0.1, 0.3)), num_draws=5)
    assert "fewer rollouts, which may be chance" in verdict(unsure)["saving"]


def test_groups_without_a_score_are_said_apart():
    groups = [*drawn_run(6), *((f"prompt {at:03}", 9, [math.nan] * 8) for at in range(10))]
    found = audit(recording_of(groups), num_draws=5)
    said = verdict(found)["waste"]
    assert said.endswith("4.0% of groups have no score, and are not in this.")
    assert "not scored" not in said
