"""Whether an instance serves what it was started for, and asks for its token."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.completion import Completion, CompletionReader
from ticket_agent.peft.release.serving import COMPLETIONS_PATH, MODELS_PATH, served_models
from ticket_agent.peft.release.serving_errors import (
    AnswerRefusedError,
    ServerRefusedError,
    ServerTimeoutError,
    ServerUnreachableError,
    WrongModelError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.peft.release.loopback import LoopbackClient
    from ticket_agent.peft.release.serving import Backend, Instance, ServedModel

__all__ = ["ask", "check_ready", "port_is_free", "wait_ready"]

PROBE_S: Final = 5.0
"""Longest single look at a server, in seconds."""
PAUSE_S: Final = 0.05

_UNAUTHORISED: Final = frozenset({401, 403})


def check_ready(client: LoopbackClient, backend: Backend, instance: Instance) -> tuple[ServedModel, ...]:
    """Look once; return what the instance serves.

    Raises:
        ServerUnreachableError: nobody answers; it may still be starting.
        WrongModelError: it serves other names than its own, or more.
        ServingError: it answers without the token, or not as a server does.
    """
    try:
        client.get(MODELS_PATH, deadline_s=PROBE_S, authorised=False)
    except ServerRefusedError as error:
        if error.status not in _UNAUTHORISED:
            raise
    else:
        raise AnswerRefusedError(
            f"the server on port {client.port} answers without a token; it must not be used"
        )
    models = served_models(client.get(MODELS_PATH, deadline_s=PROBE_S))
    found, wanted = sorted(model.name for model in models), sorted(backend.listed_names(instance))
    if found != wanted:
        raise WrongModelError(
            f"the server lists {', '.join(found) or 'no model'}; it must be {', '.join(wanted)}"
        )
    return models


def wait_ready(
    client: LoopbackClient,
    backend: Backend,
    instance: Instance,
    *,
    alive: Callable[[], bool],
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[ServedModel, ...]:
    """Look until the instance is ready; return what it serves.

    Args:
        client: to the instance's port.
        backend: its kind.
        instance: what was started.
        alive: whether its process still runs.
        deadline_s: how long to wait, in seconds.
        clock: in seconds.
        sleep: between two looks.

    Raises:
        ServerTimeoutError: not in time.
        ServerUnreachableError: its process has ended.
        ServingError: what :func:`check_ready` raises; waiting would not help.
    """
    end = clock() + deadline_s
    while True:
        running = alive()
        try:
            return check_ready(client, backend, instance)
        except ServerUnreachableError as error:
            if not running:
                raise ServerUnreachableError(
                    f"{instance.name} ended before it was ready; see its log"
                ) from None
            if clock() >= end:
                raise ServerTimeoutError(
                    f"{instance.name} is not ready after {deadline_s:g} s ({error})"
                ) from None
        sleep(PAUSE_S)


def ask(
    client: LoopbackClient,
    backend: Backend,
    name: str,
    prompt: str,
    *,
    max_tokens: int,
    deadline_s: float,
) -> Completion:
    """Have one completion.

    Raises:
        ServingError: it failed, is incomplete, or is somebody else's.
    """
    reader = CompletionReader(backend.answer_names(name))
    question = backend.question(name, prompt, max_tokens)
    for line in client.post_streamed(COMPLETIONS_PATH, question, deadline_s=deadline_s):
        reader.feed(line)
    return reader.finish()


def port_is_free(client: LoopbackClient) -> bool:
    """Tell whether nobody accepts connections on the port. A server that does not answer still holds it."""
    try:
        client.get(MODELS_PATH, deadline_s=PROBE_S)
    except ServerTimeoutError:
        return False
    except ServerUnreachableError as error:
        return error.refused
    except (AnswerRefusedError, ServerRefusedError):
        return False
    return False
