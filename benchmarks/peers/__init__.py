"""One adapter file a peer, each peer in the form its own documentation advises.

An adapter holds `CONTENDERS`, a tuple of `benchmarks.harness.contender.Contender`. What it stands
for is imported inside its functions only: the harness reads all adapters, installed or not.

A contender's `open(case)` gets ready, which is timed apart, and returns a function that goes over
the data once and yields, for each batch, how many rows it has and the batch itself: all columns of
the case, as arrays or tensors. It yields from a generator, so that an early end can be cleaned up.
"""
