"""Graphs of a model's calls: replays equal to the model, when they are made anew, and what is said of them."""

import contextlib
import logging
from dataclasses import replace

import pytest
import torch
from graphed_models import CONFIG, SMALL, batch_of, made
from rerunning import Rerun
from torch import nn

from fastbert import BertForSequenceClassification, BertForTokenClassification, BertModel, PackedBatch
from fastbert.errors import UserError
from fastbert.graphs import Bucket, Buckets, CaptureError, CudaRecorder, GraphedModel, graphed
from fastbert.models import BertForMultipleChoice, BertForPreTraining, BertForQuestionAnswering
from fastbert.models.base import PreTrainedModel


@pytest.fixture
def model(seed: int) -> BertModel:
    return made(BertModel, seed)


@pytest.fixture
def recorder() -> Rerun:
    return Rerun()


# Replays


@pytest.mark.parametrize(
    "kind",
    [
        BertModel,
        BertForSequenceClassification,
        BertForTokenClassification,
        BertForQuestionAnswering,
        BertForPreTraining,
    ],
)
def test_replays_equal_the_model(kind: type[PreTrainedModel], seed: int, recorder: Rerun) -> None:
    model = made(kind, seed)
    fast = GraphedModel(model, SMALL, recorder=recorder)
    batches = [batch_of(5, 9, draw=seed), batch_of(12), batch_of(3, 8, 1), batch_of(33, 60), batch_of(2, 9)]
    with torch.no_grad():
        for batch in batches:
            expected, actual = model(batch), fast(batch)
            assert type(actual) is type(expected)
            assert actual.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(actual[name], value, rtol=0, atol=2e-6)
    assert (recorder.captures, recorder.replays) == (3, 2)
    assert [(use.how, use.calls, use.replays) for use in fast.report()] == [("graph", 3, 2), *[("graph", 1, 0)] * 2]


def test_a_batch_that_fills_its_bucket_gives_the_same_bits(model: BertModel, recorder: Rerun) -> None:
    exact = Buckets(tokens=1, sequences=1, per_doubling=2**20, shortest=1)
    fast = GraphedModel(model, exact, recorder=recorder)
    with torch.no_grad():
        for draw in range(3):
            batch = batch_of(8, 24, draw=draw)
            assert torch.equal(fast(batch).last_hidden_state, model(batch).last_hidden_state)
    assert recorder.replays == 2


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0), (0, 3, 0)], ids=str)
def test_batches_with_few_or_no_tokens(seed: int, recorder: Rerun, lengths: tuple[int, ...]) -> None:
    model, batch = made(BertForPreTraining, seed), batch_of(*lengths)
    fast = GraphedModel(model, SMALL, recorder=recorder)
    with torch.no_grad():
        for _ in range(2):
            expected, actual = model(batch), fast(batch)
            assert actual.seq_relationship_logits.shape == expected.seq_relationship_logits.shape == (len(lengths), 2)
            torch.testing.assert_close(actual.prediction_logits, expected.prediction_logits, rtol=0, atol=2e-6)
    assert recorder.replays == 1


def test_lengths_may_be_bounds_beyond_the_position_table(seed: int, recorder: Rerun) -> None:
    model, batch = made(BertModel, seed), batch_of(40, 30)
    fast = GraphedModel(model, Buckets(tokens=512), recorder=recorder)
    with torch.no_grad():
        actual = fast(replace(batch, max_seqlen=1000)).last_hidden_state
        torch.testing.assert_close(actual, model(batch).last_hidden_state, rtol=0, atol=2e-6)


