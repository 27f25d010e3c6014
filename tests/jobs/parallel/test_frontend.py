"""Recording a forward and replaying it stage by stage, in one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.lazy import Lazy
from trainshed.parallel.ground.errors import TraceMismatch

torch = Lazy("torch")
nn = Lazy("torch.nn")
small_modules = Lazy("small_modules")
checkpoints = Lazy("torch.utils.checkpoint")
batches = Lazy("trainshed.parallel.engine.batch")
subjects = Lazy("trainshed.parallel.tracing.subject")
traces = Lazy("trainshed.parallel.tracing.trace")
gating = Lazy("trainshed.parallel.tracing.call_routing")
replays = Lazy("trainshed.parallel.tracing.replay")

pytestmark = [pytest.mark.torch, pytest.mark.exact]


def step(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss = model(x).square().mean()
    model.backward(loss)
    return loss


def record(model: nn.Module, x: torch.Tensor, units: list[str] | None = None) -> tuple[small_modules.Holder, traces.Trace]:
    holder = small_modules.Holder(model)
    names = units or [name for name, module in model.named_modules() if name and not list(module.children())]
    return holder, subjects.Subject(model, step, holder.attach, (holder, x)).record(names)


def replay(holder: small_modules.Holder, trace: traces.Trace, starts: list[int], x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of all parameters, from stages that only meet through their boundaries."""
    gates = gating.UnitGates(holder.module)
    gates.put(trace.units)
    ends = [*starts[1:], trace.positions]
    sent: dict[int, torch.Tensor] = {}
    stages = []
    for first, last in zip(starts, ends, strict=True):
        received = {n: t.detach().requires_grad_(t.requires_grad) for n, t in sent.items()}
        values = {n: t.clone() if n in trace.mutated_values else t.view_as(t) for n, t in received.items()}
        wanted = trace.boundary(last) if last < trace.positions else ()
        forward = replays.StageForward(trace, gates, torch.device("cpu"), first, last, values, wanted)
        holder.attach(forward)
        forward.run(step, (holder, x), {})
        sent = {number: forward.values[number] for number in wanted}
        stages.append((received, sent, forward.losses))
    holder.module.zero_grad()
    gradients: dict[int, torch.Tensor] = {}
    for received, sent, losses in reversed(stages):
        if losses:
            sum(losses).backward()
        else:
            outputs = [(n, t) for n, t in sent.items() if t.requires_grad and gradients.get(n) is not None]
            torch.autograd.backward([t for _, t in outputs], [gradients[n] for n, _ in outputs])
        gradients = {number: tensor.grad for number, tensor in received.items()}
    return {name: p.grad.clone() for name, p in holder.module.named_parameters() if p.grad is not None}


def plain(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(x).square().mean().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(model: nn.Module, x: torch.Tensor, cuts: list[int] | None = None) -> traces.Trace:
    expected = plain(model, x)
    holder, trace = record(model, x)
    for cut in cuts or [cut for cut in range(1, trace.positions) if cut not in trace.no_cut]:
        found = replay(holder, trace, [0, cut], x)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-7)
    return trace


def test_recording_leaves_buffers_and_random_numbers_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before, state = model[1].running_mean.clone(), torch.get_rng_state()
    record(model, torch.randn(3, 4, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(model[1].running_mean, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_depends_on_inputs_alone_is_never_sent() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = (x > 0).float() + torch.arange(4)
            return self.b(self.a(x) * mask) * mask

    trace = assert_same(Masked(), torch.randn(3, 4))
    assert len(trace.boundary(1)) == 1


def test_a_skip_over_several_stages_is_relayed() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lines = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.lines[0](x)
            y = first
            for line in self.lines[1:]:
                y = line(y).relu()
            return y + first

    model, x = Skip(), torch.randn(3, 4)
    expected = plain(model, x)
    holder, trace = record(model, x)
    found = replay(holder, trace, [0, 1, 2, 3], x)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())
    assert len(trace.boundary(3)) == 2


def test_in_place_changes_of_received_values_keep_the_gradients() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x)
            kept = self.b(x * 3)
            x.mul_(2)
            x[:, 0] = 1.0
            return self.c(x + kept) + 2 * x

    assert_same(Changing(), torch.randn(3, 4))


def test_no_stage_starts_between_a_view_and_a_change_through_it() -> None:
    class Aliased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x) * 1
            part = x[:, :2]
            other = self.b(x * 3)
            part.add_(other)
            return self.c(2 * x)

    trace = assert_same(Aliased(), torch.randn(3, 4))
    assert set(trace.no_cut) == {1}


