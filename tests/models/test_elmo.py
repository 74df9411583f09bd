"""ELMo against plain PyTorch with padding, and its characters, files and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import fastbert
from fastbert.benchmarks.training.plain_elmo import PlainElmo, padded_batch, padded_characters
from fastbert.data.next_tokens import next_tokens
from fastbert.errors import CheckpointError, UserError
from fastbert.features.extract import extract, hidden_states
from fastbert.models import registry
from fastbert.models.elmo.characters import PADDING, SENTENCE_BEGIN, WORD_BEGIN, WORD_END, read_characters
from fastbert.models.elmo.config import ElmoConfig
from fastbert.models.elmo.language_model import ForBidirectionalLM
from fastbert.models.elmo.lstm import BiLstmLayer, Steps
from fastbert.models.packed import Packed
from fastbert.packing import PackedBatch
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.words import WordTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Around the 50 characters at which words are cut, in bytes; one and more bytes per character.
WORDS = ["a", "of", "word", "Straße", "日本語", "x" * 43, "x" * 45, "ab" * 23, "y" * 48, "y" * 48 + "z", "ß" * 40, "."]


def config(**changes: object) -> ElmoConfig:
    values = {
        "vocab_size": len(SPECIAL) + len(WORDS), "output_size": 10, "hidden_size": 12, "num_hidden_layers": 2,
        "intermediate_size": 10, "character_embedding_size": 4, "filters": (2, 3, 4, 2, 2), "num_highways": 2,
        "hidden_dropout_prob": 0.0,
    }  # fmt: skip
    return ElmoConfig(**{**values, **changes})  # type: ignore[arg-type]


def make_model(seed: int, **changes: object) -> ForBidirectionalLM:
    model = registry.head_class(config(), "ForBidirectionalLM")(config(**changes))
    model.init_weights(seed)
    model.set_vocabulary(SPECIAL + WORDS)
    with torch.no_grad():  # biases and the padding matter too
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def make_batch(lengths: list[int], seed: int) -> PackedBatch:
    """Random words between [CLS] and [SEP], with the labels of next tokens; the sequences are not sorted."""
    generator = torch.Generator().manual_seed(seed)
    words = [torch.randint(5, len(SPECIAL) + len(WORDS), (n,), generator=generator) for n in lengths]
    rows = [torch.cat((torch.tensor([2]), row, torch.tensor([3]))) for row in words]
    ids = torch.cat(rows)
    cu_seqlens = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0).int()
    labels = {k: torch.from_numpy(v) for k, v in next_tokens(ids.numpy(), cu_seqlens.numpy()).items()}
    return PackedBatch(input_ids=ids, cu_seqlens=cu_seqlens, max_seqlen=max(lengths) + 2, **labels)


@pytest.mark.parametrize("lengths", [[3, 9, 1, 9, 0], [1], [30, 2]], ids=["ragged", "one-word", "two"])
def test_states_losses_and_gradients_equal_a_padded_model(lengths: list[int], seed: int) -> None:
    model, batch = make_model(seed), make_batch(lengths, seed)
    plain = PlainElmo(model)
    ids, sizes = padded_batch(batch)
    characters = padded_characters(model)[ids]
    output = model(batch, output_hidden_states=True)
    inside = torch.arange(ids.shape[1]) < sizes[:, None]
    for state, expected in zip(output.hidden_states, plain.states(characters, sizes), strict=True):
        torch.testing.assert_close(state, expected[inside], rtol=1e-5, atol=1e-5)
    loss = plain(characters, ids, sizes)
    torch.testing.assert_close(output.loss, loss, rtol=1e-5, atol=1e-5)
    assert int(output.mlm_count) == 2 * sum(n + 1 for n in lengths)
    output.loss.backward()
    loss.backward()
    ours = dict(model.named_parameters())
    stem = "elmo.embeddings."
    pairs = {
        f"{stem}character_embeddings.weight": plain.characters.weight,
        f"{stem}projection.weight": plain.projection.weight,
        "lm_head.decoder.weight": plain.decoder.weight,
    }
    for number, module in enumerate(plain.convolutions):
        pairs |= {f"{stem}convolutions.{number}.{name}": p for name, p in module.named_parameters()}
    for number, module in enumerate(plain.highways):
        pairs |= {f"{stem}highways.{number}.dense.{name}": p for name, p in module.named_parameters()}
    for name, parameter in pairs.items():
        torch.testing.assert_close(ours[name].grad, parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
    for direction, layers in enumerate(plain.directions):
        for number, layer in enumerate(layers):
            for name in ("weight_ih", "weight_hh", "weight_hr"):
                expected = layer.get_parameter(f"{name}_l0").grad
                actual = ours[f"elmo.encoder.layer.{number}.{name}"].grad[direction]
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6, msg=name)
            actual = ours[f"elmo.encoder.layer.{number}.bias"].grad[direction]
            torch.testing.assert_close(actual, layer.get_parameter("bias_ih_l0").grad, rtol=1e-4, atol=1e-6)


def test_word_vectors_equal_a_loop_over_windows(seed: int) -> None:
    cnn = make_model(seed).elmo.embeddings
    characters = read_characters(WORDS)
    order = torch.tensor([4, 0, 9, 9, 7])
    vectors = cnn(characters, order)
    for row, word in zip(vectors, order.tolist(), strict=True):
        ids = [WORD_BEGIN, *WORDS[word].encode()[:48], WORD_END]
        ids += [PADDING] * (50 - len(ids))
        table = cnn.character_embeddings.weight
        features = []
        for convolution in cnn.convolutions:
            count, _, width = convolution.weight.shape
            windows = [table[torch.tensor(ids[start : start + width])].T for start in range(50 - width + 1)]
            for number in range(count):
                responses = [(convolution.weight[number] * window).sum() for window in windows]
                features.append(torch.relu(torch.stack(responses).max() + convolution.bias[number]))
        x = torch.stack(features)
        for highway in cnn.highways:
            transformed, gate = highway.dense(x).chunk(2)
            x = torch.sigmoid(gate) * x + (1 - torch.sigmoid(gate)) * torch.relu(transformed)
        torch.testing.assert_close(row, cnn.projection(x), rtol=1e-5, atol=1e-5)


def test_characters_are_bytes_cut_at_48(seed: int) -> None:
    characters = read_characters(["ab", "ß" * 40, "[CLS]", "\ud800"], begin="[CLS]")
    a, b, mark, surrogate = (
        characters.ids[first:end].tolist()
        for first, end in zip(characters.offsets[:-1].tolist(), characters.offsets[1:].tolist(), strict=True)
    )
    assert a == [WORD_BEGIN, ord("a"), ord("b"), WORD_END]
    assert b == [WORD_BEGIN, *("ß" * 24).encode(), WORD_END]
    assert mark == [WORD_BEGIN, SENTENCE_BEGIN, WORD_END]
    assert surrogate == [WORD_BEGIN, ord("?"), WORD_END]
    # A longer word is the same as what is left of it.
    model = make_model(seed).eval()
    (numbers, states), *others = model.elmo.states_of([["y" * 48], ["y" * 60], ["y" * 47]])
    assert not others
    states = states[numbers.argsort()]
    torch.testing.assert_close(states[0], states[1], rtol=1e-5, atol=1e-6)  # two rows of one matmul
    assert not torch.allclose(states[0], states[2], atol=1e-4)


def test_words_as_text_equal_words_by_id(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, lengths = make_model(seed).eval(), [3, 9, 1, 9, 0, 20]
    batch = make_batch(lengths, seed)
    ids = batch.input_ids[(batch.input_ids != 2) & (batch.input_ids != 3)]
    words = [WORDS[index - len(SPECIAL)] for index in ids.tolist()]
    ends = torch.tensor(lengths).cumsum(0).tolist()
    sentences = [words[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    with torch.no_grad():
        expected = torch.stack(model(batch, output_hidden_states=True).hidden_states, dim=1)
    expected = expected[(batch.input_ids != 2) & (batch.input_ids != 3)]
    monkeypatch.setattr("fastbert.models.elmo.model.BATCH_WORDS", 24)
    done: list[float] = []
    for _ in range(2):  # the second time from the vectors that were kept
        batches = list(model.elmo.states_of(sentences, progress=done.append))
        assert len(batches) > 2
        states = torch.empty_like(expected)
        for numbers, values in batches:
            states[numbers] = values
        torch.testing.assert_close(states, expected, rtol=1e-5, atol=1e-5)
    assert done[-1] == 1.0
    with torch.no_grad():
        model.elmo.embeddings.projection.bias += 1.0
    model.train().eval()
    assert not torch.allclose(next(model.elmo.states_of([["word"]]))[1][0, 0], states[words.index("word"), 0])


def test_the_librarys_lstm_agrees(seed: int) -> None:
    """On a GPU cuDNN computes the layers."""
    layer, batch = BiLstmLayer(6, 10, 5), make_batch([4, 1, 7, 7], seed)
    layer.init_weights(torch.Generator().manual_seed(seed))
    steps = Steps.of(batch)
    assert steps.tokens[0].sort().values.tolist() == list(range(batch.num_tokens))
    x = torch.randn(2, batch.num_tokens, 6, requires_grad=True)
    upstream = torch.randn(2, batch.num_tokens, 5)
    weights = [x, *layer.parameters()]
    actual = torch.autograd.grad(layer(x, steps), weights, upstream)
    expected = torch.autograd.grad(layer._by_library(x, steps), weights, upstream)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_dropout_depends_on_the_key_of_a_sentence_alone(seed: int) -> None:
    model = make_model(seed, hidden_dropout_prob=0.5).train()
    batch = replace(make_batch([4, 9], seed), dropout_key=torch.tensor([5, 6]))
    both = model(batch, output_hidden_states=True).hidden_states
    alone = model(batch[1], output_hidden_states=True).hidden_states
    for all_states, states in zip(both, alone, strict=True):
        torch.testing.assert_close(all_states[6:], states, rtol=1e-5, atol=1e-5)
    other = model(replace(batch, dropout_key=torch.tensor([5, 7])), output_hidden_states=True).hidden_states
    assert torch.equal(both[-1][:6], other[-1][:6])
    assert not torch.equal(both[-1][6:], other[-1][6:])


def test_folders_are_saved_and_loaded(seed: int, tmp_path: Path) -> None:
    model, batch = make_model(seed).eval(), make_batch([4, 9], seed)
    model.save_pretrained(tmp_path)
    loaded = fastbert.load(tmp_path)
    assert type(loaded).__name__ == "ElmoForBidirectionalLM"
    assert loaded.config == model.config
    loaded.set_vocabulary(SPECIAL + WORDS)
    with torch.no_grad():
        assert torch.equal(loaded(batch).loss, model(batch).loss)
    encoder = registry.load_encoder(tmp_path)
    assert type(encoder).__name__ == "ElmoModel"
    a, b = (next(m.states_of([["any", "words"]]))[1] for m in (encoder, model.elmo))
    assert torch.equal(a, b)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["elmo.encoder.layer.1.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks weights of the encoder: encoder\.layer\.1\.bias"):
        fastbert.load(tmp_path, verify=False)


def test_errors_name_the_value_and_the_cure(seed: int) -> None:
    model, batch = make_model(seed), make_batch([4], seed)
    fresh = registry.head_class(config(), "ForBidirectionalLM")(config())
    wrong = replace(batch, input_ids=batch.input_ids + 20)
    far = replace(batch, input_ids=batch.input_ids + (1 << 30))
    for call, message in (
        (lambda: read_characters(["a", ""]), r"words\[1\] is empty"),
        (lambda: read_characters(["a", 3]), r"words\[1\] must be a string, not int"),  # type: ignore[list-item]
        (lambda: fresh(far), "outside the table of this process .* call set_vocabulary"),
        (lambda: fresh.set_vocabulary(["a"]), "has 1 words, but the model's vocab_size=17"),
        (lambda: model(wrong), "outside the model's vocabulary of 17 words"),
        (lambda: model(batch.input_ids), "not Tensor"),
        (lambda: list(model.train().elmo.states_of([["a"]])), r"call eval\(\) first"),
        (lambda: list(model.eval().elmo.states_of([["a"], ["b", ""]])), "is empty"),
        (lambda: model.elmo.encode(batch, inputs_embeds=torch.zeros(6, 12)), "inputs_embeds are not supported"),
        (lambda: config(hidden_size=13), "hidden_size=13 must be even"),
        (lambda: config(output_size=99), "output_size=99 must be above unk_token_id=1 and at most vocab_size=17"),
        (lambda: config(filters=()), r"filters=\(\) must be 1 to 50 numbers"),
        (lambda: config(filters=(0,)), "filters=0 must be a positive integer"),
        (lambda: ElmoConfig.preset("huge"), "unknown model size 'huge'"),
    ):
        with pytest.raises(UserError, match=message):
            call()
    assert list(model.eval().elmo.states_of([[], []])) == []


def test_presets_have_the_published_size() -> None:
    # Peters et al. 2018: 93.6 million parameters without the softmax.
    assert abs(ElmoConfig.preset("base").num_parameters() - 93.6e6) < 0.1e6
    tiny = ElmoConfig.preset("tiny", vocab_size=3000)
    assert tiny.output_size == 3000
    model = registry.head_class(tiny, "ForBidirectionalLM")(tiny)
    assert sum(p.numel() for p in model.parameters()) == tiny.num_parameters(heads=True)
    assert ElmoConfig.from_dict(tiny.to_dict()) == tiny


def task_config(**changes: object) -> ElmoConfig:
    return config(num_labels=3, **changes)


@pytest.mark.parametrize("bilstm_size", [None, 8], ids=["mix", "bilstm"])
def test_heads_read_a_learned_mix_of_frozen_layers(bilstm_size: int | None, seed: int, tmp_path: Path) -> None:
    make_model(seed).save_pretrained(tmp_path)
    tokenizer = WordTokenizer(SPECIAL + WORDS, do_lower_case=False, split_special_tokens=True)
    batch = tokenizer.pack(["a word of unseenwords .", "word"], max_length=None)
    kind = registry.head_class(task_config(), "ForTokenClassification")
    model = kind.from_pretrained(tmp_path, num_labels=3, bilstm_size=bilstm_size)
    assert {"elmo.mix.weights", "elmo.mix.gamma"} < set(model.new_weights)
    with torch.no_grad():
        model.elmo.mix.weights.copy_(torch.tensor([0.3, -1.0, 0.5]))
        model.elmo.mix.gamma.fill_(1.7)
        _, states = model.elmo.encode(batch, output_hidden_states=True)
        share = torch.tensor([0.3, -1.0, 0.5]).softmax(0)
        x = 1.7 * sum(s * state for s, state in zip(share, states, strict=True))
        if bilstm_size is not None:  # [h; ELMo'] over [x; ELMo]; the weights of ELMo' are still equal
            characters = states[0].chunk(2, dim=1)
            assert torch.equal(*characters)
            h = model.bilstm(torch.cat((characters[0], x), dim=1), batch)
            x = torch.cat((h, torch.stack(states).mean(0)), dim=1)
            chosen = torch.tensor([3, 0])
            torch.testing.assert_close(
                model._encode(Packed(batch, None, None, None, None), chosen, False)[0], x[chosen]
            )
        torch.testing.assert_close(model(batch).logits, model.classifier(x))
    labels = torch.arange(batch.num_tokens) % 3
    model.train()(batch, labels=labels).loss.backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {name for name, _ in model.named_parameters() if not name.startswith(("elmo.em", "elmo.enc"))}
    # Vectors that are kept for inference are those of a batch.
    with torch.no_grad():
        model.eval()
        kept = [model.elmo.encode(batch)[0] for _ in range(2)]
    assert torch.equal(kept[0], kept[1])
    torch.testing.assert_close(model.elmo.encode(batch)[0], kept[0])
    model.save_pretrained(tmp_path / "tagger")
    with torch.no_grad():
        assert torch.equal(fastbert.load(tmp_path / "tagger")(batch).logits, model(batch).logits)


def test_features_are_the_states_of_any_word(seed: int, tmp_path: Path) -> None:
    model = make_model(seed)
    model.save_pretrained(tmp_path)
    WordPieceTokenizer(SPECIAL + WORDS, do_lower_case=False, split_special_tokens=True).save_pretrained(tmp_path)
    tokenizer, encoder = load_tokenizer(tmp_path), registry.load_encoder(tmp_path)
    texts = ["a word of nowhere .", "", "Straße [CLS]"]
    features = extract(encoder, tokenizer, texts, (0, 1, 2))
    assert features.items == ("a", "word", "of", "nowhere", ".", "Straße", "[", "CLS", "]")
    sentences = [["a", "word", "of", "nowhere", "."], [], ["Straße", "[", "CLS", "]"]]
    expected = torch.empty(9, 3, 12)
    for numbers, states in encoder.states_of(sentences):
        expected[numbers] = states
    torch.testing.assert_close(features.values, expected.flatten(1), rtol=1e-5, atol=1e-5)
    assert encoder.embed(["a word", "nowhere"], tokenizer).shape == (2, 12)
    hidden = hidden_states(encoder, tokenizer, sentences, dtype=torch.float32).values
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(hidden[3, 0], hidden[7, 0], atol=1e-3)  # two words that the vocabulary lacks
