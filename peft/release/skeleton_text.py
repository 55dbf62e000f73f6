"""The two files of a new release directory that people change: ``release.toml`` and ``selection.toml``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.selection import SELECTION_SCHEMA
from ticket_agent.peft.release.stack import TRANSFORMERS_SERVE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ticket_agent.peft.release.installed import Installed

__all__ = ["BaseTerms", "config_text", "selection_text"]

_MEBI: Final = 1024 * 1024
_SELECTION: Final = """\
# What is released. `release prepare` makes the documents of a release of this. Paths start in this folder.
schema = {schema}
train_data = "train.json"
eval_data = "eval.json"
license_refs = [{license_ref}]
# By name only, env:NAME or file:/path. Nothing is fetched and nothing is sent.
credential_refs = []
gated_download = false
upload = false

[base]
path = "base"
source = {source}
revision = {revision}
license_ref = {license_ref}

# Who vouches for the inputs.
[attestation]
key_id = "local-source"
private_key = "source.key"

[settings]
seed = 41
max_steps = 12
learning_rate = {learning_rate}
rank = {rank}
max_length = 64
batch_size = 1
checkpoint_interval = 4

# Four questions that every server of a candidate has to answer as its evaluation did.
[canary]
prompts = [
    "the old keeper of the lamp",
    "sees row 1 0",
    "and then the ship",
    "north wind and the sea",
]
max_tokens = 8
maximum_latency_ms = 10000

[canary.acceptance]
match = "exact"
minimum_matches = 4

[evaluation_policy]
minimum_samples = 16
maximum_age_ms = 3600000

[evaluation_policy.metrics.eval_loss]
direction = "lower"
absolute_bound = 9.0
maximum_regression = 0.0

[resource_caps]
phase_memory_bytes = 3221225472
serving_memory_bytes = 2147483648
file_bytes = {file_bytes}
tasks = 128
cpu_percent = 200
phase_ms = 300000

[stack]
python = {python}
serving = {serving}
target_modules = ["q_proj", "v_proj"]

[stack.device]
device = "cpu"
dtype = "float32"
attention = "eager"
threads = 1

# What settings, data and policy may ask for.
[stack.limits]
ranks = [2, 4, 8]
lengths = [32, 64, 128]
steps = 200
learning_rate = 0.05
checkpoint_interval = 50
eval_rows = 16
loss = 10.0
adapter_bytes = 33554432
base_bytes = {base_bytes}

# As installed when this was written. Nothing else may compute with this profile.
[stack.versions]
{pins}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTerms:
    """What a selection says of its base model, and what suits its size.

    Attributes:
        source: where it comes from.
        revision: which version of it.
        license_ref: its licence.
        learning_rate: that training on it starts with.
        rank: of its adapters.
        max_bytes: the largest weights that it may have.
    """

    source: str
    revision: str
    license_ref: str
    learning_rate: float
    rank: int
    max_bytes: int


def config_text(folder: Path, python: Path, ports: Sequence[int], *, unconfined: bool) -> str:
    """``release.toml``: how releases run on this host."""
    return f"""\
# How releases run on this host. Named by --release-config, and by the agent's --peft-release-config.
root = {_quoted(folder / "root")}
# Interpreter that trains and serves; it needs ticket-agent with the extras train and release.
python = {_quoted(python)}
# Of the loopback interface; what is served has one, a candidate another one. Nobody else's.
ports = [{", ".join(map(str, ports))}]
token_file = {_quoted(folder / "token")}
# Signs what came of a release; give signing.pub to those who verify.
signing_key = {_quoted(folder / "signing.key")}
# true: phases may run without confinement where none works. The evidence says so.
unconfined = {_json(unconfined)}

# Seconds: until a server answers, how long a promoted candidate is watched, and between two looks at it.
ready_s = 120.0
soak_s = 10.0
soak_pause_s = 1.0
"""


def selection_text(base: BaseTerms, installed: Installed, versions: Sequence[tuple[str, str]]) -> str:
    """``selection.toml``: what is released. All of it becomes part of the profile, so it is all said here."""
    return _SELECTION.format(
        schema=_json(SELECTION_SCHEMA),
        license_ref=_json(base.license_ref),
        source=_json(base.source),
        revision=_json(base.revision),
        learning_rate=base.learning_rate,
        rank=base.rank,
        file_bytes=max(64 * _MEBI, base.max_bytes),
        base_bytes=base.max_bytes,
        python=_json(installed.python),
        serving=_json(TRANSFORMERS_SERVE),
        pins="\n".join(f"{name} = {_json(version)}" for name, version in versions),
    )


def _quoted(path: Path) -> str:
    return _json(str(path))


def _json(value: object) -> str:
    # Strings and booleans of JSON are such of TOML too.
    return json.dumps(value)
