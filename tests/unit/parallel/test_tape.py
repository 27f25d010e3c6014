"""Delayed initialisation: each tensor gets the values that it would have had, whichever others are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.lazy import Lazy
from trainshed.parallel.ground.errors import PipelineError

torch = Lazy("torch")
nn = Lazy("torch.nn")
tapes = Lazy("trainshed.parallel.delayed.tape")
pytestmark = pytest.mark.torch


def delayed(make: Callable[[], Any], small: int = 64) -> tuple[tapes.Tape, Any]:
    """What `make` builds, without values."""
    tape = tapes.Tape(small)
    with tapes.Addresses(tape), tape:
        made = make()
    tape.fill_all_but_parameters()
    return tape, made


def same(make: Callable[[], nn.Module]) -> nn.Module:
    """Raises if a parameter or buffer, or the generator, is not as without a tape; returns the model that has no values."""
    torch.manual_seed(1)
    usual, after = make(), torch.rand(3)
    torch.manual_seed(1)
    tape, model = delayed(make)
    assert torch.rand(3).equal(after), "random numbers go on as ever"
    backwards = list(reversed(list(model.named_parameters())))
    assert any(tape.waits(one) for _, one in backwards)
    assert tape.written() == 0, "nothing was written"
    wanted = dict(usual.named_parameters())
    for name, parameter in backwards:
        value = tape.values(parameter) if tape.waits(parameter) else parameter
        assert value.equal(wanted[name]) and value.dtype == wanted[name].dtype, name
        assert value.stride() == wanted[name].stride(), name
    for name, buffer in usual.named_buffers():
        assert model.get_buffer(name).equal(buffer), name
    return model


def test_layers_of_torch_get_the_values_that_they_would_have_had() -> None:
    def make() -> nn.Module:
        layers = (
            nn.Linear(8, 40),
            nn.Embedding(50, 8, padding_idx=3),
            nn.Conv2d(3, 16, 3),
            nn.GRU(8, 8, 2),
            nn.LayerNorm(64),
        )
        return nn.ModuleList([*layers, nn.TransformerEncoderLayer(16, 2), nn.MultiheadAttention(16, 2), nn.BatchNorm1d(64)])

    same(make)


def test_odd_ways_to_build_a_model() -> None:
    class Odd(nn.Module):
        """What scripts do to their parameters while they build a model."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(30, 8), nn.Linear(8, 30, bias=False)
            self.out.weight = self.table.weight
            self.mix = nn.Linear(16, 16)
            nn.init.orthogonal_(self.mix.weight)
            self.scaled = nn.Parameter(self.mix.weight.detach().clone() / self.mix.weight.norm())
            self.halves = nn.Parameter(torch.randn(16, 16).to(torch.bfloat16))
            self.turned = nn.Parameter(torch.randn(16, 32).t())
            self.frozen = nn.Parameter(torch.ones(64), requires_grad=False)
            self.register_buffer("mask", torch.tril(torch.ones(32, 32)).bool())
            self.register_buffer("copy", self.mix.weight.detach() * 2)
            with torch.no_grad():
                self.mix.weight[0].fill_(7)
                self.mix.weight.mul_(self.scaled.abs().max())
                self.mix.weight.data.clamp_(max=3)
            self.deviation, self.rates = float(self.halves.float().std()), [one.item() for one in torch.linspace(0, 1, 5)]
            self.sum = float(self.scaled.detach().numpy().sum())

    model = same(Odd)
    torch.manual_seed(1)
    usual = Odd()
    assert (model.deviation, model.rates, model.sum) == (usual.deviation, usual.rates, usual.sum)
    assert model.out.weight is model.table.weight


def test_a_model_takes_next_to_no_memory_until_its_values_are_made() -> None:
    tape, model = delayed(lambda: nn.Embedding(2048, 2048))
    assert tape.waits(model.weight) and tape.written() == 0


def test_a_generator_of_the_script_is_followed() -> None:
    def make(generator: torch.Generator) -> nn.Parameter:
        return nn.Parameter(torch.randn(64, generator=generator))

    usual = make(torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(5)
    tape, parameter = delayed(lambda: make(generator))
    after = torch.Generator().manual_seed(5)
    torch.randn(64, generator=after)
    assert generator.get_state().equal(after.get_state())
    assert tape.values(parameter).equal(usual)


def test_what_a_parameter_was_made_from_must_not_change() -> None:
    source = torch.ones(64)
    tape, parameter = delayed(lambda: nn.Parameter(source * 2))
    source.add_(1)
    with pytest.raises(PipelineError, match=r"a tensor of shape \[64\] that a parameter was made from has changed"):
        tape.values(parameter)


def test_numpy_cannot_write_into_what_has_no_values() -> None:
    def make() -> nn.Module:
        layer = nn.Linear(8, 8)
        layer.weight.detach().numpy()[:] = 1
        return layer

    with pytest.raises(ValueError, match="read-only"):
        delayed(make)


def test_what_is_written_by_address_is_refused() -> None:
    def make() -> nn.Module:
        import ctypes

        layer = nn.Linear(8, 8)
        ctypes.memset(layer.weight.data_ptr(), 1, 64)
        return layer

    with pytest.raises(PipelineError, match="written in the block past torch's operations"):
        delayed(make)


def test_another_seed_or_another_change_makes_another_fingerprint() -> None:
    def made(seed: int, scale: float = 1.0) -> bytes:
        torch.manual_seed(seed)
        return delayed(lambda: nn.Parameter(torch.randn(64) * scale))[0].fingerprint()

    assert made(1) == made(1)
    assert len({made(1), made(2), made(1, 2.0)}) == 3
