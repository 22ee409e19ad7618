import json
import pprint
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as slowly
from hypothesis import strategies as st
from typer.testing import CliRunner

from apportion.cli import app
from apportion.cli import train as cli_train
from apportion.errors import InvalidInputError
from apportion.readers.runs import read_runs
from apportion.sweep.command_parts import KINDS, evaluation_interval
from apportion.sweep.commands import commands, guide
from apportion.sweep.settings import Setting
from apportion.sweep.sweep import Sweep
from apportion.sweep.trl_rewards import exact_match
from apportion.sweep.verl_command import quoted
from apportion.training.config import TrainConfig

OWN = TrainConfig(arm="uniform", model="Qwen/Qwen2.5-0.5B", dataset="data/gsm8k", max_tokens=512)
VERL = replace(OWN, dataset="data/gsm8k/train.parquet")
BASE_OF = {"apportion": OWN, "trl": OWN, "verl": VERL}
SETTING = Setting(
    rollouts_per_prompt=8,
    prompts_per_step=32,
    learning_rate=2.5e-6,
    allocator="uniform",
    seed=3,
    num_steps=40,
)
KEYS_OF_VERL_0_9_1 = {
    "actor_rollout_ref.actor.entropy_coeff",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.actor.loss_agg_mode",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.optim.lr_scheduler_type",
    "actor_rollout_ref.actor.optim.lr_warmup_steps",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.use_dynamic_bsz",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.name",
    "actor_rollout_ref.rollout.seed",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.val_kwargs.do_sample",
    "actor_rollout_ref.rollout.val_kwargs.n",
    "actor_rollout_ref.rollout.val_kwargs.temperature",
    "algorithm.adv_estimator",
    "algorithm.norm_adv_by_std_in_grpo",
    "data.max_response_length",
    "data.prompt_key",
    "data.seed",
    "data.train_batch_size",
    "data.train_files",
    "data.val_files",
    "trainer.default_local_dir",
    "trainer.experiment_name",
    "trainer.logger",
    "trainer.n_gpus_per_node",
    "trainer.project_name",
    "trainer.test_freq",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.val_before_train",
}
SAY = 'say() { printf \'%s\\0\' "$@"; }; trl() { say "$@"; }; '
SAY += 'apportion() { say "$@"; }; python3() { say "$@"; }; '

names = st.text(
    st.sampled_from("a.Z '\"\\$`*?[]{}()~#&;|<>=-é") | st.characters(codec="utf-8"), min_size=1
).filter(lambda text: not set(text) & set("/\0\r\n") and len(text.encode()) < 80)
odd_paths = st.builds(lambda first, last: f"{first}/{last}x", names, names)
settings = st.builds(
    Setting,
    rollouts_per_prompt=st.integers(2, 64),
    prompts_per_step=st.integers(1, 64),
    learning_rate=st.floats(1e-9, 1e-2),
    allocator=st.just("uniform"),
    seed=st.integers(0, 2**32 - 1),
    num_steps=st.integers(20, 3000),
)
recipes = st.fixed_dictionaries(
    {
        "estimator": st.sampled_from(["dr_grpo", "grpo", "rloo"]),
        "kl": st.sampled_from([0.0, 1e-3]),
        "max_tokens": st.integers(1, 4096),
    }
)
few = slowly(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def sweep_of(base, folder, *several, micro_batch=8):
    return Sweep(
        base=base, settings=several or (SETTING,), folder=Path(folder), micro_batch=micro_batch
    )


def words_of(line, **environment):
    """What a POSIX shell would pass on to the program."""
    done = subprocess.run(
        ["sh", "-c", SAY + line],
        capture_output=True,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **environment},
        check=True,
    )
    return done.stdout.decode().split("\0")[:-1]


def config_of(line, monkeypatch):
    """What `apportion train` would run, and where."""
    called = []
    monkeypatch.setattr(cli_train, "_train", lambda config, out, _: called.append((config, out)))
    result = CliRunner().invoke(app, words_of(line))
    assert result.exit_code == 0, result.output
    return called[0]


def as_run(config):
    """The configuration without what its arm does not read and what has no flag."""
    batch = config.budget_per_step
    return replace(
        config,
        objective=config.goal if config.chooses else "coverage",
        candidates=config.candidates if config.chooses else 1,
        micro_batch=None if config.micro_batch == batch else config.micro_batch,
    )


def trl_of(line, **environment):
    """What TRL's own command line makes of a line: arguments of the script, trainer, and so on."""
    from trl.scripts import grpo, rloo

    program, *words = words_of(line, APPORTION_EXTRA="--bf16 false --use_cpu true", **environment)
    parser = {"grpo": grpo, "rloo": rloo}[program].make_parser()
    script, trainer, model, data, rest = parser.parse_args_and_config(
        words, return_remaining_strings=True
    )
    return script, trainer, model, data, rest


