"""Holds the imports of every module to the order of the house.

Each module has a number and stands above or below the torch line. A module imports only modules with a smaller
number, or with the same number from its own package or one that encloses it, as long as no circle arises. A module
above the line imports nothing from below it, whatever the numbers, since env workers must not load torch. Imports
inside functions and under ``TYPE_CHECKING`` count like any other: they too say who knows whom.
"""

from __future__ import annotations

import ast
import fnmatch
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

ABOVE_THE_LINE = {
    "types": 0,
    "tree": 0,
    "config": 0,
    "seeding": 0,
    "presets.*": 0,
    "processes.launch": 1,
    "processes.shared": 1,
    "processes.wake": 1,
    "processes.supervise": 1,
    "processes.preflight": 1,
    "processes.signals": 1,
    "processes.claim": 1,
    "envs.base": 1,
    "envs.own": 1,
    "envs.images": 1,
    "envs.text": 1,
    "envs.spaces": 2,
    "envs.view": 2,
    "vec.base": 1,
    "transport.base": 1,
    "telemetry.*": 1,
    "envs.wrappers": 2,
    "envs.stack": 2,
    "envs.probes": 2,
    "envs.gymnasium": 3,
    "envs.ale": 3,
    "envs.dmlab": 3,
    "envs.vizdoom": 3,
    "envs.dm_control": 3,
    "vec.serial": 3,
    "vec.pool": 3,
    "vec.worker": 3,
    "vec.layout": 3,
    "vec.rows": 3,
    "vec.native": 3,
    "vec.ale": 3.5,  # engines use the adapters of envs
    "vec.envpool": 3.5,
    "vec.gymnasium_vector": 3.5,
    "vec.engines": 3.5,
}
BELOW_THE_LINE = {
    "ops.scan": 1,
    "ops.returns": 1,
    "ops.losses": 1,
    "ops.distributions": 1,
    "ops.running": 1,
    "checkpoint": 1,
    "networks.encoders": 2,
    "networks.text": 2,
    "networks.mlp": 2,
    "networks.conv": 2,
    "networks.resnet": 2,
    "networks.cores": 2,
    "networks.heads": 2,
    "memory.rollout": 2,
    "memory.slots": 2,
    "memory.replay": 2,
    "learning.optimisers": 2,
    "learning.schedules": 2,
    "learning.staging": 2,
    "learning.compiler": 2,
    "networks.agent": 3,
    "transport.shared": 3,
    "transport.local": 3,
    "algorithms.base": 3.5,  # what algorithms and the learner agree on
    "algorithms.ppo": 4,
    "algorithms.impala": 4,
    "algorithms.a2c": 4,
    "learning.learner": 4,
    "acting.numpy_policy": 4,
    "acting.inference": 4,
    "acting.server": 4,
    "acting.remote": 5.5,
    "acting.actor": 5,
    "evaluation": 6,
    "runners.sync": 7,
    "runners.asynchronous": 7,
    "runners.replay": 7,
    "runners.ray": 7,
    "build": 8,
    "decisions": 8.5,  # what the api is made of
    "session": 8.5,
    "policy": 8.5,
    "api": 9,
    "tools.peers.work": 8,  # what they are told
    "tools.*": 9,
    "cli": 10,
    "__main__": 10,
    "": 11,  # `import pronghorn` itself: a façade that loads what is asked for
}

FOREIGN = "tools.peers."
"""Scripts for the interpreters of other libraries, which they import as they like; ours is not installed there."""
OWN_SCRIPT = "tools.peers.pronghorn_ppo"

TORCH = {"torch", "safetensors.torch", "torchvision"}
SIMULATORS = {
    "gymnasium",
    "ale_py",
    "envpool",
    "cv2",
    "vizdoom",
    "dm_control",
    "deepmind_lab",
    "mujoco",
    "pygame",
    "imageio",
}


@dataclass(frozen=True)
class Import:
    """``name`` is the module's full name; ``at_load`` says that loading the importer loads it."""

    name: str
    line: int
    at_load: bool


@dataclass(frozen=True)
class Place:
    number: float
    above: bool


def place(module: str) -> Place:
    """Raises KeyError if the table does not have ``module``, a name without the leading ``pronghorn``."""
    for table, above in ((ABOVE_THE_LINE, True), (BELOW_THE_LINE, False)):
        for pattern, number in table.items():
            if fnmatch.fnmatchcase(module, pattern):
                return Place(number, above)
    raise KeyError(module)


