"""Launch every kernel of a training step once on a GPU, to learn which of them do not compile there."""

from __future__ import annotations

import logging

import torch

from fastbert.config import BertConfig
from fastbert.errors import KernelError
from fastbert.models import BertForPreTraining
from fastbert.ops import kernel_failures
from fastbert.ops.kernel_failures import until_compiled
from fastbert.packing import PackedBatch

# As wide as the kernels of base models; everything else is small.
WIDTH, HEADS, LENGTHS = 768, 12, (7, 40, 200)


def failures(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """Return a line for each kernel that does not compile, of a step and an inference with matmuls in `dtype`.

    Takes the compiler's time on its first call, seconds to a minute; compiled kernels are cached on disk.
    """
    config = BertConfig(
        vocab_size=1024,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_hidden_layers=1,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=max(LENGTHS),
    )
    model = BertForPreTraining(config).to(device)
    model.init_weights(seed=0)
    level = logging.getLogger("fastbert").level
    logging.getLogger("fastbert").setLevel(logging.ERROR)  # the caller prints the lines
    try:
        for lengths in (LENGTHS, LENGTHS[:1]):
            batch = _batch(lengths).to(device)
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                until_compiled(lambda batch=batch: _step(model, batch), model.zero_grad)  # type: ignore[misc]
    except KernelError as error:
        return tuple(dict.fromkeys((*kernel_failures.report(), str(error))))
    finally:
        logging.getLogger("fastbert").setLevel(level)
    return kernel_failures.report()


def _step(model: BertForPreTraining, batch: PackedBatch) -> None:
    """Run forward and backward with dropout, and forward without gradients."""
    model.train()
    loss = model(batch).mlm_loss_sum
    assert loss is not None
    loss.backward()
    with torch.no_grad():
        model.eval()(batch)


def _batch(lengths: tuple[int, ...]) -> PackedBatch:
    tokens = sum(lengths)
    masked = torch.arange(1, tokens, 5)
    return PackedBatch(
        input_ids=torch.arange(tokens) % 1024,
        cu_seqlens=torch.tensor((0, *lengths)).cumsum(0).int(),
        max_seqlen=max(lengths),
        dropout_key=torch.arange(len(lengths)),
        masked_positions=masked,
        labels=masked % 1024,
        next_sentence_label=torch.zeros(len(lengths), dtype=torch.int64),
    )