def test_padded_input_comes_back_padded(model: BertModel, recorder: Rerun) -> None:
    fast = GraphedModel(model, SMALL, recorder=recorder)
    ids = torch.arange(24).view(3, 8)
    mask = torch.tensor([[1] * 8, [0, 0, 1, 1, 1, 1, 1, 1], [1] * 5 + [0] * 3])
    with torch.no_grad():
        for _ in range(2):
            expected, actual = model(ids, mask), fast(input_ids=ids, attention_mask=mask)
            torch.testing.assert_close(actual.last_hidden_state, expected.last_hidden_state, rtol=0, atol=2e-6)
            torch.testing.assert_close(actual.pooler_output, expected.pooler_output, rtol=0, atol=2e-6)
    assert recorder.replays == 1


def test_clones_outlive_the_next_call_and_views_do_not(model: BertModel) -> None:
    first, second = batch_of(5, 9), batch_of(6, 8)
    for copy in (True, False):
        fast = GraphedModel(model, SMALL, copy=copy, recorder=Rerun())
        with torch.no_grad():
            fast(first)
            kept = fast(first).last_hidden_state
            before = kept.clone()
            fast(second)
        assert torch.equal(kept, before) == copy


def test_results_do_not_hang_on_what_the_buffers_held(model: BertModel, recorder: Rerun) -> None:
    """A short batch after a long one leaves nothing of it in the buffers."""
    fast = GraphedModel(model, SMALL, recorder=recorder)
    with torch.no_grad():
        short = fast(batch_of(3, 4, draw=1)).last_hidden_state
        fast(batch_of(5, 11))
        assert torch.equal(fast(batch_of(3, 4, draw=1)).last_hidden_state, short)
    assert recorder.captures == 1


def test_inference_mode_is_served(model: BertModel, recorder: Rerun) -> None:
    fast = GraphedModel(model, SMALL, recorder=recorder)
    batch = batch_of(4, 6)
    with torch.inference_mode():
        results = [fast(batch_of(4, 6)).last_hidden_state for _ in range(2)]
    with torch.no_grad():
        torch.testing.assert_close(fast(batch).last_hidden_state, results[1], rtol=0, atol=0)
    assert recorder.captures == 1