def test_a_branch_on_values_closes_the_module_around_it() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            return y if y.sum() > 0 else -y

    _, trace = record(nn.Sequential(nn.Linear(4, 4), Branch(), nn.Linear(4, 4)), torch.randn(3, 4))
    assert list(trace.atomic) == ["1"]


def test_after_a_branch_in_the_models_own_forward_no_stage_starts() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.b(self.a(x))
            return self.d(x) if x.sum() > 0 else self.d(self.c(x))

    model = Root()
    trace = assert_same(model, torch.randn(3, 4))
    assert sorted(trace.no_cut) == list(range(2, trace.positions))


def test_the_last_stage_may_go_another_way_after_a_branch_on_values() -> None:
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.b(self.a(x))
            return self.c(x) if x.sum() > 0 else x * 2

    model = Root()
    x = torch.randn(3, 4)
    holder, trace = record(model, x)
    with torch.no_grad():
        model.b.bias.copy_(torch.full((4,), 50.0 if model(x).shape and model.b(model.a(x)).sum() <= 0 else -50.0))
    found = replay(holder, trace, [0, 1], x)
    expected = plain(model, x)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def test_a_forward_that_goes_another_way_is_an_error_with_the_place() -> None:
    class Switching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.swap = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x)
            return self.b(self.c(x)) if self.swap else self.c(self.b(x))

    model, x = Switching(), torch.randn(3, 4)
    holder, trace = record(model, x)
    model.swap = True
    with pytest.raises(TraceMismatch, match=r"module 'c' after 'a' where the record has module 'b'"):
        replay(holder, trace, [0, 2], x)


