"""The tree of errors a user can meet. Imports nothing; every message names the thing and the remedy."""


class PydflashError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigError(PydflashError):
    """A bad option, or a combination of options that cannot work (command line exit code 2)."""


class CheckpointError(PydflashError):
    """A model file is broken: truncated, forged, or with a tensor missing, extra or of the wrong shape."""


class UnsupportedError(CheckpointError):
    """The file is sound, but this build has no architecture, format or op for it on this device."""


class CapacityError(PydflashError):
    """Something does not fit: says what, how much is needed, and what to change."""


class CatalogError(PydflashError):
    """A model could not be fetched, verified or found: network, licence gate, disk or name."""


class RequestError(PydflashError):
    """The caller's fault. Carries what an API needs to answer it."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "invalid_request",
        param: str | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.status = status


class ContextLengthError(RequestError):
    """Prompt and answer do not fit in the context."""

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, code="context_length_exceeded", param=param)


class TemplateError(RequestError):
    """The chat template refused the conversation or is itself broken."""

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, code="template_error", param=param)


class EngineError(PydflashError):
    """The engine stopped; delivered to every open and later request."""


class NonFiniteError(EngineError):
    """The model gave no numbers for a row: it ends, and what it stored is not to be used again."""
