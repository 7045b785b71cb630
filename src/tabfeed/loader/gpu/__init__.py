"""Batches made on a GPU; imported only where a GPU is used.

How a batch is made
-------------------
Threads read blocks, have them copied to the GPU in file order, and draw their permutations
(`staging`). A chunk is gathered there from several blocks in one call for each dtype, by lists of
row numbers that are made of these permutations on the CPU (`gather`, `buffers`). All of it runs on
streams beside the model's. The training thread itself queues the gathering, a chunk ahead, and
makes its own stream wait for the event behind it when it takes the first batch (`delivery`). Before
it queues another chunk it waits until the model has come to the latest one, so that a program which
launches its steps far ahead holds no more memory than any other.

Why few calls
-------------
Every call of torch or CUDA releases the interpreter and has to get it back from whichever thread
has it. Where Python is slow, releasing it a score of times for each block cost a fifth of the rate.
So what threads do with many small tensors is one scripted function (`tabfeed.loader.tensors`), and
chunks are larger than on the CPU.

Who decodes
-----------
``reader="arrow"`` decodes on the CPU: in threads, or, with more than four cores, in processes of
their own, which write into staging buffers that this process shares with them and the GPU copies
from. Threads would queue for the interpreter that the training loop needs. ``reader="cudf"``
decodes on the GPU (`parquet`). ``reader="auto"`` compares training steps and keeps what is faster
(`auto_choice`, `auto_reader`). ``cache="device"`` keeps all rows on the GPU (`resident`).

When memory runs out
--------------------
`memory_plan` divides what the loader may have on the GPU. If the model needs more than before, or a
newer iterator owns the GPU memory, a loader goes on with the same rows, made in host memory and
copied (`pipeline`). A state of another number of ranks or streams needs other memory, which is
divided anew when it is loaded.
"""
