import pytest
from audit_helpers import drawn_run, group_table, replay_result

from apportion.audit.saved import saved_of
from apportion.audit.waste import Rates, waste_of


def saved(rates, *, tokens=True, **changes):
    groups = group_table(drawn_run(0, tokens=tokens))
    return saved_of(replay_result(**changes), waste_of(groups, (0.0, 1.0), rates), rates), groups


def test_the_saving_is_a_share_of_all_that_was_spent():
    found, groups = saved(Rates(gpu_hours=40.0, price_per_gpu_hour=2.5))
    assert found.num_rollouts == round(0.15 * groups.num_requested_G.sum())
    assert (found.gpu_hours, found.cost) == pytest.approx((6.0, 15.0))
    found, groups = saved(Rates(gpu_hours=40.0, price_per_million_tokens=3.0))
    assert found.gpu_hours == pytest.approx(6.0)
    assert found.cost == pytest.approx(0.15 * 3e-6 * groups.num_tokens_G.sum())


def test_what_is_not_known_is_not_priced():
    found, _ = saved(Rates())
    assert (found.gpu_hours, found.cost) == (None, None)
    found, _ = saved(Rates(price_per_million_tokens=3.0), tokens=False)
    assert found.cost is None
    assert saved(Rates(gpu_hours=40.0), saving=0.0)[0] is None
    assert saved(Rates(gpu_hours=40.0), saving=-0.1)[0] is None
