"""The configuration: native to TRL's parser, strict where nothing could work, warning otherwise."""

from __future__ import annotations

import warnings

import pytest
import trl_helpers as helpers
from trl import GRPOConfig, ModelConfig, RLOOConfig, ScriptArguments, TrlParser

from apportion.errors import InvalidInputError
from apportion.integrations.trl import AdaptiveGRPOConfig, AdaptiveRLOOConfig

BASE = {
    "per_device_train_batch_size": 16,
    "num_generations": 4,
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
}
QUIET = [
    pytest.mark.filterwarnings(
        "error:.*(allocate|scale_rewards|weighting|entropy|normalize):UserWarning"
    )
]
pytestmark = [pytest.mark.filterwarnings("ignore"), *QUIET]


def test_the_parser_reads_yaml_and_flags(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(
        "output_dir: out\nallocator_mode: shadow\nlower: 3\nper_device_train_batch_size: 16\n"
        "num_generations: 4\nuse_cpu: true\nbf16: false\nreport_to: none\ndataset_name: d\n"
    )
    parser = TrlParser((ScriptArguments, AdaptiveGRPOConfig, ModelConfig))
    flags = ["--config", str(file), "--upper", "9", "--prompt_key_column", "problem"]
    _, args, _ = parser.parse_args_and_config(flags)
    assert (args.allocator_mode, args.lower, args.upper) == ("shadow", 3, 9)
    assert args.prompt_key_column == "problem"
    assert args.scale_rewards == "batch"


def test_defaults_are_trls_but_for_those_named(tmp_path):
    for ours, theirs, changed in (
        (AdaptiveGRPOConfig, GRPOConfig, {"scale_rewards"}),
        (AdaptiveRLOOConfig, RLOOConfig, {"num_generations", "beta"}),
    ):
        own, stock = ours.__dataclass_fields__, theirs.__dataclass_fields__
        assert list(own)[: len(stock)] == list(stock)
        differing = {n for n in stock if own[n].default != stock[n].default}
        assert differing == changed


def test_upper_is_four_times_the_mean():
    assert AdaptiveGRPOConfig("out", **BASE).most == 16
    assert AdaptiveGRPOConfig("out", **BASE, upper=5).most == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lower": 1}, "lower is 1, but a group of fewer than 2"),
        (
            {"lower": 5},
            r"lower is 5, so 4 prompts need 20 rollouts, but the generation batch has 16",
        ),
        ({"upper": 3}, r"upper is 3, so 4 prompts take at most 12 rollouts"),
        ({"allocator_mode": "on"}, "allocator_mode is 'on', but must be one of adaptive"),
        ({"weighting": "token"}, "weighting is 'token'"),
        ({"prior_mean_column": "rate"}, "come together"),
        ({"reward_low": 1.0}, "reward_low is 1 and reward_high 1"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        AdaptiveGRPOConfig("out", **BASE, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_generations": 16}, "holds one prompt of 16: there is nothing to allocate"),
        ({"num_generations": 2}, "every prompt gets the same"),
        ({"weighting": "rollout"}, "lets a prompt weigh by its rollouts"),
        ({"scale_rewards": "group"}, 'Use scale_rewards="batch" or "none"'),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "which no weight undoes"),
    ],
)
def test_senseless_settings_warn(options, message):
    with pytest.warns(UserWarning, match=message):
        AdaptiveGRPOConfig("out", **{**BASE, **options})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        AdaptiveGRPOConfig("out", **{**BASE, **options}, allocator_mode="shadow")


def test_ignored_settings_warn(tmp_path):
    def build(**options):
        tok = helpers.tokenizer()
        return helpers.AdaptiveGRPOTrainer(
            helpers.model(tok),
            helpers.reward,
            args=AdaptiveGRPOConfig(str(tmp_path), **BASE, **options),
            train_dataset=helpers.dataset(),
            processing_class=tok,
            allocator=helpers.FixedAllocator([4]),
        )

    with pytest.warns(UserWarning, match="lower 3 and upper None .* are ignored"):
        build(lower=3)
    with pytest.warns(UserWarning, match="reward_low -1 and reward_high 1 are ignored"):
        build(reward_low=-1.0)
    with pytest.warns(UserWarning, match="the allocator is not used"):
        build(allocator_mode="uniform")
