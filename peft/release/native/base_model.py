"""The base model's files against the profile, without loading them: configuration and shapes of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.bundle import BASE_CONFIG, BASE_WEIGHTS
from ticket_agent.peft.release.geometry import MAX_CONFIG_BYTES, check_base_config
from ticket_agent.peft.release.native.native_errors import ModelMismatchError
from ticket_agent.peft.release.native.weights import weights_header
from ticket_agent.peft.release.profile import check_base
from ticket_agent.protocol.json_strict import parse_object

if TYPE_CHECKING:
    from ticket_agent.peft.release.geometry import Geometry
    from ticket_agent.peft.release.native.job import Job
    from ticket_agent.peft.safetensors_header import SafetensorsHeader

__all__ = ["base_tensors", "check_base_model", "check_base_tensors"]

HEAD: Final = "lm_head.weight"
_PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def base_tensors(geometry: Geometry) -> dict[str, tuple[int, ...]]:
    """Every tensor of a base model by name, with its shape.

    ``lm_head.weight`` is left out of files whose model uses the embeddings for it.
    """
    vocabulary, width = geometry.vocab_size, geometry.hidden_size
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, width),
        "model.norm.weight": (width,),
        HEAD: (vocabulary, width),
    }
    for layer in range(geometry.layers):
        prefix = f"model.layers.{layer}"
        for module in _PROJECTIONS:
            block, inputs, outputs = geometry.projection(module)
            found[f"{prefix}.{block}.{module}.weight"] = (outputs, inputs)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{prefix}.{norm}.weight"] = (width,)
    return found


def check_base_model(job: Job) -> dict[str, Any]:
    """Hold the base model's manifest, files, configuration and tensors against the profile.

    Raises:
        PeftError: something differs; the line has both values.
    """
    profile, manifest = job.profile, job.base_manifest
    check_base(profile, manifest)
    geometry = profile.stack.geometry
    with job.open_input("base") as directory:
        # Before the digests: a stand-in of Git LFS is named as such, and not as another content.
        with directory.open_file(BASE_WEIGHTS, max_bytes=profile.stack.limits.base_bytes) as weights:
            header = weights_header(weights, BASE_WEIGHTS)
        config = directory.read_file(BASE_CONFIG, max_bytes=MAX_CONFIG_BYTES)
    job.check_base_files()
    check_base_tensors(header, config, geometry)
    return {
        "bundle_sha256": profile.base,
        "source": manifest.source,
        "revision": manifest.revision,
        "tensor_count": len(header.tensors),
    }


def check_base_tensors(header: SafetensorsHeader, config: bytes, geometry: Geometry) -> None:
    """Hold a base model's ``config.json`` and the tensors of its file against a geometry.

    Raises:
        DocumentError, ModelMismatchError: something differs; the line has both values.
    """
    check_base_config(config, geometry)
    tied = parse_object(config, what=BASE_CONFIG, max_bytes=MAX_CONFIG_BYTES).get("tie_word_embeddings")
    wanted = base_tensors(geometry)
    found = {tensor.name: tensor.shape for tensor in header.tensors}
    if tied is True and HEAD not in found:
        del wanted[HEAD]
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise ModelMismatchError(
                f"{BASE_WEIGHTS}: {name}: expected {_shape(wanted.get(name))}, found"
                f" {_shape(found.get(name))}; this is not the base model of the profile's geometry"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "no such tensor" if shape is None else f"shape {list(shape)}"
