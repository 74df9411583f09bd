"""Watchdogs of a run: decisions about its losses, its data, its disk and its memory, as pure functions of numbers.

Nothing here stops a run or changes a weight. Each watchdog is given numbers by the loop and answers with a message or a
decision: `plateau` (stuck at word frequencies), `spikes` (a loss far above those before), `data_stalls` (time waited
for batches), `disk_space` (room for the next checkpoint) and `host_memory` (resident memory against its limits).
"""
