"""The reference hive: the root side of host tickets in memory, and its TCP console.

It stands in for the real target in tests, demos and on machines without a hive, with the target's order of
checks, refusals, bounds and retention.
"""

from __future__ import annotations

from .endpoint import Timeouts
from .errors import LabError, RefusalError
from .exports import sample_job
from .faults import Fault, FaultKind, Faults, FaultSyntaxError, parse_fault
from .gateway import GatewayTimes
from .gateway_server import GatewayServer
from .gpus import Gpu
from .hive import ReferenceHive
from .lab import AdmissionView, Effect
from .profile import DEFAULT, STRICT_A, HiveProfile
from .server import ConsoleServer
from .session import SessionOptions
from .workers import Phase

__all__ = [
    "DEFAULT",
    "STRICT_A",
    "AdmissionView",
    "ConsoleServer",
    "Effect",
    "Fault",
    "FaultKind",
    "FaultSyntaxError",
    "Faults",
    "GatewayServer",
    "GatewayTimes",
    "Gpu",
    "HiveProfile",
    "LabError",
    "Phase",
    "ReferenceHive",
    "RefusalError",
    "SessionOptions",
    "Timeouts",
    "parse_fault",
    "sample_job",
]
