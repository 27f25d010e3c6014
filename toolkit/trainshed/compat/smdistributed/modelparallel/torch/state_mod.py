"""`smp.state`: what scripts read of the library's state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from trainshed.contract.wire.pipeline import PipelineSettings
from trainshed.parallel.session import session


class _State:
    """Settings, the model and its optimizer, as they are now."""

    module_manager = SimpleNamespace(translate_functions=[])

    @property
    def cfg(self) -> PipelineSettings:
        """Settings by Amazon's names."""
        return session.grid.settings if session.grid is not None else PipelineSettings()

    @property
    def model(self) -> Any:
        """The wrapped model."""
        return session.model

    @property
    def optimizer(self) -> Any:
        """The wrapped optimizer."""
        return session.optimizer

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"smp.state.{name} is not supported: it has cfg, model and optimizer; "
            "local_state_dict() has parameters by their names"
        )


state = _State()