def verl_of(line, log, **environment):
    words = words_of(line, APPORTION_VAL_FILES="held out.parquet", **environment)
    assert words == []
    module, *overrides = log.read_text().split("\0")[1:-1]
    assert module == "verl.trainer.main_ppo"
    return dict(one.split("=", 1) for one in overrides)


@pytest.mark.parametrize("micro_batch", [8, None])
@pytest.mark.parametrize(
    "base",
    [
        OWN,
        TrainConfig(arm="uniform", evaluation_spacing="doubling", num_evaluations=13, limit=50),
        replace(OWN, reward_low=-1.0, kl=1e-3, entropy=1e-4, prior="p.csv", lower=3, upper=99),
        replace(OWN, estimator="rloo", reward="a.b:c", prompt_column="q", held_out=0, save_every=7),
        replace(OWN, objective="progress", candidates=5),
        replace(OWN, objective="variance"),
    ],
)
@pytest.mark.parametrize("allocator", ["uniform", "adaptive", "vip"])
def test_apportion_makes_the_same_run(tmp_path, monkeypatch, base, micro_batch, allocator):
    setting = replace(SETTING, allocator=allocator)
    sweep = sweep_of(base, tmp_path / "my sweep", setting, micro_batch=micro_batch)
    (line,) = commands(sweep, "apportion")
    found, folder = config_of(line, monkeypatch)
    assert folder == tmp_path / "my sweep" / setting.name
    assert as_run(found) == as_run(sweep.config_of(setting))


@few
@given(setting=settings, recipe=recipes, model=odd_paths, data=odd_paths, folder=odd_paths)
def test_apportion_and_odd_names(monkeypatch, setting, recipe, model, data, folder):
    base = replace(OWN, model=model, dataset=data, **recipe)
    sweep = sweep_of(base, folder, setting)
    (line,) = commands(sweep, "apportion")
    found, out = config_of(line, monkeypatch)
    assert (as_run(found), out) == (as_run(sweep.config_of(setting)), Path(folder) / setting.name)


