"""Imports MosaicML streaming without torchvision.

Its package imports torchvision for image datasets, which tables do not need, and torchvision must
match torch's build to the digit. Two empty stand-ins are enough for the import.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def _stand_in(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(names)
    return module


_MODULES = {
    "torchvision": _stand_in("torchvision", __version__="0"),
    "torchvision.datasets": _stand_in("torchvision.datasets", VisionDataset=object, CIFAR10=object),
    "torchvision.transforms": _stand_in("torchvision.transforms"),
    "torchvision.transforms.functional": _stand_in(
        "torchvision.transforms.functional", to_tensor=None
    ),
}

sys.modules.update(_MODULES)
try:
    import streaming  # noqa: F401
finally:
    for _name in _MODULES:
        del sys.modules[_name]