def test_an_operation_that_is_not_in_the_record_is_an_error() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.extra = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x)
            if self.extra:
                x = x * 3
            return self.b(x)

    model, x = Growing(), torch.randn(3, 4)
    holder, trace = record(model, x)
    model.extra = True
    with pytest.raises(TraceMismatch, match="operation 'mul'"):
        replay(holder, trace, [0, 1], x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_an_activation_checkpoint_is_never_split(reentrant: bool) -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4)

        def body(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(torch.tanh(self.b(x)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoints.checkpoint(self.body, x, use_reentrant=reentrant)

    model, x = nn.Sequential(nn.Linear(4, 4), Inner(), nn.Linear(4, 4)), torch.randn(3, 4)
    holder, trace = record(model, x)
    assert 2 in trace.no_cut  # between its two modules
    expected = plain(model, x)
    for cut in [cut for cut in range(1, trace.positions) if cut not in trace.no_cut]:
        found = replay(holder, trace, [0, cut], x)
        assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


def test_hooks_of_a_module_run_on_the_stage_that_owns_it_only() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(3, 4)
    holder, trace = record(model, x)
    seen: list[bool] = []
    model[0].register_forward_hook(lambda _m, _i, out: seen.append(out.is_meta))
    replay(holder, trace, [0, 1], x)
    assert seen == [False]


def test_a_modules_hook_may_change_its_output() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(3, 4)
    model[1].register_forward_hook(lambda _m, _i, out: out * 2)
    assert_same(model, x)


def test_autocast_around_the_model_gives_the_same_gradients() -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.body(x)

    assert_same(Cast(), torch.randn(3, 4))


def test_a_custom_autograd_function_between_modules_keeps_its_own_backward() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 7

    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(Double.apply(self.a(x)))

    assert_same(Uses(), torch.randn(3, 4))


def test_a_parameter_that_a_unit_reads_without_owning_it_is_found() -> None:
    class Borrowing(nn.Module):
        def __init__(self, lender: nn.Linear) -> None:
            super().__init__()
            self.lenders = [lender]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.lenders[0].weight

    line = nn.Linear(4, 4)
    model = nn.Sequential(line, nn.ReLU(), Borrowing(line))
    trace = assert_same(model, torch.randn(3, 4))
    event = next(event for event in trace.events if event.name == "2")
    assert event.parameters == ("0.weight",)


def test_pytorch_is_itself_again_after_an_error() -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("the user's own error")

    call, apply = nn.Module.__call__, torch.autograd.Function.__dict__["apply"]
    with pytest.raises(KeyError, match="the user's own error"):
        record(nn.Sequential(nn.Linear(4, 4), Broken()), torch.randn(3, 4))
    assert nn.Module.__call__ is call
    assert torch.autograd.Function.__dict__["apply"] is apply


def test_a_change_in_place_after_the_model_reads_no_parameter() -> None:
    def scaled(model: Any, x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        out[:, :2].add_(1.0)
        loss = out.square().mean()
        loss /= 2
        model.backward(loss)
        return loss

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    holder = small_modules.Holder(model)
    trace = subjects.Subject(model, scaled, holder.attach, (holder, torch.randn(3, 4))).record(["0", "1"])
    assert [event.parameters for event in trace.events if event.mutated] == [(), ()]
    assert len(trace.reached) == 4


def test_another_length_is_recorded_in_one_forward_if_it_does_the_same() -> None:
    for model, forwards in (
        (small_modules.Remembering(), 1),
        (small_modules.Remembering(masks=True), 2),
        (small_modules.Remembering(counts=True), 2),
    ):
        holder, trace = record(model, torch.randn(2, 3, 4), ["first", "second"])
        assert len(model.calls) == 2
        subject = subjects.Subject(model, step, holder.attach, (holder, torch.randn(2, 5, 4)))
        other = subject.record(["first", "second"], [trace])
        assert len(model.calls) == 2 + forwards
        assert other.structure == trace.structure  # what was made once is in neither
        assert other.fingerprint() == subject.record(["first", "second"]).fingerprint() != trace.fingerprint()
        subject.record(["first", "second"], [trace])  # by now the mask is there
        assert len(model.calls) == 2 + forwards + 2 + (2 if model.counts else 1)


def test_a_batch_that_differs_in_one_bit_or_in_the_order_has_another_digest() -> None:
    def made() -> list[Any]:
        generator = torch.Generator().manual_seed(1)
        whole = torch.randn(8, 3, generator=generator)
        whole[5, 1] = float("nan")
        ids = torch.randint(0, 9, (8, 2), generator=generator)
        same = torch.arange(4)
        kinds = [torch.tensor([True, False]), torch.ones(2, dtype=torch.bfloat16), torch.ones(1, 2) * 1j, torch.ones(3)[::2]]
        return [((whole[n : n + 2], ids[n : n + 2], same), {"kinds": kinds}) for n in range(0, 8, 2)]

    def change(what: Any) -> list[Any]:
        batch = made()
        what(batch)
        return batch

    def assign(microbatch: int, argument: int, at: Any, value: Any) -> Any:
        def change_one(batch: list[Any]) -> None:
            batch[microbatch][0][argument][at] = value

        return change_one

    ones = torch.tensor([1.0])
    changes = [
        assign(0, 0, (0, 0), torch.nextafter(made()[0][0][0][0, 0], ones)[0]),
        assign(2, 0, (1, 1), 0.5),  # the NaN
        assign(3, 1, (1, 1), 11),
        assign(1, 2, 0, 1),
        lambda batch: batch.reverse(),
        lambda batch: batch[0][0][1].copy_(batch[0][0][1].flip(0)),
        lambda batch: batch[1][1]["kinds"][0].logical_not_(),
        lambda batch: batch[1][1]["kinds"][2].imag.add_(1),
        lambda batch: batch[1][1]["kinds"].pop(),
    ]
    found = [batches.digest(made()), *(batches.digest(change(what)) for what in changes)]
    assert batches.digest(made()) == found[0] and len(set(found)) == len(found)
    assert all(0 <= one < 2**62 for one in found)
    conjugate = torch.tensor([1 + 2j])
    assert batches.digest([((conjugate.conj(),), {})]) == batches.digest([((conjugate.conj().resolve_conj(),), {})])
    assert batches.digest([]) == batches.digest([((torch.empty(0), "text"), {})])


def test_what_a_unit_compiles_runs_compiled_and_only_there() -> None:
    ran = []

    def backend(graph: Any, _examples: Any) -> Any:
        def run(*args: Any) -> Any:
            ran.append(len(args))
            return graph.forward(*args)

        return run

    @torch.compile(backend=backend)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x + x

    class Compiling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return doubled(self.linear(x))

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = Compiling(), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(doubled(self.first(x)))

    model, x = Both(), torch.randn(3, 4)
    expected = plain(model, x)
    holder, trace = record(model, x, ["first", "last"])
    for _ in range(2):
        ran.clear()
        found = replay(holder, trace, [0, 1], x)
        assert ran == [1]
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient)


def test_a_unit_that_begins_to_compile_after_it_was_recorded_stays_right() -> None:
    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.function = nn.Linear(4, 4), torch.sin

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.function(self.linear(x))

    model, x = nn.Sequential(Later(), nn.Linear(4, 4)), torch.randn(3, 4)
    expected = plain(model, x)
    holder, trace = record(model, x, ["0", "1"])
    replay(holder, trace, [0, 1], x)
    model[0].function = torch.compile(torch.sin, backend="eager")
    for _ in range(2):
        for name, gradient in replay(holder, trace, [0, 1], x).items():
            torch.testing.assert_close(gradient, expected[name])


def test_a_module_whose_result_is_another_value_than_recorded_is_refused_in_its_place() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.through = nn.Linear(4, 4), False

        def forward(self, x: torch.Tensor) -> Any:
            return x if self.through else self.linear(x)

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.last = Either(), Either(), nn.Linear(4, 4)
            self.crossed = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one, other = self.a(x), self.b(x)
            return self.last(other if self.crossed else one) + one

    model, x = Pair(), torch.randn(3, 4)
    holder, trace = record(model, x, ["a", "b", "last"])
    expected = plain(model, x)
    for name, gradient in replay(holder, trace, [0, 2], x).items():
        torch.testing.assert_close(gradient, expected[name])
    model.crossed = True
    with pytest.raises(TraceMismatch, match="module 'last'"):
        replay(holder, trace, [0, 2], x)
    model.crossed, model.a.through = False, True
    model.a.forward = lambda x: (x, x)
    with pytest.raises(TraceMismatch, match="the result of 'a'"):
        replay(holder, trace, [0, 2], x)


def test_the_last_stage_computes_what_follows_modules_of_others() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(3, 4)
    holder, trace = record(model, x)
    expected = plain(model, x)
    gates = gating.UnitGates(model)
    gates.put(trace.units)
    forward = replays.StageForward(trace, gates, torch.device("cpu"), 0, 2, {}, (1,))
    forward.is_last = False
    holder.attach(forward)
    forward.run(step, (holder, x), {})
    received = {1: forward.values[1].detach().requires_grad_()}
    last = replays.StageForward(trace, gates, torch.device("cpu"), 2, 2, received, ())
    last.is_last = True
    holder.attach(last)
    last.run(step, (holder, x), {})
    (loss,) = last.losses
    model.zero_grad()
    loss.backward()
    forward.values[1].backward(received[1].grad)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


def test_a_module_that_the_forward_calls_in_a_thread_is_an_event_like_others() -> None:
    class Threaded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with ThreadPoolExecutor(1) as pool:
                return self.b(pool.submit(self.a, x).result())

    assert_same(Threaded(), torch.randn(3, 4))
