"""Plans of tests are made of counted costs: no clock decides where their models are cut."""

from __future__ import annotations

import pytest


@pytest.mark.torch
def test_calls_of_modules_cost_what_is_counted() -> None:
    import torch

    from jobs.parallel.plans import counted
    from trainshed.parallel.plan import planner

    model = torch.nn.Sequential(torch.nn.Linear(3, 4))
    with counted():
        tree = planner.CallTree(model, counts=False)  # as the planner calls it
        with tree.watching():
            found = tree.run(model, (torch.ones(2, 3),), {})
    assert [call.seconds for call in found.inside] == [3 * 4 + 4 + 1]