@few
@given(
    setting=settings,
    recipe=recipes,
    model=odd_paths,
    data=odd_paths,
    micro_batch=st.none() | st.integers(1, 64),
)
@example(
    setting=SETTING,
    recipe={"estimator": "grpo", "kl": 0.0, "max_tokens": 9},
    model="-a/b",
    data="--c d/e",
    micro_batch=None,
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_trl_reads_its_flags(tmp_path, setting, recipe, model, data, micro_batch):
    base = replace(OWN, model=model, dataset=data, reward="mine.rewards:score", **recipe)
    sweep = sweep_of(base, tmp_path, setting, micro_batch=micro_batch)
    script, trainer, of_model, mixture, rest = trl_of(*commands(sweep, "trl"))
    assert (of_model.model_name_or_path, script.dataset_name) == (model, data)
    assert script.reward_funcs == ["mine.rewards.score"]
    assert (rest, mixture.datasets) == (["--num_processes", "1"], [])
    n, prompts = setting.rollouts_per_prompt, setting.prompts_per_step
    assert trainer.num_generations == n
    assert trainer.generation_batch_size == n * prompts
    assert trainer.steps_per_generation == trainer.gradient_accumulation_steps
    assert trainer.per_device_train_batch_size * trainer.steps_per_generation == n * prompts
    assert trainer.num_iterations == 1
    assert (trainer.max_steps, trainer.seed) == (setting.num_steps, setting.seed)
    assert (trainer.learning_rate, trainer.warmup_steps) == (setting.learning_rate, 10)
    assert trainer.lr_scheduler_type == "constant_with_warmup"
    assert (trainer.beta, trainer.max_completion_length) == (recipe["kl"], recipe["max_tokens"])
    assert (trainer.eval_strategy, trainer.eval_on_start) == ("steps", True)
    assert trainer.eval_steps == evaluation_interval(setting.num_steps)
    assert Path(trainer.output_dir) == tmp_path / setting.name
    if recipe["estimator"] != "rloo":
        scaled = "group" if recipe["estimator"] == "grpo" else "none"
        assert (trainer.loss_type, trainer.scale_rewards) == (recipe["estimator"], scaled)


@pytest.mark.parametrize(("num_gpus", "accumulated"), [(1, 32), (2, 16), (8, 4)])
def test_trl_takes_the_same_rollouts_on_more_gpus(tmp_path, num_gpus, accumulated):
    (line,) = commands(sweep_of(OWN, tmp_path), "trl")
    words = words_of(line, APPORTION_GPUS=str(num_gpus))
    value_of = dict(zip(words[1::2], words[2::2], strict=True))
    assert value_of["--num_processes"] == str(num_gpus)
    assert value_of["--gradient_accumulation_steps"] == str(accumulated)
    assert 8 * num_gpus * accumulated == int(value_of["--generation_batch_size"])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_what_trl_leaves_is_read_back(tmp_path):
    import torch

    several = (SETTING, replace(SETTING, rollouts_per_prompt=32, learning_rate=5e-6, num_steps=10))
    sweep = sweep_of(OWN, tmp_path / "my sweep", *several)
    for line, setting in zip(commands(sweep, "trl"), several, strict=True):
        trainer = trl_of(line)[1]
        folder = Path(trainer.output_dir)
        inside = folder / f"checkpoint-{trainer.max_steps}"
        inside.mkdir(parents=True)
        torch.save(trainer, folder / "training_args.bin")
        steps = range(0, trainer.max_steps + 1, int(trainer.eval_steps))
        rows = [{"step": step, "epoch": 0.0, "eval_reward": 0.5} for step in steps]
        state = {"global_step": setting.num_steps, "log_history": rows}
        (inside / "trainer_state.json").write_text(json.dumps(state))
    check_read_back(sweep)


def check_read_back(sweep):
    runs, notes = read_runs([sweep.folder])
    assert notes == []
    run_of = {run.name: run for run in runs}
    assert len(run_of) == len(sweep.settings)
    for setting in sweep.settings:
        run = run_of[setting.name]
        sizes = (setting.rollouts_per_prompt, setting.prompts_per_step)
        assert run.setting == (*sizes, setting.learning_rate, "uniform")
        assert run.seed == setting.seed
        assert run.compute_T[0] == 0
        assert run.compute_T[-1] == setting.budget
        np.testing.assert_allclose(np.diff(run.compute_T), run.compute_T[1])


@few
@given(setting=settings, recipe=recipes, folder=names)
@example(setting=SETTING, recipe={}, folder="it's \\")
def test_verl_gets_overrides(tmp_path, setting, recipe, folder):
    entropy = 0.0 if recipe.get("estimator") == "rloo" else 1e-3
    base = replace(VERL, entropy=entropy, **recipe)
    sweep = sweep_of(base, tmp_path / f"{folder}x", setting)
    log = sweep.folder / setting.name / "verl.log"
    log.unlink(missing_ok=True)
    told = verl_of(*commands(sweep, "verl"), log, APPORTION_GPUS="4", APPORTION_EXTRA="a.b=1 c=2")
    assert [told.pop("a.b"), told.pop("c")] == ["1", "2"]
    assert set(told) == KEYS_OF_VERL_0_9_1
    n, prompts = int(told["actor_rollout_ref.rollout.n"]), int(told["data.train_batch_size"])
    assert (n, prompts) == (setting.rollouts_per_prompt, setting.prompts_per_step)
    assert told["actor_rollout_ref.actor.ppo_mini_batch_size"] == told["data.train_batch_size"]
    assert n * prompts * int(told["trainer.total_training_steps"]) == setting.budget
    assert float(told["actor_rollout_ref.actor.optim.lr"]) == setting.learning_rate
    assert told["data.seed"] == told["actor_rollout_ref.rollout.seed"] == str(setting.seed)
    assert told["trainer.experiment_name"] == setting.name
    assert told["trainer.project_name"] == quoted(f"{folder}x")
    assert told["trainer.test_freq"] == str(evaluation_interval(setting.num_steps))
    assert told["data.val_files"] == "held out.parquet"
    assert told["trainer.n_gpus_per_node"] == "4"


def test_verl_will_not_start_without_prompts_to_judge_by(tmp_path):
    (line,) = commands(sweep_of(VERL, tmp_path), "verl")
    with pytest.raises(subprocess.CalledProcessError) as caught:
        words_of(line)
    assert "held-out prompts" in caught.value.stderr.decode()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a b", "'a b'"),
        ("it's", r"'it\'s'"),
        ("a\\", r"'a\\'"),
        ("a\\b", r"'a\b'"),
        ("it\\'s", r"'it\\\'s'"),
        ("null", "'null'"),
        ("1e5", "'1e5'"),
        ("data/x.parquet", "data/x.parquet"),
    ],
)
def test_quotes_of_hydra(text, value):
    """Values that the parser of Hydra 1.3.8 gives back as the text."""
    assert quoted(text) == value


