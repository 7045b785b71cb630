"""What runs the contenders of `benchmarks/peers` and tells of it.

    contender.py   what a contender is, and the case it is given
    data.py        the one dataset maker
    sums.py        what all its values add up to, and whether that came
    worker.py      the process a contender lives in
    remote.py      that process seen from outside: commands, time limits, its end
    heat.py        a few contenders in turn, round by round
    suites.py      which contenders, on which data
    store.py       heats already run, so that an interrupted run goes on
    summary.py     medians and ratios
    picture.py     the picture
    tables.py      figures as Markdown
    wins.py        where a peer is ahead, and why
    page.py        docs/benchmarks.md
    readme.py      the README's figures

A heat is the unit: its contenders and the reference run in turn, once a round, each in a process of
its own, and every figure is a ratio to the reference in the same round. Running all contenders in
one heat would need the memory of all of them at once.
"""
