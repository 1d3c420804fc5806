"""Why a model could not be loaded."""

import re


class ModelNotLoadedError(ValueError):
    """A model is missing, unreadable or damaged; the message says which and what to do."""


def why_unread(error: Exception) -> str:
    """Say why a pickle could not be read, without torch's advice to load it all the same."""
    message = str(error).strip()
    foreign = re.search(r"GLOBAL (\S+)", message)
    if foreign:
        return (
            f"it asks for {foreign[1]!r}, and anything but tensors may run code; get the weights "
            "as safetensors"
        )
    if "weights_only" in message:
        return "it holds more than tensors; fetch it again, or get the weights as safetensors"
    reason = type(error).__name__
    if message:
        reason += f": {first_line(error).partition('. ')[0]}"
    return f"{reason}; fetch it again"


def first_line(error: BaseException) -> str:
    """Return an error's first line, or its type if it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
