"""The exceptions that scripts catch."""

from __future__ import annotations

from typing import Any


class ClientError(Exception):
    """An error that the user has to correct."""


class _CalledProcessError(ClientError):
    """A command failed: `cmd`, `return_code` (text), `output`."""

    def __init__(self, cmd: Any, return_code: Any = None, output: Any = None, info: str | None = None) -> None:
        self.cmd, self.return_code, self.output, self.extra_info = cmd, str(return_code), output, info
        super().__init__()

    def __str__(self) -> str:
        output = self.output.decode("utf-8", "replace") if isinstance(self.output, bytes) else self.output or ""
        lines = [f"{type(self).__name__}:", f"ExitCode {self.return_code}", f'ErrorMessage "{output}"']
        lines += [f'ExtraInfo "{self.extra_info}"'] if self.extra_info is not None else []
        return "\n".join([*lines, f'Command "{self.cmd}"'])


class InstallModuleError(_CalledProcessError):
    """A package of the user could not be installed."""


class InstallRequirementsError(_CalledProcessError):
    """requirements.txt could not be installed."""


class ExecuteUserScriptError(_CalledProcessError):
    """The user's script failed."""


class ImportModuleError(ClientError):
    """A module of the user could not be imported."""


class ChannelDoesNotExistError(Exception):
    """There is no channel of this name."""

    def __init__(self, channel_name: str) -> None:
        super().__init__(f"Channel {channel_name} is not a valid channel")


class UnsupportedFormatError(Exception):
    """There is no encoder for a content type."""

    def __init__(self, content_type: str, **kwargs: Any) -> None:
        self.message = f"Content type {content_type} is not supported by this framework."
        super().__init__(self.message, **kwargs)
