"""The checkpoint that the first process of a run has loaded, in all of them."""

from __future__ import annotations

from pathlib import Path

from fastbert.distributed.broadcast import broadcast
from fastbert.distributed.world import World
from fastbert.finetuning.trial_state import State
from fastbert.training.checkpoint import Checkpoint

Loaded = tuple[Checkpoint, State]


def shared_checkpoint(world: World, loaded: Loaded | None) -> Loaded | None:
    """Return the checkpoint that the first process has loaded, with its state, in every process; None if it has none.

    The others need not see the run's folder.
    """
    if world.size == 1:
        return loaded
    last = None if loaded is None else loaded[0]
    described = world.shared(
        world.unique("checkpoint"), lambda: {} if last is None else {"folder": str(last.folder), "state": last.state}
    )
    if not described:
        return None
    model = broadcast(world, world.unique("model"), {} if last is None else last.model)
    optimizer = broadcast(world, world.unique("optimizer"), {} if last is None else last.optimizer)
    state = described["state"]
    return Checkpoint(Path(described["folder"]), model, optimizer, state), State.of(state)
