"""Adapters that must be refused, each with what its one line has to say; and what they are made from.

Files of tensors that break the rules of the format, tensors that are no LoRA adapter, and configurations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from adapter_files import IN, OUT, PLAIN, PREFIX, RANK, Shapes, file_of, pair

from ticket_agent.peft.adapter_config import MAX_CONFIG_BYTES, MAX_NAMES, AdapterConfig
from ticket_agent.peft.safetensors_header import (
    MAX_DIMENSIONS,
    MAX_HEADER_BYTES,
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRIES,
    MAX_NAME_BYTES,
    MAX_TENSORS,
)

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}
A_TEXT = b'{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


def with_a(**changes: Any) -> dict[str, Any]:
    return {"a": A | changes}


PATH = "tensor name {} looks like a path"
NOT_PRINTABLE = "tensor name {} is not printable ASCII"
OFFSETS = 'tensor "a": data_offsets must be two integers of at least 0'
SHAPE = 'tensor "a": shape must be a list of integers of at least 0'
MEMBERS = 'tensor "a" must have exactly dtype, shape and data_offsets'


HOSTILE_HEADERS: list[tuple[str, bytes, str]] = [
    ("empty file", b"", "is not a safetensors file: it is shorter than 8 bytes"),
    ("seven bytes", bytes(7), "is not a safetensors file: it is shorter than 8 bytes"),
    (
        "text of the published fixture",
        b"adapter-bytes\n",
        "its first 8 bytes announce 3274791429827814497 bytes of header; the limit is 1048576",
    ),
    (
        "a pickle",
        b"\x80\x04\x95\x10\x00\x00\x00\x00" + bytes(40),
        "is not a safetensors file, or its header is too long",
    ),
    ("a zip", b"PK\x03\x04" + bytes(60), "is not a safetensors file, or its header is too long"),
    ("length of all ones", b"\xff" * 8 + b"{}", "announce 18446744073709551615 bytes of header"),
    ("length over the limit", (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "announce 1048577 bytes"),
    ("length past the end", (3).to_bytes(8, "little") + b"{}", "announces 3 bytes of header and has 2"),
    ("no header", bytes(8), "the header does not begin with {"),
    ("leading blank", file_of(b' {"a":%s}' % A_TEXT, 8), "the header does not begin with {"),
    ("leading newline", file_of(b'\n{"a":%s}' % A_TEXT, 8), "the header does not begin with {"),
    ("byte order mark", file_of(b'\xef\xbb\xbf{"a":%s}' % A_TEXT, 8), "the header does not begin with {"),
    ("a list", file_of(b"[]", 0), "the header does not begin with {"),
    ("padded with newlines", file_of(b'{"a":%s}\n\n' % A_TEXT, 8), "does not end with } and blanks"),
    ("padded with NUL", file_of(b'{"a":%s}\0' % A_TEXT, 8), "does not end with } and blanks"),
    ("second document", file_of(b'{"a":%s}{}' % A_TEXT, 8), "is not valid JSON at character 54: Extra data"),
    ("cut JSON", file_of(b'{"a":{}', 8), "is not valid JSON at character"),
    ("comma at the end", file_of(b'{"a":%s,}' % A_TEXT, 8), "is not valid JSON at character"),
    ("single quotes", file_of(b"{'a':{}}", 8), "is not valid JSON at character"),
    ("UTF-16", file_of('{"a":1}'.encode("utf-16-le"), 0), "does not end with } and blanks"),
    ("not UTF-8", file_of(b'{"\xff":%s}' % A_TEXT, 8), "is not UTF-8 at byte 2"),
    ("name twice", file_of(b'{"a":%s,"a":%s}' % (A_TEXT, A_TEXT), 8), "member a appears more than once"),
    (
        "name twice, once escaped",
        file_of(b'{"a":%s,"\\u0061":%s}' % (A_TEXT, A_TEXT), 8),
        "member a appears more than once",
    ),
    (
        "member twice",
        file_of(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8),
        "member a.dtype appears more than once",
    ),
    (
        "metadata twice",
        file_of(b'{"__metadata__":{},"__metadata__":{},"a":%s}' % A_TEXT, 8),
        "member __metadata__ appears more than once",
    ),
    (
        "metadata name twice",
        file_of(b'{"__metadata__":{"x":"1","x":"2"},"a":%s}' % A_TEXT, 8),
        "member __metadata__.x appears more than once",
    ),
    ("deep nesting", file_of(b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", 0), "nests more than 127 containers"),
    ("very deep nesting", file_of(b'{"a":' + b"[" * 200_000 + b"}", 0), "has 200001 objects and lists"),
    ("lone surrogate", file_of(b'{"\\ud800":%s}' % A_TEXT, 8), "holds a lone surrogate"),
    ("NaN", file_of(b'{"a":NaN}', 0), "is NaN, which is not JSON"),
    ("entry is a list", file_of({"a": []}, 0), MEMBERS),
    ("entry is null", file_of({"a": None}, 0), MEMBERS),
    ("entry is empty", file_of({"a": {}}, 0), MEMBERS),
    ("a fourth member", file_of(with_a(strides=[1]), 8), MEMBERS),
    ("no shape", file_of({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, 8), MEMBERS),
    (
        "members in capitals",
        file_of({"a": {"Dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 8),
        MEMBERS,
    ),
    ("unknown dtype", file_of(with_a(dtype="F31"), 8), 'tensor "a" has "F31"; known dtypes are BOOL, U8,'),
    ("dtype in small letters", file_of(with_a(dtype="f32"), 8), 'tensor "a" has "f32"; known dtypes'),
    ("packed dtype", file_of(with_a(dtype="F4", shape=[16]), 8), 'tensor "a" has "F4"; known dtypes'),
    ("dtype is a number", file_of(with_a(dtype=4), 8), 'tensor "a" has a dtype that is no string'),
    ("shape is a number", file_of(with_a(shape=2), 8), SHAPE),
    ("shape is a string", file_of(with_a(shape="2"), 8), SHAPE),
    ("negative dimension", file_of(with_a(shape=[-2, -1]), 8), SHAPE),
    ("fractional dimension", file_of(b'{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}', 8), SHAPE),
    ("true as dimension", file_of(with_a(shape=[True, 2]), 8), SHAPE),
    ("dimension of 2**64", file_of(with_a(shape=[2**64]), 8), "is an integer outside i64::MIN..=u64::MAX"),
    (
        "dimension of a thousand digits",
        file_of(b'{"a":{"shape":[%s]}}' % (b"9" * 1000), 8),
        "is an integer outside",
    ),
    ("dimension is -0", file_of(b'{"a":{"shape":[-0]}}', 8), "is -0; write 0"),
    ("product overflows", file_of(with_a(shape=[2**63, 2**63]), 8), "has more than 1099511627776 elements"),
    (
        "product overflows, then 0",
        file_of(with_a(shape=[2**40, 2**40, 0], data_offsets=[0, 0]), 0),
        "has more than 1099511627776 elements",
    ),
    (
        "too many dimensions",
        file_of(with_a(shape=[1] * MAX_DIMENSIONS + [2]), 8),
        'tensor "a" has 9 dimensions; the limit is 8',
    ),
    ("one offset", file_of(with_a(data_offsets=[8]), 8), OFFSETS),
    ("three offsets", file_of(with_a(data_offsets=[0, 4, 8]), 8), OFFSETS),
    ("negative offset", file_of(with_a(data_offsets=[-8, 0]), 8), OFFSETS),
    ("fractional offset", file_of(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8.0]}}', 8), OFFSETS),
    (
        "offsets reversed",
        file_of(with_a(data_offsets=[8, 0]), 8),
        "data_offsets 8..0 are not within the 8 bytes",
    ),
    (
        "offset past the end",
        file_of(with_a(data_offsets=[0, 9]), 8),
        "0..9 are not within the 8 bytes of data",
    ),
    (
        "offset far past the end",
        file_of(with_a(data_offsets=[0, 2**64 - 1]), 8),
        "data_offsets 0..18446744073709551615 are not within the 8 bytes of data",
    ),
    ("shape too large", file_of(with_a(shape=[3]), 8), "F32 [3] takes 12 bytes, its data_offsets hold 8"),
    ("shape too small", file_of(with_a(shape=[1]), 8), "F32 [1] takes 4 bytes, its data_offsets hold 8"),
    ("dtype too small", file_of(with_a(dtype="F16"), 8), "F16 [2] takes 4 bytes, its data_offsets hold 8"),
    ("overlap", file_of({"a": A, "b": B | {"data_offsets": [4, 12]}}, 12), 'tensors "a" and "b" overlap'),
    ("same data twice", file_of({"a": A, "b": A}, 8), 'tensors "a" and "b" overlap'),
    (
        "gap in front",
        file_of({"b": B}, 16),
        '8 bytes between the beginning and "b" belong to no tensor',
    ),
    (
        "gap between",
        file_of({"a": A, "b": B | {"data_offsets": [9, 17]}}, 17),
        '1 bytes between "a" and "b" belong to no tensor',
    ),
    ("data behind", file_of({"a": A}, 9), '1 bytes after "a" belong to no tensor'),
    ("data and no tensor", file_of({}, 4), "4 bytes after the beginning belong to no tensor"),
    ("polyglot: a zip behind", file_of({"a": A}, bytes(8) + b"PK\x05\x06" + bytes(18)), "22 bytes after"),
    ("data missing", file_of({"a": A}, 7), "data_offsets 0..8 are not within the 7 bytes of data"),
    ("empty name", file_of({"": A}, 8), "a tensor's name has 0 characters; 1..=256 are allowed"),
    ("long name", file_of({"n" * (MAX_NAME_BYTES + 1): A}, 8), "a tensor's name has 257 characters"),
    ("name is a path up", file_of({"../../x": A}, 8), PATH.format('"../../x"')),
    ("name is absolute", file_of({"/etc/passwd": A}, 8), PATH.format('"/etc/passwd"')),
    ("name with a backslash", file_of({"a\\b": A}, 8), PATH.format('"a\\b"')),
    ("name with dots", file_of({"a..b": A}, 8), PATH.format('"a..b"')),
    ("name with a NUL", file_of({"a\0b": A}, 8), NOT_PRINTABLE.format('"a\\x00b"')),
    ("name with an escape", file_of({"a\x1b[2Jb": A}, 8), NOT_PRINTABLE.format('"a\\x1b[2Jb"')),
    ("name with a newline", file_of({"a\nb": A}, 8), NOT_PRINTABLE.format('"a\\nb"')),
    ("name with DEL", file_of({"a\x7f": A}, 8), NOT_PRINTABLE.format('"a\\x7f"')),
    ("name looks like another", file_of({"\u0430": A}, 8), NOT_PRINTABLE.format('"\u0430"')),
    ("name turns around", file_of({"a\u202eb": A}, 8), NOT_PRINTABLE.format('"a\\u202eb"')),
    (
        "metadata is a list",
        file_of({"__metadata__": [], "a": A}, 8),
        "__metadata__ must be an object of strings",
    ),
    ("metadata is a tensor", file_of({"__metadata__": A}, 8), '__metadata__ member "shape" must be a string'),
    (
        "metadata of numbers",
        file_of({"__metadata__": {"x": 1}, "a": A}, 8),
        '__metadata__ member "x" must be',
    ),
    ("metadata nested", file_of({"__metadata__": {"x": {}}, "a": A}, 8), '__metadata__ member "x" must be'),
    (
        "metadata too long",
        file_of({"__metadata__": {"x": "y" * MAX_METADATA_BYTES}, "a": A}, 8),
        "__metadata__ takes 65537 bytes; the limit is 65536",
    ),
    (
        "metadata has too many entries",
        file_of({"__metadata__": {str(n): "" for n in range(MAX_METADATA_ENTRIES + 1)}, "a": A}, 8),
        "__metadata__ has 257 entries; the limit is 256",
    ),
    (
        "too many names",
        file_of(b"{" + b",".join(b'"%x":0' % n for n in range(MAX_TENSORS + 1)) + b"}", 0),
        "the header names 8193 tensors; the limit is 8192",
    ),
    (
        "members without end",
        file_of(b"{" + b",".join(b'"%x":0' % n for n in range(60_000)) + b"}", 0),
        "the header has 60000 members; 8192 tensors, the limit, take at most 33025",
    ),
    (
        "empty containers without end",
        file_of(b'{"a":[' + b"{}," * 300_000 + b"0]}", 0),
        "the header has 300002 objects and lists; 8192 tensors, the limit, take at most 24578",
    ),
]


Q, V = f"{PREFIX}q_proj", f"{PREFIX}v_proj"
EMBED = "base_model.model.model.embed_tokens"


def with_config(**changes: Any) -> AdapterConfig:
    return replace(PLAIN, **changes)


def embedding(module: str = EMBED) -> Shapes:
    return {
        f"{module}.lora_embedding_A": ("F32", (RANK, 50)),
        f"{module}.lora_embedding_B": ("F32", (IN, RANK)),
    }


def named(module: str, adapter: str) -> Shapes:
    return {name.replace(".weight", f".{adapter}.weight"): shape for name, shape in pair(module).items()}


EMBEDDED = with_config(target_modules=("embed_tokens", "q_proj"))
BIAS: Shapes = {f"{Q}.lora_B.bias": ("F32", (OUT,))}
MAGNITUDE: Shapes = {f"{Q}.lora_magnitude_vector": ("F32", (OUT,))}
HEAD_NAME = "base_model.model.lm_head.weight"
HEAD: Shapes = {HEAD_NAME: ("F32", (3, 2))}


def without(tensors: Shapes, end: str) -> Shapes:
    return {name: shape for name, shape in tensors.items() if not name.endswith(end)}


def shaped(a: tuple[int, ...], b: tuple[int, ...]) -> Shapes:
    return {"q_proj.lora_A.weight": ("F32", a), "q_proj.lora_B.weight": ("F32", b)}


NO_PAIR = '"q_proj": A {} and B {} are no pair of [rank, in, ...] and [out, rank, 1, ...]'
NO_PART = "is no part of a LoRA pair and of no module in modules_to_save"
NO_LORA = "is no tensor that a LoRA adapter has"


HOSTILE_TENSORS: list[tuple[str, Shapes, AdapterConfig, str]] = [
    ("no tensors", {}, PLAIN, "holds no LoRA tensors (names with .lora_A.weight and .lora_B.weight)"),
    ("a whole model", {"model.embed.weight": ("F32", (4, 4))}, PLAIN, "holds no LoRA tensors"),
    (
        "another tool's names",
        {"lora_unet_q.lora_down.weight": ("F32", (4, 4))},
        PLAIN,
        "holds no LoRA tensors",
    ),
    ("A alone", without(pair(Q), "B.weight"), PLAIN, 'q_proj" has no lora_B; the pair is not complete'),
    ("B alone", without(pair(Q), "A.weight"), PLAIN, 'q_proj" has no lora_A; the pair is not complete'),
    ("one pair of two is cut", pair(Q) | without(pair(V), "B.weight"), PLAIN, 'v_proj" has no lora_B'),
    ("half of an embedding", without(embedding(), "_B"), EMBEDDED, 'embed_tokens" has no lora_embedding_B'),
    ("a bias alone", BIAS, with_config(lora_bias=True), 'q_proj" has no lora_A'),
    ("a magnitude alone", MAGNITUDE, with_config(use_dora=True), 'q_proj" has no lora_A'),
    (
        "both kinds of a pair",
        pair(EMBED) | embedding(),
        EMBEDDED,
        "is adapted both as an embedding and as a layer",
    ),
    ("sides of different ranks", shaped((4, 6), (10, 3)), PLAIN, NO_PAIR.format("[4, 6]", "[10, 3]")),
    ("sides exchanged", shaped((10, 4), (4, 6)), PLAIN, NO_PAIR.format("[10, 4]", "[4, 6]")),
    ("vectors", shaped((4,), (4,)), PLAIN, NO_PAIR.format("[4]", "[4]")),
    ("scalars", shaped((), ()), PLAIN, NO_PAIR.format("[]", "[]")),
    ("sides of different dimensions", shaped((4, 6, 3), (10, 4)), PLAIN, "are no pair"),
    ("a wide B", shaped((4, 6, 3, 3), (10, 4, 3, 3)), PLAIN, "are no pair"),
    ("too many dimensions", shaped((4, 6, 1, 1, 1, 1), (10, 4, 1, 1, 1, 1)), PLAIN, "are no pair"),
    ("rank 0", shaped((0, 6), (10, 0)), PLAIN, "are no pair"),
    ("nothing in", shaped((4, 0), (10, 4)), PLAIN, "are no pair"),
    ("nothing out", shaped((4, 6), (0, 4)), PLAIN, "are no pair"),
    (
        "an absurd rank",
        shaped((4097, 1), (1, 4097)),
        AdapterConfig(),
        '"q_proj" is of rank 4097; the limit is 4096',
    ),
    (
        "an embedding of three dimensions",
        {f"{EMBED}.lora_embedding_A": ("F32", (4, 5, 1)), f"{EMBED}.lora_embedding_B": ("F32", (6, 4, 1))},
        EMBEDDED,
        "are no pair",
    ),
    (
        "another rank than configured",
        pair(Q, rank=3),
        PLAIN,
        'q_proj" is of rank 3, the configuration says 4',
    ),
    (
        "another rank than the pattern's",
        pair(Q),
        with_config(rank_pattern=(("q_proj", 2),)),
        'q_proj" is of rank 4, the configuration says 2',
    ),
    (
        "two ranks in the pattern",
        pair(Q),
        with_config(rank_pattern=(("q_proj", 4), ("self_attn.q_proj", 2))),
        "rank_pattern gives it more than one rank",
    ),
    (
        "ranks that nothing tells",
        pair(Q) | pair(V, rank=2),
        AdapterConfig(),
        "has pairs of ranks 2, 4; the configuration must say so",
    ),
    (
        "sides of different dtypes",
        {"q_proj.lora_A.weight": ("F16", (4, 6)), "q_proj.lora_B.weight": ("F32", (10, 4))},
        PLAIN,
        '"q_proj": A is of F16 and B of F32',
    ),
    ("integers", pair(Q, dtype="I8"), PLAIN, 'lora_A.weight" is of I8, not of F16, BF16, F32, F64'),
    ("8-bit floats", pair(Q, dtype="F8_E4M3"), PLAIN, "is of F8_E4M3, not of F16"),
    (
        "a module to save of integers",
        pair(Q) | {HEAD_NAME: ("U8", (3,))},
        with_config(modules_to_save=("lm_head",)),
        "is of U8",
    ),
    (
        "a module that is no target",
        pair("layers.0.o_proj"),
        PLAIN,
        '"layers.0.o_proj" is adapted, but it is not among',
    ),
    (
        "a target only by its letters",
        pair("layers.0.xq_proj"),
        PLAIN,
        "it is not among the configuration's target_modules",
    ),
    ("a target in front", pair("q_proj.inner"), PLAIN, "it is not among the configuration's target_modules"),
    (
        "names with and without prefix",
        pair("q_proj") | pair("base_model.model.v_proj"),
        PLAIN,
        "some tensors' names begin with base_model.model. and some do not",
    ),
    (
        "the same tensor twice, with name",
        pair("q_proj") | named("q_proj", "default"),
        PLAIN,
        "are the same tensor",
    ),
    ("two adapters", named(Q, "one") | named(V, "two"), PLAIN, "holds tensors of more than one adapter"),
    ("a name for some", named(Q, "one") | pair(V), PLAIN, "holds tensors of more than one adapter"),
    (
        "a bias that is not configured",
        pair(Q) | BIAS,
        PLAIN,
        "a bias of B is not expected; the configuration does not have lora_bias",
    ),
    (
        "a bias that is missing",
        pair(Q),
        with_config(lora_bias=True),
        "a bias of B is missing; the configuration has lora_bias",
    ),
    (
        "a bias of another length",
        pair(Q) | {f"{Q}.lora_B.bias": ("F32", (9,))},
        with_config(lora_bias=True),
        "the bias of B is [9], not [10]",
    ),
    ("a bias of A", pair(Q) | {f"{Q}.lora_A.bias": ("F32", (4,))}, PLAIN, NO_LORA),
    (
        "DoRA that is not configured",
        pair(Q) | MAGNITUDE,
        PLAIN,
        "a magnitude vector is not expected; the configuration does not have use_dora",
    ),
    (
        "DoRA that is missing",
        pair(Q),
        with_config(use_dora=True),
        "a magnitude vector is missing; the configuration has use_dora",
    ),
    (
        "a magnitude of another length",
        pair(Q) | {f"{Q}.lora_magnitude_vector": ("F32", (9,))},
        with_config(use_dora=True),
        "the magnitude vector has 9 elements, not 10",
    ),
    ("weights of the base model", pair(Q) | HEAD, PLAIN, f'"base_model.model.lm_head.weight" {NO_PART}'),
    ("weights beside a module to save", pair(Q) | HEAD, with_config(modules_to_save=("head",)), NO_PART),
    (
        "a module to save as a tensor",
        pair(Q) | {"base_model.model.lm_head": ("F32", (3,))},
        with_config(modules_to_save=("lm_head",)),
        NO_PART,
    ),
    (
        "weights under an adapted layer",
        pair(Q) | {f"{Q}.base_layer.weight": ("F32", (10, 6))},
        PLAIN,
        NO_PART,
    ),
    (
        "weights under a layer that is not adapted",
        pair(Q) | {f"{EMBED}.base_layer.weight": ("F32", (10, 6))},
        PLAIN,
        NO_PART,
    ),
    (
        "a bias under an embedding",
        embedding() | {f"{EMBED}.base_layer.bias": ("F32", (6,))},
        EMBEDDED,
        NO_PART,
    ),
    ("a third matrix", pair(Q) | {f"{Q}.lora_C.weight": ("F32", (4, 4))}, PLAIN, NO_PART),
    ("AdaLoRA's vector", pair(Q) | {f"{Q}.lora_E": ("F32", (4, 1))}, PLAIN, NO_PART),
    ("something of a side", pair(Q) | {f"{Q}.lora_A.scale": ("F32", (1,))}, PLAIN, NO_LORA),
    ("a side without its end", pair(Q) | {f"{V}.lora_A": ("F32", (4, 6))}, PLAIN, NO_LORA),
    ("too many names", pair(Q) | {f"{V}.lora_A.one.two.weight": ("F32", (4, 6))}, PLAIN, NO_LORA),
    (
        "an embedding with an end",
        {f"{name}.weight": shape for name, shape in embedding().items()},
        EMBEDDED,
        NO_LORA,
    ),
    ("a pair without a module", pair(""), PLAIN, "is not a dotted module name"),
    (
        "a pair at the top",
        {"lora_A.weight": ("F32", (4, 6)), "lora_B.weight": ("F32", (10, 4))},
        PLAIN,
        "holds no LoRA tensors",
    ),
    (
        "a name with a blank",
        pair("a b.q_proj"),
        PLAIN,
        '"a b.q_proj.lora_A.weight" is not a dotted module name',
    ),
    ("a name with a colon", pair("c:q_proj"), PLAIN, "is not a dotted module name"),
    ("a name of too many parts", pair(".".join("a" * 40)), PLAIN, "is not a dotted module name"),
]


HF: dict[str, Any] = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["v_proj", "q_proj"]}


NAMES_RULE = "a module's name has letters, digits, _ - and dots only"
TEXT_RULE = "must be a string of at most 512 bytes without control characters"


HOSTILE_HF: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "ADALORA"}, "peft_type must be LORA; other methods are not supported"),
    ({"peft_type": "lora"}, "peft_type must be LORA"),
    ({"peft_type": None}, "peft_type must be LORA"),
    ({"peft_type": ["LORA"]}, "peft_type must be LORA"),
    ({"r": None}, "member r is required"),
    ({"r": 0}, "r must be an integer in 1..=4096"),
    ({"r": -8}, "r must be an integer in 1..=4096"),
    ({"r": 4097}, "r must be an integer in 1..=4096"),
    ({"r": 8.0}, "r must be an integer in 1..=4096"),
    ({"r": True}, "r must be an integer in 1..=4096"),
    ({"r": "8"}, "r must be an integer in 1..=4096"),
    ({"lora_alpha": None}, "member lora_alpha is required"),
    ({"lora_alpha": 0}, "lora_alpha must be a number above 0 and at most 1000000"),
    ({"lora_alpha": -1}, "lora_alpha must be a number above 0"),
    ({"lora_alpha": 1e300}, "lora_alpha must be a number above 0"),
    ({"lora_alpha": True}, "lora_alpha must be a number above 0"),
    ({"lora_alpha": "16"}, "lora_alpha must be a number above 0"),
    ({"target_modules": None}, "member target_modules is required"),
    ({"target_modules": []}, "target_modules must be a list of 1..=4096 module names"),
    ({"target_modules": {"q": 1}}, "target_modules must be a list of 1..=4096 module names"),
    ({"target_modules": ["q"] * (MAX_NAMES + 1)}, "target_modules must be a list of 1..=4096 module names"),
    ({"target_modules": "all-linear"}, "target_modules is a pattern, which is not evaluated"),
    (
        {"target_modules": r".*\.(q|v)_proj"},
        "target_modules is a pattern, which is not evaluated; write the list",
    ),
    ({"target_modules": "(a+)+$"}, "target_modules is a pattern, which is not evaluated"),
    ({"target_modules": ["(a+)+$"]}, f'target_modules names "(a+)+$"; {NAMES_RULE}'),
    ({"target_modules": ["q_proj", 7]}, f"target_modules names what is no string; {NAMES_RULE}"),
    ({"target_modules": [""]}, f'target_modules names ""; {NAMES_RULE}'),
    ({"target_modules": ["../../etc"]}, f'target_modules names "../../etc"; {NAMES_RULE}'),
    ({"target_modules": ["a/b"]}, f'target_modules names "a/b"; {NAMES_RULE}'),
    ({"target_modules": ["q_proj\n"]}, f'target_modules names "q_proj\\n"; {NAMES_RULE}'),
    ({"target_modules": ["\u0430"]}, f'target_modules names "\u0430"; {NAMES_RULE}'),
    ({"target_modules": ["a" * 257]}, f'target_modules names "{"a" * 120}\u2026"; {NAMES_RULE}'),
    ({"target_modules": [".".join("a" * 33)]}, "target_modules names"),
    ({"base_model_name_or_path": 7}, f"base_model_name_or_path {TEXT_RULE}"),
    ({"base_model_name_or_path": "a\nb"}, f"base_model_name_or_path {TEXT_RULE}"),
    ({"base_model_name_or_path": "a\0"}, f"base_model_name_or_path {TEXT_RULE}"),
    ({"base_model_name_or_path": "\u00e9" * 257}, f"base_model_name_or_path {TEXT_RULE}"),
    ({"base_model_name_or_path": {"a": 1}}, f"base_model_name_or_path {TEXT_RULE}"),
    ({"revision": ["main"]}, f"revision {TEXT_RULE}"),
    ({"task_type": "causal lm"}, "task_type must be 1..=64 of A-Z, 0-9 and _"),
    ({"use_dora": "yes"}, "use_dora must be true or false"),
    ({"use_rslora": 1}, "use_rslora must be true or false"),
    ({"fan_in_fan_out": []}, "fan_in_fan_out must be true or false"),
    ({"rank_pattern": ["q"]}, "rank_pattern must be an object of at most 4096 module names"),
    ({"rank_pattern": {"q": 0}}, "rank_pattern.q must be an integer in 1..=4096"),
    ({"rank_pattern": {"^model.q$": 4}}, f'rank_pattern names "^model.q$"; {NAMES_RULE}'),
    ({"alpha_pattern": {"q": "4"}}, "alpha_pattern.q must be a number above 0"),
    ({"modules_to_save": "lm_head"}, "modules_to_save is a pattern"),
    ({"modules_to_save": ["*"]}, f'modules_to_save names "*"; {NAMES_RULE}'),
    ({"bias": "all"}, "bias must be none; biases of the base model are not taken over"),
    ({"bias": "lora_only"}, "bias must be none"),
    ({"init_lora_weights": "pissa"}, 'init_lora_weights "pissa" may have changed the base model; convert'),
    ({"init_lora_weights": "pissa_niter_16"}, 'init_lora_weights "pissa_niter_16" may have changed'),
    ({"init_lora_weights": "olora"}, 'init_lora_weights "olora" may have changed'),
    ({"init_lora_weights": 1}, "init_lora_weights of type int may have changed"),
    (
        {"auto_mapping": {"base_model_class": "Model", "parent_library": "evil"}},
        "auto_mapping names code outside of",
    ),
    (
        {"auto_mapping": {"base_model_class": "M", "parent_library": "transformers_modules.x"}},
        "auto_mapping names code",
    ),
    (
        {"auto_mapping": {"base_model_class": "os.system", "parent_library": "transformers"}},
        "auto_mapping names code",
    ),
    (
        {"auto_mapping": {"base_model_class": "M", "parent_library": "transformers", "x": 1}},
        "auto_mapping names code",
    ),
    (
        {"auto_mapping": {"base_model_class": ["M"], "parent_library": "transformers"}},
        "auto_mapping names code",
    ),
    (
        {"auto_mapping": "evil"},
        "auto_mapping names code outside of transformers; save the adapter with a task_type",
    ),
    ({"_custom_modules": {"a": "b"}}, 'member "_custom_modules" is in use and is not supported'),
    ({"megatron_core": "evil.core"}, 'member "megatron_core" is in use and is not supported'),
    ({"megatron_config": {"a": 1}}, 'member "megatron_config" is in use and is not supported'),
    ({"layer_replication": [[0, 4], [2, 6]]}, 'member "layer_replication" is in use'),
    ({"trainable_token_indices": [1]}, 'member "trainable_token_indices" is in use'),
    ({"target_parameters": ["experts.gate"]}, 'member "target_parameters" is in use'),
    ({"alora_invocation_tokens": [1, 2]}, 'member "alora_invocation_tokens" is in use'),
    ({"loftq_config": {"loftq_bits": 4}}, 'member "loftq_config" is in use'),
    ({"use_qalora": True}, 'member "use_qalora" is in use'),
    ({"of_a_later_release": 0}, 'member "of_a_later_release" is in use'),
    ({"a\x1b[2J": 1}, 'member "a\\x1b[2J" is in use'),
]


HOSTILE_LORA_JSON: list[tuple[bytes, str]] = [
    (b"", "lora.json is not valid JSON at character 0"),
    (b"adapter\n", "lora.json is not valid JSON at character 0"),
    (b"\x80\x04\x95", "lora.json is not UTF-8 at byte 0"),
    (b"[8]", "lora.json must be a JSON object"),
    (b"8", "lora.json must be a JSON object"),
    (b'{"rank":8,"rank":9}', "lora.json: member rank appears more than once"),
    (b'{"rank":8,"r\\u0061nk":9}', "lora.json: member rank appears more than once"),
    (b'{"rank":8} {"rank":9}', "lora.json is not valid JSON at character 11: Extra data"),
    (b'{"rank":NaN}', "lora.json: member rank is NaN, which is not JSON"),
    (b'{"alpha":1e999}', "lora.json: member alpha is a number out of range"),
    (b'{"rank":' + b"9" * 5000 + b"}", "lora.json: member rank is an integer outside"),
    (b'{"base_model":"\\ud800"}', "lora.json: member base_model holds a lone surrogate"),
    (b'{"rank":' + b"[" * 50_000, "lora.json nests more than 127 containers"),
    (b'{"rank":8' + b" " * MAX_CONFIG_BYTES + b"}", "lora.json takes 65546 bytes; the limit is 65536"),
    (b"\xef\xbb\xbf{}", "lora.json starts with a byte order mark"),
    (b'{"rank":"8"}', "lora.json: rank must be an integer in 1..=4096"),
    (b'{"Rank":8}', 'lora.json: unknown member "Rank"'),
    (b'{"rank":8,"auto_map":{}}', 'lora.json: unknown member "auto_map"'),
    (b'{"rank":8,"":null}', 'lora.json: unknown member ""'),
    (
        b'{"r":8}',
        'lora.json: unknown member "r"; a Hugging Face configuration belongs into adapter_config.json',
    ),
    (b'{"target_modules":"q"}', "lora.json: target_modules is a pattern, which is not evaluated"),
]
