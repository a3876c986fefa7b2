"""The list of all checks; a check is a coroutine function with a sentence."""

from typing import Awaitable, Callable, NamedTuple


class Check(NamedTuple):
    sentence: str
    run: Callable[..., Awaitable[None]]


CHECKS = []


def check(sentence):
    """Register the function below as the check of this sentence. It is called with the `Wire` of the main stage."""
    assert sentence not in (known.sentence for known in CHECKS), f"two checks have the sentence {sentence!r}"

    def register(run):
        CHECKS.append(Check(sentence, run))
        return run

    return register
