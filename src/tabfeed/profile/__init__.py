"""A profiler for input pipelines: where the time of a training loop goes.

::

    from tabfeed.profile import Profiler

    with Profiler() as prof:
        for batch in prof.watch(loader):     # any loader
            train_step(batch)
    print(prof.report())                     # or prof.save("report.html"), prof.to_json()

`tabfeed.profile.keras`, `tabfeed.profile.lightning` and `tabfeed.profile.fastai` each hold a
`ProfilerCallback` for that framework; nothing else here imports a framework.
"""

from __future__ import annotations

from tabfeed.profile.comparison import Comparison, compare
from tabfeed.profile.profiler import Profiler
from tabfeed.profile.run import Run, load_run
from tabfeed.profile.verdict import Verdict

__all__ = ["Comparison", "Profiler", "Run", "Verdict", "compare", "load_run"]
