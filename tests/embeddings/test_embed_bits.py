"""The same text has the same embedding, bit for bit, alone or among others, however batches are cut."""

import random
from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from embedding import random_texts, small_model, small_tokenizer

from fastbert import BertModel, use_backend
from fastbert.ops import dispatch
from fastbert.ops.native import matmul_table

TEXTS = 40


@pytest.fixture(params=cpu_kernels.HERE)
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    with cpu_kernels.running(request.param):
        yield request.param


def of_kind(model: BertModel, kind: str) -> BertModel:
    if kind == "int8":
        return model.quantize("int8")
    return model.to(torch.bfloat16) if kind == "bf16" else model


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_bits_do_not_depend_on_the_batch(kernel: str, kind: str, seed: int, threads: None) -> None:
    model, tokenizer = of_kind(small_model(seed), kind), small_tokenizer()
    texts = random_texts(seed, TEXTS)
    rng = random.Random(seed)
    # Floats in plain C++ are torch's, unless they are asked for.
    with use_backend("native" if kernel == "portable" and kind != "int8" else None):
        for pooling, long in (("mean", "truncate"), ("mean", "windows"), ("max", "windows"), ("cls", "windows")):
            options = {"pooling": pooling, "long": long, "normalize": pooling == "mean"}
            whole = model.embed(texts, tokenizer, **options)
            for batch_tokens, count in ((1, 1), (100, 2), (333, 1), (10_000, 2)):
                torch.set_num_threads(count)
                chosen = rng.sample(range(TEXTS), rng.randint(2, TEXTS))
                result = model.embed([texts[i] for i in chosen], tokenizer, batch_tokens=batch_tokens, **options)
                torch.testing.assert_close(result, whole[chosen], rtol=0, atol=0)
            for i in rng.sample(range(TEXTS), 4):
                alone = model.embed([texts[i]], tokenizer, **options)[0]
                torch.testing.assert_close(alone, whole[i], rtol=0, atol=0)


def test_a_saved_table_that_prefers_the_library_for_some_rows_changes_no_bits(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "avx2" not in cpu_kernels.HERE:
        pytest.skip("on this processor the library multiplies floats")
    model, tokenizer, texts = small_model(seed), small_tokenizer(), random_texts(seed, TEXTS)
    before = model.embed(texts, tokenizer)
    monkeypatch.setattr(matmul_table, "_prefers_native", lambda element, kind, *shape: kind != "rows<=64")
    monkeypatch.setattr(matmul_table, "_prefers_native_layer", lambda element, kind, *shape: kind != "rows<=64")
    torch.testing.assert_close(model.embed(texts, tokenizer, batch_tokens=50), before, rtol=0, atol=0)


def test_products_are_ours_inside_alone_and_on_this_thread_alone(kernel: str) -> None:
    outside = matmul_table.prefers_native("fp32", 7, 32, 32), matmul_table.prefers_native_layer("fp32", 7, 32, 72)
    with matmul_table.same_in_every_batch():
        inside = matmul_table.prefers_native("fp32", 7, 32, 32), matmul_table.prefers_native_layer("fp32", 7, 32, 72)
        assert matmul_table.prefers_native("int8", 7, 32, 32)
        assert dispatch.forced() is None
    assert inside == ((kernel != "portable"),) * 2
    assert outside == (
        matmul_table.prefers_native("fp32", 7, 32, 32),
        matmul_table.prefers_native_layer("fp32", 7, 32, 72),
    )


def test_hidden_layers_with_hooks_keep_their_bits_too(seed: int) -> None:
    """A layer that is put together from single operations uses the native matmuls as well."""
    model, tokenizer, texts = small_model(seed), small_tokenizer(), random_texts(seed, TEXTS)
    model.encoder.layer[1].attention.register_forward_hook(lambda *_: None)
    with cpu_kernels.running("avx2"):
        whole = model.embed(texts, tokenizer)
        result = torch.cat([model.embed([text], tokenizer) for text in texts])
    torch.testing.assert_close(result, whole, rtol=0, atol=0)