def module_name(path: Path, source: Path) -> str:
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def read_imports(text: str, name: str, is_package: bool, modules: set[str]) -> list[Import]:
    """The imports of a module. ``from a import b`` is an import of ``a.b`` where that is one of ``modules``."""

    def walk(node: ast.AST, at_load: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, at_load) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = node.module or ""
            if node.level:
                package = name.split(".") if is_package else name.split(".")[:-1]
                parent = ".".join([*package[: len(package) - node.level + 1], *filter(None, [parent])])
            for alias in node.names:
                full = f"{parent}.{alias.name}"
                yield Import(full if full in modules | TORCH else parent, node.lineno, at_load)
        elif isinstance(node, ast.If) and ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING":
            for child in node.body:
                yield from walk(child, at_load=False)
            for child in node.orelse:
                yield from walk(child, at_load)
        else:
            inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            for child in ast.iter_child_nodes(node):
                yield from walk(child, at_load and not inside)

    return list(dict.fromkeys(walk(ast.parse(text), at_load=True)))


def within(name: str, roots: set[str]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def encloses(target: str, own: str) -> bool:
    """Whether the package of ``target`` is that of ``own`` or one around it."""
    package = target.split(".")[:-1]
    return own.split(".")[: len(package)] == package


def violations(source: Path) -> list[str]:
    """What breaks the rules in the tree under ``source``, one line each."""
    paths = {module_name(path, source): path for path in sorted((source / "pronghorn").rglob("*.py"))}
    found: list[str] = []
    same_number: dict[str, set[str]] = {}
    for name, path in paths.items():
        own = name.removeprefix("pronghorn").removeprefix(".")
        imports = read_imports(path.read_text(), name, path.stem == "__init__", set(paths))
        try:
            here = place(own)
        except KeyError:
            if path.stem != "__init__":
                found.append(f"{name} is missing from the table")
            elif imports:
                found.append(f"{name}: the __init__ of a package that the table does not name imports nothing")
            continue
        foreign = own.startswith(FOREIGN) and own != OWN_SCRIPT
        for item in imports:
            where = f"{name}:{item.line} imports {item.name}"
            if foreign:
                if within(item.name, {"pronghorn"}):
                    found.append(f"{where}: the interpreters of peers do not have us")
                continue
            if within(item.name, {"ray"}) and own != "runners.ray":
                found.append(f"{where}: only runners.ray may")
            if within(item.name, SIMULATORS) and item.at_load:
                found.append(f"{where} when it is loaded: simulators are imported inside functions")
            if within(item.name, TORCH) and here.above:
                found.append(f"{where}, but stands above the torch line")
            if within(item.name, TORCH) and item.at_load and own in ("", "__main__", "cli"):
                found.append(f"{where} when it is loaded: `pronghorn --help` must not load torch")
            if not within(item.name, {"pronghorn"}) or item.name == name:
                continue
            target = item.name.removeprefix("pronghorn").removeprefix(".")
            try:
                there = place(target)
            except KeyError:
                found.append(f"{where}, which is missing from the table")
                continue
            if here.above and not there.above:
                found.append(f"{where}, but stands above the torch line")
            elif there.number == here.number and encloses(target, own):
                same_number.setdefault(own, set()).add(target)
            elif there.number >= here.number:
                found.append(f"{where}: number {here.number} may not import number {there.number}")
    try:
        graphlib.TopologicalSorter(same_number).prepare()
    except graphlib.CycleError as error:
        found.append(f"modules import each other in a circle: {' ← '.join(error.args[1])}")
    return found


def test_every_import_goes_down() -> None:
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"types": "import numpy"}, None),
        ({"ops.scan": "import torch\nfrom pronghorn import tree", "tree": ""}, None),
        ({"newcomer": ""}, "pronghorn.newcomer is missing from the table"),
        ({"tree": "from pronghorn import envs", "envs.base": ""}, "which is missing from the table"),
        ({"tree": "import pronghorn"}, "stands above the torch line"),
        ({"tree": "import pronghorn.config", "config": ""}, None),
        ({"presets.atari": "from pronghorn import config", "config": ""}, None),
        ({"config": "from pronghorn import presets", "presets.atari": ""}, "missing from the table"),
        ({"config": "from pronghorn.presets import atari", "presets.atari": ""}, "number 0 may not import number 0"),
        ({"ops.scan": "from pronghorn import ops", "ops.losses": ""}, "missing from the table"),
        ({"ops.scan": "from pronghorn import checkpoint", "checkpoint": ""}, None),
        ({"checkpoint": "from pronghorn.ops import scan", "ops.scan": ""}, "number 1 may not import number 1"),
        ({"vec.worker": "if __name__ == '__main__':\n  from pronghorn.vec import worker"}, None),
        ({"envs.base": "from pronghorn.envs import wrappers", "envs.wrappers": ""}, "number 1 may not import number 2"),
        ({"envs.base": "def f():\n  from . import wrappers", "envs.wrappers": ""}, "number 1 may not import number 2"),
        ({"envs.base": "from .wrappers import x", "envs.wrappers": "x = 1"}, "number 1 may not import number 2"),
        ({"envs.base": "from ..vec.base import x", "vec.base": "x = 1"}, "number 1 may not import number 1"),
        ({"types": "from pronghorn import tree", "tree": ""}, None),
        ({"types": "from pronghorn import tree", "tree": "from pronghorn import types"}, "in a circle"),
        ({"vec.pool": "from pronghorn.ops import scan", "ops.scan": ""}, "stands above the torch line"),
        ({"vec.pool": "def f():\n  from torch import nn"}, "stands above the torch line"),
        ({"vec.pool": "from safetensors.torch import save"}, "stands above the torch line"),
        ({"vec.pool": "from safetensors import torch"}, "stands above the torch line"),
        ({"envs.gymnasium": "def f():\n  import gymnasium.vector"}, None),
        ({"envs.gymnasium": "import typing\nif typing.TYPE_CHECKING:\n  import gymnasium"}, None),
        ({"envs.gymnasium": "class A:\n  from gymnasium import make"}, "simulators are imported inside functions"),
        ({"cli": "try:\n  import torch\nexcept ImportError:\n  pass"}, "must not load torch"),
        ({"cli": "def f():\n  import torch"}, None),
        ({"runners.sync": "def f():\n  import ray"}, "only runners.ray may"),
        ({"envs.__init__": "from pronghorn import tree", "tree": ""}, "imports nothing"),
        ({"tools.peers.rllib_ppo": "import gymnasium, ray, torch"}, None),
        ({"tools.peers.rllib_ppo": "from pronghorn import types", "types": ""}, "do not have us"),
        ({"tools.peers.pronghorn_ppo": "from pronghorn import types", "types": ""}, None),
    ],
)
def test_the_rules_catch(tmp_path: Path, files: dict[str, str], complaint: str | None) -> None:
    for name, text in {"__init__": "", **files}.items():
        path = tmp_path / "pronghorn" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    found = violations(tmp_path)
    if complaint is None:
        assert found == []
    else:
        assert len(found) == 1 and complaint in found[0], found


