import pytest
from audit_helpers import drawn_run, recording_of

from apportion.audit.already_adaptive import is_already_adaptive


def run_of(sizes_by_step):
    return [
        (f"p{at}", step, [1.0] * size)
        for step, sizes in enumerate(sizes_by_step)
        for at, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([[8, 8, 8]] * 4, False),
        ([[8, 7, 8]] * 4, False),
        ([[2, 8, 14]] * 4, True),
        ([[8, 8, 8]] * 3 + [[8, 3, 8]], False),  # a torn line
        ([[8, 8, 8]] + [[2, 4, 18]] * 3, True),  # even until there was skill
        ([[8], [4], [2]], False),  # sizes change over time alone
    ],
)
def test_sizes_within_steps_tell(sizes, expected):
    recording = recording_of(run_of(sizes))
    assert is_already_adaptive(recording, recording.groups) is expected
    untimed = recording_of(run_of(sizes), has_steps=False)
    assert not is_already_adaptive(untimed, untimed.groups)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"train": {"arm": "adaptive"}}, True),
        ({"train": {"arm": "vip"}}, True),
        ({"train": {"arm": "uniform"}}, False),
        ({"allocator_mode": "adaptive"}, True),
        ({"allocator_mode": "shadow"}, False),
        ({"learning_rate": 1e-6}, False),
        ({"train": None}, False),
    ],
)
def test_a_configuration_tells_first(config, expected):
    recording = recording_of(drawn_run(0), config=config)
    assert is_already_adaptive(recording, recording.groups) is expected


def test_a_shadow_run_of_odd_sizes_was_not_adaptive():
    recording = recording_of(run_of([[2, 8, 14]] * 4), config={"allocator_mode": "shadow"})
    assert not is_already_adaptive(recording, recording.groups)
