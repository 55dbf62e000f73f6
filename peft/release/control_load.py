"""The phase ``load``: the candidate's server, which the agent has started, is waited for and looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ticket_agent.peft.release.control_errors import AuthorityExpiredError
from ticket_agent.peft.release.geometry import adapter_tensors
from ticket_agent.peft.release.observing import PhaseFailedError
from ticket_agent.peft.release.readiness import wait_ready
from ticket_agent.peft.release.serving_errors import ServingError
from ticket_agent.peft.release.stack import TRANSFORMERS_SERVE

if TYPE_CHECKING:
    from ticket_agent.peft.release.control_work import ControlJob
    from ticket_agent.peft.release.server_room import KnownServer
    from ticket_agent.peft.release.serving import ServedModel

__all__ = ["await_server", "expected_tensors", "load"]


def load(job: ControlJob) -> dict[str, Any]:
    """Wait until the candidate's server answers; hold it to its name, its token and its tensors.

    Raises:
        PhaseFailedError: it does not answer in time, or it serves something else.
        PeftError: it was never started, or what was started is not what was staged.
    """
    job.require_authority("the candidate was loaded")
    server = job.candidate()
    models = await_server(job, server)
    matched = next(model.matched_tensors for model in models if model.name == server.instance.name)
    wanted = expected_tensors(job)
    counts = server.backend.kind == TRANSFORMERS_SERVE
    if matched != wanted and (counts or matched is not None):
        raise PhaseFailedError(
            f"the server found {'none' if matched is None else matched} of the adapter's {wanted} tensors in"
            " its model",
            rule="load-tensors",
            detail={"matched_tensors": matched, "tensors": wanted},
        )
    return {
        "name": server.instance.name,
        "port": server.instance.port,
        "launch_id": server.launch_id,
        "backend": server.backend.kind,
        "matched_tensors": matched,
        "bundle_sha256": server.bundle_sha256,
    }


def expected_tensors(job: ControlJob) -> int:
    """How many tensors the candidate has."""
    return len(adapter_tensors(job.profile.stack.geometry, job.profile.settings.rank))


def await_server(job: ControlJob, server: KnownServer) -> tuple[ServedModel, ...]:
    """Wait until a server is ready, as long as the host's configuration and the ticket allow.

    Raises:
        PhaseFailedError: it is not; with the end of its log.
        AuthorityExpiredError: the ticket expired meanwhile.
    """
    left_s = (job.facts.expires_unix_ms - job.now_unix_ms()) / 1000
    try:
        return wait_ready(
            server.client(),
            server.backend,
            server.instance,
            alive=lambda: server.running() is not False,
            deadline_s=min(job.facts.timing.ready_s, max(0.0, left_s)),
        )
    except ServingError as error:
        if not job.allowed:
            raise AuthorityExpiredError(
                f"the ticket expired while {server.instance.name} was waited for"
            ) from error
        ended = server.ended()
        raise PhaseFailedError(
            f"{error}{'' if ended is None else f' (it {ended})'}",
            rule=error.code,
            detail={"launch_id": server.launch_id, "log": server.last_lines()},
        ) from error