HEAVY = {"torch", "gymnasium", "tensorboard", "matplotlib", "ray"}


@pytest.mark.parametrize(
    "code",
    [
        "import pronghorn",
        "import runpy; sys.argv = ['pronghorn', '--help']; runpy.run_module('pronghorn', run_name='__main__')",
        "import runpy; sys.argv = ['pronghorn', 'train', '--help']; runpy.run_module('pronghorn', run_name='__main__')",
    ],
    ids=["import", "help", "train help"],
)
def test_a_glance_loads_nothing_heavy(code: str) -> None:
    check = f"import atexit, sys\natexit.register(lambda: print('heavy:', *sorted({HEAVY} & sys.modules.keys())))\n"
    result = subprocess.run([sys.executable, "-c", check + code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].strip() == "heavy:"


def test_no_module_above_the_line_loads_torch() -> None:
    """What their third-party imports bring along counts too."""
    names = [module_name(path, SOURCE) for path in sorted((SOURCE / "pronghorn").rglob("*.py"))]
    above = [
        name
        for name in names
        if any(fnmatch.fnmatchcase(name.removeprefix("pronghorn."), pattern) for pattern in ABOVE_THE_LINE)
    ]
    assert len(above) > 10
    code = "import sys\nfor name in sys.argv[1:]: __import__(name)\nprint('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code, *above], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, "False\n"), result.stderr