def test_autocast_is_recorded_apart(model: BertModel, recorder: Rerun) -> None:
    fast = GraphedModel(model, SMALL, recorder=recorder)
    batch = batch_of(4, 6)
    with torch.no_grad():
        full = fast(batch).last_hidden_state
        with torch.autocast("cpu", torch.bfloat16):
            half, again = fast(batch).last_hidden_state, fast(batch).last_hidden_state
            expected = model(batch).last_hidden_state
    assert (full.dtype, half.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(half, expected, rtol=0, atol=0.1)
    assert torch.equal(half, again)
    assert recorder.captures == 2


# When graphs are made anew


def test_the_least_recently_used_graph_goes(model: BertModel, recorder: Rerun) -> None:
    fast = GraphedModel(model, SMALL, limit=2, recorder=recorder)
    small, middle, large = batch_of(10), batch_of(30), batch_of(60)
    with torch.no_grad():
        for batch in (small, middle, small, large, small):
            fast(batch)
        assert recorder.captures == 3
        fast(middle)
    assert recorder.captures == 4


def test_changed_weights_are_seen_and_moved_ones_are_recorded_anew(model: BertModel, recorder: Rerun) -> None:
    fast, batch = GraphedModel(model, SMALL, recorder=recorder), batch_of(4, 9)

    def check(captures: int) -> None:
        with torch.no_grad():
            expected = model(batch).last_hidden_state
            torch.testing.assert_close(fast(batch).last_hidden_state, expected, rtol=0, atol=2e-6)
        assert recorder.captures == captures

    check(1)
    model.load_state_dict({name: 1.1 * value for name, value in model.state_dict().items()})
    check(1)
    model.to(torch.float64).to(torch.float32)
    check(2)
    assert recorder.forgotten == 1
    model.embeddings.word_embeddings.weight = nn.Parameter(torch.randn(CONFIG.vocab_size, CONFIG.hidden_size))
    check(3)
    model.encoder.layer = nn.ModuleList(list(model.encoder.layer)[:1])
    check(4)
    check(4)


# When there is none


def test_without_a_gpu_the_model_runs_and_the_report_says_why(model: BertModel) -> None:
    fast, batch = graphed(model), batch_of(4, 9)
    with torch.no_grad():
        assert torch.equal(fast(batch).last_hidden_state, model(batch).last_hidden_state)
        padded = batch.unpack()
        assert fast(padded["input_ids"], padded["attention_mask"]).last_hidden_state.shape == (2, 9, 64)
    (use,) = fast.report()
    assert (use.how, use.calls, use.replays) == ("eager", 2, 0)
    assert "no CUDA graphs on a device of type cpu" in str(use)
    assert use.bucket == Bucket(tokens=64, sequences=8, masked=None, max_seqlen=16)


def test_training_and_gradients_run_eagerly(model: BertModel, recorder: Rerun) -> None:
    fast, batch = GraphedModel(model, SMALL, recorder=recorder), batch_of(4, 9)
    assert fast(batch).last_hidden_state.requires_grad
    with torch.no_grad():
        model.train()
        fast(batch)
        model.eval()
        fast(batch)
    assert [use.how for use in fast.report()] == ["eager", "eager", "graph"]
    assert "call it under torch.no_grad()" in fast.report()[0].reason
    assert "call model.eval() first" in fast.report()[1].reason
    assert recorder.captures == 1


def test_a_failed_capture_is_said_once_and_the_model_runs(model: BertModel, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Rerun(failing="operation not permitted when stream is capturing")
    fast = GraphedModel(model, SMALL, recorder=recorder)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "fastbert"):
        for lengths in ((4, 9), (4, 9), (40,)):
            batch = batch_of(*lengths)
            expected = model(batch).last_hidden_state
            torch.testing.assert_close(fast(batch).last_hidden_state, expected, rtol=0, atol=2e-6)
    assert [record.message for record in caplog.records] == [
        "no CUDA graphs, kernels are launched one by one: the capture failed: operation not permitted when stream is"
        " capturing"
    ]
    assert recorder.captures == 1
    assert {use.how for use in fast.report()} == {"eager"}


@pytest.mark.parametrize("ended", [False, True], ids=["broken", "ended"])
@pytest.mark.parametrize("cause", [RuntimeError("it waits"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_broken_capture_is_over_for_the_allocator(
    monkeypatch: pytest.MonkeyPatch, cause: BaseException, ended: bool
) -> None:
    """As torch leaves it: ending a broken capture raises, and the allocator goes on recording into the pool."""
    calls = []

    class Graph:
        def reset(self) -> None:
            calls.append("reset")

    class Broken(contextlib.nullcontext):
        def __exit__(self, *error: object) -> None:
            raise RuntimeError("operation failed due to a previous error during capture")

    def end(*arguments: object) -> None:
        if ended:
            raise RuntimeError("not currently recording to mempool_id")
        calls.append(("end", *arguments))

    def raises() -> None:
        raise cause

    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *arguments, **named: Broken())
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_releasePool", lambda *arguments: calls.append(("release", *arguments)), raising=False
    )
    recorder = CudaRecorder.__new__(CudaRecorder)
    recorder.device, recorder.stream, recorder.pool = torch.device("cuda", 1), None, (0, 7)
    with pytest.raises(KeyboardInterrupt if isinstance(cause, KeyboardInterrupt) else CaptureError) as error:
        recorder.capture(raises)
    assert str(error.value) == str(cause)
    told = [] if ended else [("end", 1, (0, 7)), ("release", 1, (0, 7))]
    assert calls == ["reset", *told]


def test_errors_of_the_model_itself_are_not_swallowed(model: BertModel, recorder: Rerun) -> None:
    fast, batch = GraphedModel(model, SMALL, recorder=recorder), batch_of(4, 9)
    batch.input_ids[3] = CONFIG.vocab_size
    with torch.no_grad(), pytest.raises(UserError, match=f"input_ids holds {CONFIG.vocab_size}"):
        fast(batch)
    assert recorder.captures == 0


def test_what_has_other_rows_is_refused(seed: int, recorder: Rerun) -> None:
    class Choices(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = made(BertForMultipleChoice, seed)

        def forward(self, batch: PackedBatch):
            return self.model(batch, num_choices=2)

    with torch.no_grad(), pytest.raises(UserError, match="logits of LogitsOutput has 2 rows, neither one per token"):
        GraphedModel(Choices().eval(), SMALL, recorder=recorder)(batch_of(4, 9))
    with torch.no_grad(), pytest.raises(UserError, match="the model returns Tensor"):
        GraphedModel(Flat(), SMALL, recorder=recorder)(batch_of(4, 9))
    with pytest.raises(UserError, match="limit=0 must be at least 1"):
        graphed(Flat(), limit=0)


class Flat(nn.Linear):
    """A module that returns a tensor."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.eval()

    def forward(self, batch: PackedBatch) -> torch.Tensor:
        return batch.input_ids.float()[:, None] @ self.weight


# On a GPU


gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("kind", [BertModel, BertForSequenceClassification])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
class TestOnAGpu:
    pytestmark = gpu

    def test_replays_equal_the_filled_batch_bit_for_bit(self, kind, dtype, seed: int) -> None:
        model = made(kind, seed).to("cuda", dtype)
        fast = graphed(model)
        with torch.no_grad():
            for draw in range(4):
                batch = batch_of(5, 40, 7 + draw, device="cuda", draw=draw)
                filled = fast.buckets.of(batch).fill(batch)
                for (name, value), other in zip(fast(batch).items(), model(filled).to_tuple()):
                    assert torch.equal(value, other[: len(value)]), name
        (use,) = fast.report()
        assert (use.how, use.calls, use.replays) == ("graph", 4, 3), use

    def test_a_replay_does_not_wait(self, kind, dtype, seed: int) -> None:
        fast = graphed(made(kind, seed).to("cuda", dtype))
        batch = batch_of(5, 40, device="cuda")
        with torch.no_grad():
            fast(batch)
            torch.cuda.set_sync_debug_mode("error")
            try:
                fast(batch)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        assert fast.report()[0].replays == 1

    def test_graphs_share_memory(self, kind, dtype, seed: int) -> None:
        fast = graphed(made(kind, seed).to("cuda", dtype))
        with torch.no_grad():
            fast(batch_of(*[100] * 200, device="cuda"))
            one = torch.cuda.memory_reserved()
            for count in (180, 160, 140, 120):
                fast(batch_of(*[100] * count, device="cuda"))
        assert len(fast.report()) == 5
        assert torch.cuda.memory_reserved() < 2 * one


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_capture_that_waits_fails_and_the_model_runs(caplog: pytest.LogCaptureFixture) -> None:
    class Waits(BertModel):
        def forward(self, batch):
            output = super().forward(batch)
            output.last_hidden_state.sum().item()
            return output

    model = Waits(CONFIG).eval().to("cuda")
    fast = graphed(model)
    stream = torch.cuda.current_stream()
    with torch.no_grad(), caplog.at_level(logging.WARNING, "fastbert"):
        for _ in range(2):
            assert fast(batch_of(4, 9, device="cuda")).last_hidden_state.isfinite().all()
    assert torch.cuda.current_stream() == stream
    assert len(caplog.records) == 1
    assert [use.how for use in fast.report()] == ["eager"]
    # Nothing of it is left to others: cached memory is freed, random numbers are drawn, models are recorded.
    torch.cuda.empty_cache()
    assert torch.rand(3, device="cuda").isfinite().all()
    other = graphed(BertModel(CONFIG).eval().to("cuda"))
    with torch.no_grad():
        other(batch_of(4, 9, device="cuda"))
    assert [use.how for use in other.report()] == ["graph"]
