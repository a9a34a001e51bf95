"""Writes a language model with the shapes of Llama 3.2 1B and random weights.

    python -m oracle.bench.random_llm OUTPUT.gguf --scheme Q4_K --tokenizer MODEL.gguf

The tokenizer, and so the size of the vocabulary, is that of another GGUF file. Every block is random, so that
compression of the file or of memory pages gains nothing; the scales are those of weights that keep activations near one.
"""

import argparse
import pathlib

import gguf
import numpy

WIDTH = 2048
INNER = 8192
HEADS = 32
SHARED_HEADS = 8

# Standard deviation of weights.
DEVIATION = 0.02


def fp16(values):
    return numpy.asarray(values, "<f2").reshape(-1, 1).view(numpy.uint8)


def scales_of(count, codes, random):
    """Scales of blocks whose codes have this standard deviation."""
    return fp16(DEVIATION / codes * random.uniform(0.7, 1.3, count))


def codes(shape, random):
    return random.integers(0, 256, shape, numpy.uint8)


def q4_0(count, random):
    return [scales_of(count, 4.6, random), codes((count, 16), random)]


def q4_1(count, random):
    scale = random.uniform(0.7, 1.3, count) * DEVIATION / 4.6
    return [fp16(scale), fp16(-7.5 * scale), codes((count, 16), random)]


def q8_0(count, random):
    return [scales_of(count, 74, random), codes((count, 32), random)]


def sixes(count, random):
    """Eight scales and eight equal minima of six bits each, as K schemes pack them."""
    steps = random.integers(32, 64, (count, 8), numpy.uint8)
    low, high = steps[:, :4], steps[:, 4:]
    first = low | (high >> 4) << 6
    return numpy.concatenate([first, first, (high & 15) | (high & 15) << 4], axis=1)


def q4_k(count, random):
    scale = random.uniform(0.7, 1.3, count) * DEVIATION / 4.6 / 48
    return [fp16(scale), fp16(7.5 * scale), sixes(count, random), codes((count, 128), random)]


def q5_k(count, random):
    scale = random.uniform(0.7, 1.3, count) * DEVIATION / 9.2 / 48
    return [fp16(scale), fp16(15.5 * scale), sixes(count, random), codes((count, 160), random)]


def q6_k(count, random):
    steps = random.integers(32, 96, (count, 16), numpy.uint8)
    return [codes((count, 192), random), steps, scales_of(count, 18.5 * 64, random)]


SCHEMES = {"Q4_0": q4_0, "Q4_1": q4_1, "Q8_0": q8_0, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k}


def matrix(scheme, rows, columns, random):
    """The bytes of a matrix, a row for each of its rows."""
    elements, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[scheme]]
    blocks = numpy.concatenate(SCHEMES[scheme](rows * columns // elements, random), axis=1)
    return blocks.reshape(rows, -1)


def copy_tokenizer(path, writer):
    """Copies the tokenizer of a file. Returns the size of its vocabulary."""
    reader = gguf.GGUFReader(path)
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            element = field.types[1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], element)
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def write(output, scheme, head, tokenizer, layers, context):
    random = numpy.random.default_rng(33)
    writer = gguf.GGUFWriter(output, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(SHARED_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    vocabulary = copy_tokenizer(tokenizer, writer)
    writer.add_vocab_size(vocabulary)

    def add(name, scheme, rows, columns):
        kind = gguf.GGMLQuantizationType[scheme]
        writer.add_tensor(f"{name}.weight", matrix(scheme, rows, columns, random), raw_dtype=kind)

    def add_norm(name):
        writer.add_tensor(f"{name}.weight", numpy.ones(WIDTH, numpy.float32))

    add("token_embd", head, vocabulary, WIDTH)
    add_norm("output_norm")
    shared = WIDTH * SHARED_HEADS // HEADS
    for layer in range(layers):
        add_norm(f"blk.{layer}.attn_norm")
        add_norm(f"blk.{layer}.ffn_norm")
        for name, rows, columns in [
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", shared, WIDTH),
            ("attn_v", shared, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", INNER, WIDTH),
            ("ffn_up", INNER, WIDTH),
            ("ffn_down", WIDTH, INNER),
        ]:
            add(f"blk.{layer}.{name}", scheme, rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--scheme", choices=SCHEMES, default="Q4_0")
    parser.add_argument("--head", choices=SCHEMES, default="Q6_K", help="scheme of the embedding, which is also the output head")
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="GGUF file whose tokenizer is copied")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--context", type=int, default=131072)
    arguments = parser.parse_args()
    write(**vars(arguments))


if __name__ == "__main__":
    main()
