"""A new directory with all that a first release on a CPU takes: configuration, keys, data, a base model."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import FileRefusedError, PeftIoError
from ticket_agent.peft.release.base_choice import (
    BASE_FILES,
    TEMPLATE_FILE,
    TOKENIZER_CONFIG,
    choose_base,
    open_folder,
)
from ticket_agent.peft.release.bundle import BASE_WEIGHTS, MAX_BASE_WEIGHTS_BYTES
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.keys import new_key_pair
from ticket_agent.peft.release.private_root import PrivateRoot
from ticket_agent.peft.release.selection import BaseChoice
from ticket_agent.peft.release.skeleton_base import CHAT_TEMPLATE, REVISION, SOURCE, base_files
from ticket_agent.peft.release.skeleton_text import BaseTerms, config_text, selection_text
from ticket_agent.protocol.json_strict import parse_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ticket_agent.peft.release.installed import Installed

__all__ = ["CONFIG_FILE", "SELECTION_FILE", "Skeleton", "make_skeleton", "skeleton_rows"]

CONFIG_FILE: Final = "release.toml"
SELECTION_FILE: Final = "selection.toml"
TRAIN_ROWS: Final = 24
EVAL_ROWS: Final = 16
TOKEN_BYTES: Final = 32

_TINY: Final = BaseTerms(
    source=SOURCE,
    revision=REVISION,
    license_ref="CC0-1.0",
    learning_rate=0.02,
    rank=2,
    max_bytes=16 * 1024 * 1024,
)
_PRIVATE: Final = 0o600
_MAX_JSON: Final = 256 * 1024
_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """What was made.

    Attributes:
        folder: the directory.
        changed: what was changed in the copy of the base model, one line each.
    """

    folder: Path
    changed: tuple[str, ...]

    @property
    def config(self) -> Path:
        """The host's configuration."""
        return self.folder / CONFIG_FILE

    @property
    def selection(self) -> Path:
        """What is released."""
        return self.folder / SELECTION_FILE


def make_skeleton(
    folder: Path,
    *,
    python: Path,
    installed: Installed,
    versions: Sequence[tuple[str, str]],
    ports: Sequence[int],
    base: Path | None = None,
    unconfined: bool = False,
) -> Skeleton:
    """Make the directory, which must be empty or absent, and is empty after an error.

    Args:
        folder: absolute path of the directory.
        python: interpreter that trains and serves.
        installed: what it has.
        versions: the packages that the profile pins.
        ports: for servers.
        base: directory of a base model to copy; a tiny one is made without.
        unconfined: whether phases may run without confinement.

    Raises:
        FileRefusedError: the directory has something in it.
        DocumentError, ArtifactRefusedError, ModelMismatchError: the base model cannot be released with.
        CryptographyMissingError: keys cannot be made.
        PeftIoError: the system failed.
    """
    keys = {name: new_key_pair() for name in ("signing", "source")}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FileRefusedError(f"{folder} is not empty; name a new directory")
    except OSError as error:
        raise PeftIoError(f"making {folder}", error) from error
    with _emptied_on_error(folder):
        (folder / "base").mkdir()
        changed, terms = _make_base(folder / "base", base)
        for name, (private, public) in keys.items():
            _write(folder / f"{name}.key", private, mode=_PRIVATE)
            _write(folder / f"{name}.pub", public)
        _write(folder / "token", secrets.token_hex(TOKEN_BYTES).encode("ascii"), mode=_PRIVATE)
        for name, count, start in (("train", TRAIN_ROWS, 100), ("eval", EVAL_ROWS, 500)):
            text = json.dumps(skeleton_rows(count, start), indent=1) + "\n"
            _write(folder / f"{name}.json", text.encode("ascii"))
        _write(folder / SELECTION_FILE, selection_text(terms, installed, versions).encode())
        PrivateRoot.open(folder / "root", create=True).close()
        _write(folder / CONFIG_FILE, config_text(folder, python, ports, unconfined=unconfined).encode())
    return Skeleton(folder=folder, changed=changed)


@contextmanager
def _emptied_on_error(folder: Path) -> Iterator[None]:
    """Leave nothing half made in a directory that was empty before."""
    try:
        yield
    except BaseException as error:
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if isinstance(error, OSError):
            raise PeftIoError(f"making {folder}", error) from error
        raise


def skeleton_rows(count: int, start: int) -> list[str]:
    """Sentences that the tiny model knows the words of, all different, of a kind that can be learnt."""
    return [
        f"the old keeper of the lamp sees row {' '.join(str(number).zfill(3))} and then the ship turns north"
        " near us"
        for number in range(start, start + count)
    ]


def _make_base(folder: Path, source: Path | None) -> tuple[tuple[str, ...], BaseTerms]:
    if source is None:
        for name, data in base_files().items():
            _write(folder / name, data)
        return (), _TINY
    for name in BASE_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    changed = _complete(source, folder)
    terms = BaseTerms(
        source=f"local/{_plain(source.name)}",
        revision="unknown",
        license_ref="unknown",
        learning_rate=0.0005,
        rank=4,
        max_bytes=MAX_BASE_WEIGHTS_BYTES,
    )
    choice = BaseChoice(
        path=folder, source=terms.source, revision=terms.revision, license_ref=terms.license_ref
    )
    with open_folder(choice) as opened:
        weights = dict(choose_base(opened, choice, ("q_proj", "v_proj")).manifest.files)[BASE_WEIGHTS]
    return changed, BaseTerms(
        source=terms.source,
        revision=f"sha256-{weights[:_DIGITS]}",
        license_ref=terms.license_ref,
        learning_rate=terms.learning_rate,
        rank=terms.rank,
        max_bytes=terms.max_bytes,
    )


def _complete(source: Path, folder: Path) -> tuple[str, ...]:
    """Give the copied tokenizer what evaluator and server need and base models often lack."""
    path = folder / TOKENIZER_CONFIG
    if not path.exists():
        raise DocumentError(f"base model: has no {TOKENIZER_CONFIG}", rule="bundle-incomplete")
    with reading(f"base model: {TOKENIZER_CONFIG}"):
        config: dict[str, Any] = parse_object(path.read_bytes(), what="the file", max_bytes=_MAX_JSON)
    changed = []
    if not isinstance(config.get("chat_template"), str):
        if (source / TEMPLATE_FILE).exists():
            config["chat_template"] = (source / TEMPLATE_FILE).read_text("utf-8")
            changed.append(f"{TEMPLATE_FILE} is now the chat_template in {TOKENIZER_CONFIG}")
        else:
            config["chat_template"] = CHAT_TEMPLATE
            changed.append(f"{TOKENIZER_CONFIG} has a chat_template now: the messages one after the other")
    if config.get("pad_token") is None and config.get("eos_token") is not None:
        config["pad_token"] = config["eos_token"]
        changed.append(f"pad_token in {TOKENIZER_CONFIG} is the eos_token now")
    if changed:
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return tuple(changed)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", name) or "model"


def _write(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(fd)