def nested(overrides):
    """The configuration that verl prints, of so many overrides."""
    told = {}
    for name, text in overrides.items():
        *parents, last = name.split(".")
        inside = told
        for parent in parents:
            inside = inside.setdefault(parent, {})
        try:
            inside[last] = json.loads(text)
        except ValueError:
            inside[last] = text
    return told


def test_what_verl_leaves_is_read_back(tmp_path):
    several = (SETTING, replace(SETTING, rollouts_per_prompt=32, learning_rate=5e-6, num_steps=10))
    sweep = sweep_of(VERL, tmp_path / "my sweep", *several)
    for line, setting in zip(commands(sweep, "verl"), several, strict=True):
        log = sweep.folder / setting.name / "verl.log"
        told = verl_of(line, log)
        steps = range(0, setting.num_steps + 1, int(told["trainer.test_freq"]))
        mean = f"mean@{told['actor_rollout_ref.rollout.val_kwargs.n']}"
        lines = [*pprint.pformat(nested(told)).split("\n")]
        lines += [f"step:{step} - val-core/openai/gsm8k/reward/{mean}:0.5" for step in steps]
        log.write_text("".join(f"(TaskRunnerV1 pid=12) {line}\n" for line in lines))
    check_read_back(sweep)
    one = sweep.folder / SETTING.name
    (run,), _ = read_runs([one])
    assert run.name == SETTING.name
    assert [run.name for run in read_runs([one / "verl.log"])[0]] == ["verl.log"]


@pytest.mark.parametrize("kind", ["trl", "verl"])
@pytest.mark.parametrize(
    ("changes", "allocator", "message"),
    [
        ({"reward_low": -1.0}, "uniform", "Rewards go from -1 to 1"),
        ({"limit": 9}, "uniform", "--limit is 9"),
        ({}, "adaptive", "--allocator is adaptive"),
    ],
)
def test_what_other_frameworks_cannot_do(tmp_path, kind, changes, allocator, message):
    setting = replace(SETTING, allocator=allocator)
    sweep = sweep_of(replace(BASE_OF[kind], **changes), tmp_path, SETTING, setting)
    with pytest.raises(InvalidInputError, match=message):
        commands(sweep, kind)


@pytest.mark.parametrize(
    ("kind", "base", "message"),
    [
        ("trl", TrainConfig(arm="uniform"), "The embedded model cannot be trained by trl"),
        ("verl", TrainConfig(arm="uniform"), "The embedded model cannot be trained by verl"),
        ("trl", replace(OWN, dataset="mine.csv"), "Put train.csv and test.csv into a folder"),
        ("trl", replace(OWN, prompt_column="q"), "--prompt-column is q"),
        ("trl", replace(OWN, answer_column="a"), "--answer-column is a"),
        ("verl", OWN, "verl reads files"),
        ("apportion", replace(OWN, model="a\nb"), "line break"),
        ("slurm", OWN, "must be one of apportion, trl, verl"),
    ],
)
def test_refusals(tmp_path, kind, base, message):
    with pytest.raises(InvalidInputError, match=message):
        commands(sweep_of(base, tmp_path), kind)


def test_trl_may_have_another_answer_column_where_no_reward_of_ours_reads_it(tmp_path):
    base = replace(OWN, answer_column="a", reward="mine:score")
    assert "--reward_funcs mine.score " in commands(sweep_of(base, tmp_path), "trl")[0]


@pytest.mark.parametrize("kind", KINDS)
def test_one_line_a_run_in_the_order_of_the_sweep(tmp_path, kind):
    several = tuple(replace(SETTING, seed=seed) for seed in (2, 0, 1))
    sweep = sweep_of(BASE_OF[kind], tmp_path, *several)
    lines = commands(sweep, kind)
    assert [one.name in line for one, line in zip(several, lines, strict=True)] == [True] * 3
    assert len(set(lines)) == 3
    assert "3 runs" in guide(sweep, kind)[0]


@given(st.integers(1, 5000))
def test_evaluations_are_few_and_end_near_the_end(num_steps):
    every = evaluation_interval(num_steps)
    assert 1 <= num_steps // every <= 16
    assert num_steps // every >= min(num_steps // 2, 8)
    best = min(num_steps % other for other in range(every, max(num_steps // 8, every) + 1))
    assert num_steps % every == best


def test_the_reward_that_trl_finds_by_path(tmp_path):
    (line,) = commands(sweep_of(OWN, tmp_path), "trl")
    assert f"--reward_funcs {exact_match.__module__}.exact_match " in line
    chat = [[{"role": "assistant", "content": " 7"}], [{"role": "assistant", "content": "8"}]]
    assert exact_match(completions=chat, prompts=["", ""], answer=[7, 7]) == [1.0, 0.0]
