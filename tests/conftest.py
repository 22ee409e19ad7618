"""Settings of every test: reproducible examples, no hub, one thread."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")


@pytest.fixture
def dump(tmp_path):
    """A table of rollouts on disk, for the tests of the audit."""
    from audit_helpers import drawn_run, write_run

    return write_run(tmp_path / "rollouts.csv", drawn_run(0))


@pytest.fixture
def replays(monkeypatch):
    """A replay that only notes its calls, for the tests of the audit."""
    from audit_helpers import replay_result

    calls = []

    def replay_of(groups, **options):
        calls.append((groups, options))
        options["progress"](1, 6)
        return replay_result()

    monkeypatch.setattr("apportion.replay.replay_of", replay_of, raising=False)
    return calls
