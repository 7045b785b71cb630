"""Read partitions, decode them into shuffle blocks, and keep them for later epochs.

A column is decoded into memory that is used again and again, and gathered by the block's
permutation while it is in the processor's cache: a whole row group decoded in one call lands in
fresh memory, and its page faults cost more than a second copy. Between two columns there is as
little Python as can be, since each column drives it out of the cache, where it then costs several
times its usual time. So columns of plain numbers go straight from the file to their place in a
block, those of small row groups side by side.
"""
