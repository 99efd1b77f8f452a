"""Writes a model of random weights in llama.cpp's file format (GGUF, version 3).

    random_model.py FILE

Of llama's architecture: 8 layers, 1024 wide, half precision, 180 MiB. Its vocabulary is the
bytes, so it reads any text, and what it says means nothing.
"""
import os
import struct
import sys

LAYERS, WIDTH, INNER, HEADS, HEADS_KV, CONTEXT = 8, 1024, 2816, 16, 8, 16384
F32, F16 = 0, 1  # ggml's types
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9  # GGUF's types of values
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # llama's types of tokens
ALIGN = 32

TOKENS = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), *((f"<0x{i:02X}>", BYTE) for i in range(256)), ("\u2581", NORMAL)]
TOKENS += [(f"<pad{i}>", NORMAL) for i in range(-len(TOKENS) % 64)]


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, x):
    if kind == STRING:
        return string(x)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f"}[kind], x)


def array(kind, values):
    return struct.pack("<IQ", kind, len(values)) + b"".join(value(kind, x) for x in values)


def metadata():
    """Names, types and values as they are written."""
    def row(name, kind, x):
        return string(name) + struct.pack("<I", kind) + (x if kind == ARRAY else value(kind, x))
    return [
        row("general.architecture", STRING, "llama"),
        row("general.name", STRING, "random"),
        row("llama.context_length", UINT32, CONTEXT),
        row("llama.embedding_length", UINT32, WIDTH),
        row("llama.block_count", UINT32, LAYERS),
        row("llama.feed_forward_length", UINT32, INNER),
        row("llama.attention.head_count", UINT32, HEADS),
        row("llama.attention.head_count_kv", UINT32, HEADS_KV),
        row("llama.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
        row("llama.rope.dimension_count", UINT32, WIDTH // HEADS),
        row("llama.vocab_size", UINT32, len(TOKENS)),
        row("tokenizer.ggml.model", STRING, "llama"),
        row("tokenizer.ggml.tokens", ARRAY, array(STRING, [t for t, _ in TOKENS])),
        row("tokenizer.ggml.scores", ARRAY, array(FLOAT32, [0.0] * len(TOKENS))),
        row("tokenizer.ggml.token_type", ARRAY, array(INT32, [kind for _, kind in TOKENS])),
        row("tokenizer.ggml.unknown_token_id", UINT32, 0),
        row("tokenizer.ggml.bos_token_id", UINT32, 1),
        row("tokenizer.ggml.eos_token_id", UINT32, 2),
    ]


def tensors():
    """Names and shapes, the fastest dimension first. Vectors are of single precision."""
    yield "token_embd.weight", (WIDTH, len(TOKENS))
    for i in range(LAYERS):
        kv = WIDTH // HEADS * HEADS_KV
        for name, shape in (("attn_norm", (WIDTH,)), ("attn_q", (WIDTH, WIDTH)), ("attn_k", (WIDTH, kv)), ("attn_v", (WIDTH, kv)),
                            ("attn_output", (WIDTH, WIDTH)), ("ffn_norm", (WIDTH,)), ("ffn_gate", (WIDTH, INNER)),
                            ("ffn_up", (WIDTH, INNER)), ("ffn_down", (INNER, WIDTH))):
            yield f"blk.{i}.{name}.weight", shape
    yield "output_norm.weight", (WIDTH,)
    yield "output.weight", (WIDTH, len(TOKENS))


def data(shape):
    """A vector of ones, or a matrix of random numbers of either sign from 1/64 to 1/32."""
    if len(shape) == 1:
        return struct.pack("<f", 1.0) * shape[0]
    n = shape[0] * shape[1]
    noise = int.from_bytes(os.urandom(2 * n), "little")
    sign_and_fraction, exponent = (int.from_bytes(x * n, "little") for x in (b"\xff\x83", b"\x00\x24"))
    return (noise & sign_and_fraction | exponent).to_bytes(2 * n, "little")


def padding(size):
    return b"\0" * (-size % ALIGN)


def write(path):
    infos, offset = [], 0
    for name, shape in tensors():
        kind, size = (F32, 4) if len(shape) == 1 else (F16, 2)
        infos.append(string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset))
        for n in shape:
            size *= n
        offset += size + len(padding(size))
    rows = metadata()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(rows)) + b"".join(rows) + b"".join(infos)
    with open(path, "wb") as f:
        f.write(head + padding(len(head)))
        for _, shape in tensors():
            part = data(shape)
            f.write(part + padding(len(part)))


if __name__ == "__main__":
    write(sys.argv[1])
