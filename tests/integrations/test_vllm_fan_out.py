"""Requests to a vLLM server: one a size, every row its own prompt's completion."""

from __future__ import annotations

import pytest
import trl_helpers as helpers
from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.errors import FormulaDriftError
from apportion.integrations.trl.vllm_fan_out import fan_out, generate_in_runs

pytestmark = pytest.mark.filterwarnings("ignore")


class Client:
    """Answers in the shape of TRL's client; a completion tells its prompt and its own number."""

    def __init__(self):
        self.requests, self.count = [], 0

    def generate(self, prompts, n=1, **options):
        self.requests.append((len(prompts), n))
        completions = []
        for prompt in prompts:
            for _ in range(n):
                self.count += 1
                completions.append([*prompt, self.count])
        return {
            "prompt_ids": list(prompts),
            "completion_ids": completions,
            "logprobs": [[[-float(c[-1])]] for c in completions],
            "logprob_token_ids": None,
        }


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=12))
@settings(deadline=None)
def test_every_row_gets_its_own_prompt(groups):
    prompts = [[key, 7] for key, size in groups for _ in range(size)]
    client = Client()
    answer = generate_in_runs(client.generate, prompts, n=1)
    assert answer["prompt_ids"] == prompts
    assert [c[:2] for c in answer["completion_ids"]] == prompts
    numbers = [c[2] for c in answer["completion_ids"]]
    assert len(set(numbers)) == len(prompts)
    assert [p[0][0] for p in answer["logprobs"]] == [-float(k) for k in numbers]
    assert answer["logprob_token_ids"] is None
    sizes = [n for _, n in client.requests]
    assert len(sizes) == len(set(sizes))


def test_sizes_become_requests():
    client = Client()
    prompts = [[i] for i, n in enumerate([2, 2, 8, 4, 2, 8]) for _ in range(n)]
    generate_in_runs(client.generate, prompts, n=1)
    assert client.requests == [(3, 2), (2, 8), (1, 4)]


def test_images_and_other_n_go_unmerged():
    client = Client()
    generate_in_runs(client.generate, [[1], [1]], n=1, features=[{}, {}])
    generate_in_runs(client.generate, [[1], [1]], n=2)
    assert client.requests == [(2, 1), (2, 2)]


def test_another_shape_is_noticed():
    with pytest.raises(FormulaDriftError, match="answered 1 completion_ids to 1 prompts with n=2"):
        generate_in_runs(lambda prompts, n: {"completion_ids": [[1]]}, [[1], [1]], n=1)


def test_the_client_is_put_back():
    client = Client()
    with fan_out(client):
        assert client.generate(prompts=[[1], [1]], n=1)["prompt_ids"] == [[1], [1]]
    assert client.requests == [(1, 2)]
    client.generate([[1]], n=1)
    assert client.requests[-1] == (1, 1)


@helpers.needs_trl("1.16")  # before, server mode imports vLLM itself
def test_a_trainer_in_server_mode_sends_one_request_a_size(tmp_path):
    """TRL's own server branch, with a fake behind it: de-duplication, re-duplication and all."""
    from trl.generation import vllm_generation

    trainer = helpers.build(tmp_path, allocator=helpers.FixedAllocator([2, 2, 8, 4]))
    client = Client()
    stock = client.generate

    def short(prompts, n=1, **options):
        answer = stock(prompts, n=n)
        answer["completion_ids"] = [[c[0], 1] for c in answer["completion_ids"]]
        answer["logprobs"] = [[[-1.0], [-1.0]] for _ in answer["completion_ids"]]
        return answer

    client.generate = short
    backend = object.__new__(vllm_generation.VLLMGeneration)
    for name in ("repetition_penalty", "temperature", "top_p", "top_k", "min_p", "logprobs"):
        setattr(backend, name, None)
    vars(backend).update(
        mode="server",
        accelerator=trainer.accelerator,
        vllm_client=client,
        max_completion_length=4,
        structured_outputs_regex=None,
        generation_kwargs=None,
        sync_weights=lambda: None,
    )
    trainer.use_vllm, trainer.vllm_generation = True, backend
    trainer.vllm_importance_sampling_correction = False
    trainer._last_loaded_step = -1
    trace = helpers.Trace(trainer)
    helpers.trained(trainer)
    assert client.requests[:3] == [(2, 2), (1, 8), (1, 4)]
    for batch in trace.batches:
        first = [int(row[row > 0][0]) for row in batch["prompt_ids"]]
        assert batch["completion_ids"][:, 0].tolist() == first
