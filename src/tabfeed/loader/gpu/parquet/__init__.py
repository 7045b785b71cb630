"""Parquet decoded by the GPU itself.

Bytes of files go onto staging buffers as they are (`encoded_blocks`). When a chunk needs a block
they are copied, decompressed by nvCOMP (`nvcomp`), and a Triton kernel writes the values to their
places, one program a page (`unpack`, `page_kernel`). Which pages there are is read from their
headers once, by other processes, and remembered (`encoded_pages`): 560 headers, those of 40 columns
of 250,000 rows, take 3.6 ms, for which the training thread would wait.

That is a handful of calls for several blocks, and memory for what a block is in its file and
decompressed, for a moment only. pylibcudf makes hundreds of driver calls for the same blocks and
takes three times the memory of what it decodes, which in 1 GB leaves room for too little at a time.
So it decodes only what the kernel does not know, other codecs and encodings (`cudf_blocks`), and
Arrow reads blocks with nulls. Columns come in the dtypes of their files, and are cast when rows
become batches (`file_dtypes`): integers of 64 bits have 32 where the footers say that they fit,
and the kernel checks that they do.
"""
