"""The commands: parses, and imports what a command needs when it runs.

The options of ``train`` are the fields of ``RunConfig``, their docstrings the help texts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import itertools
import json
import re
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro
from tyro.conf import Positional, Suppress, UseAppendAction
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from pronghorn import config
from pronghorn.config import RunConfig, nearest
from pronghorn.envs import own
from pronghorn.presets import resolve
from pronghorn.types import UserError

if TYPE_CHECKING:
    from pronghorn.session import Result

Options = TypeVar("Options")
TrainKind = TypeVar("TrainKind", bound="TrainOptions")

FAMILIES = (
    ("classic control", "gymnasium", "pip install gymnasium", "CartPole-v1, Pendulum-v1, Acrobot-v1"),
    ("MuJoCo", "mujoco", "pip install mujoco", "HalfCheetah-v5, Hopper-v5, Walker2d-v5, Ant-v5, Humanoid-v5"),
    ("Box2D", "Box2D", "pip install 'pronghorn[box2d]'", "LunarLander-v3, BipedalWalker-v3"),
    (
        "dm_control",
        "dm_control",
        "pip install 'pronghorn[dm-control]'",
        "dm_control/cheetah-run, dm_control/walker-walk",
    ),
)
"""Families of envs: name, the module that must be there, how to get it, examples."""

NAMES: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="NAME,...|none",
    instance_from_str=lambda words: () if words[0].lower() == "none" else tuple(words[0].split(",")),
    is_instance=lambda instance: isinstance(instance, tuple),
    str_from_instance=lambda names: [",".join(names) or "none"],
)
"""How names are read, and shown: with commas in between."""

TRUTH = ("true", "false")
"""How an option that is one of both is written; alone it is true, with ``no-`` before its name false."""


@dataclass(frozen=True)
class TrainOptions(RunConfig):
    """Train an agent. The defaults shown are those of the preset for ENV and the algorithm."""

    env: Annotated[Positional[str], tyro.conf.arg(metavar="ENV")] = ""
    """Gymnasium id, package.module:Class, or ./file.py:Class"""
    imports: Annotated[UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="import", metavar="FILE")] = ()
    """module or file (./mine.py) that registers own parts, read before anything is made"""
    sinks: Annotated[tuple[str, ...], NAMES] = ()
    """where metrics go beside metrics.jsonl: tensorboard, csv, wandb, or your own"""
    callbacks: Annotated[tuple[str, ...], NAMES] = ()
    """your own, which are told what happens and may end the run"""
    env_args: Suppress[dict[str, Any]] = field(default_factory=dict)
    env_arg: Annotated[UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KEY=VALUE")] = ()
    """keyword argument of the environment, the value in JSON or as it stands"""
    quiet: bool = False
    """print nothing but warnings and the summary"""


@dataclass(frozen=True)
class BenchOptions(TrainOptions):
    """Measure how fast each part of training is, how fast all of it, and how fast it could be."""

    run: tyro.conf.Suppress[tyro.conf.Fixed[str]] = ""
    seconds: float = 8.0
    """for which each part is measured; the training run takes three times as long"""
    peers: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[PYTHON ...]")] = None
    """compare PPO on ENV (which stands before) with other libraries instead, found in these interpreters and this one;
    each is timed for so many seconds a round"""
    rounds: int = 3
    """of the comparison"""
    json: bool = False
    """print one JSON object on one line (progress goes to standard error)"""


@dataclass(frozen=True)
class Choice:
    """What else decides which options ``train`` has."""

    algorithm: str = "ppo"
    preset: str = ""
    imports: Annotated[UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="import")] = ()


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run where it stopped."""

    run: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """directory of the run"""
    steps: int | None = None
    """train to this number of environment steps (none: as the run was started)"""
    quiet: bool = False
    """print nothing but warnings and the summary"""


@dataclass(frozen=True)
class EvalOptions:
    """Play episodes with the newest checkpoint of a run."""

    run: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """directory of the run"""
    episodes: int = 20
    """number of episodes"""
    sample: bool = False
    """sample actions as in training instead of taking the most likely"""
    seed: int | None = None
    """chooses other episodes (none: those of the evaluations during training)"""
    video: Annotated[tuple[Path, ...] | None, tyro.conf.arg(metavar="[DIR]")] = None
    """film episodes, as MP4 and GIF, into DIR (RUN/videos)"""
    video_episodes: int = 1
    """number of episodes that are filmed"""
    json: bool = False
    """print one JSON object on one line"""


@dataclass(frozen=True)
class PlotOptions:
    """Draw learning curves: runs that differ only in their seed become one curve with a band."""

    runs: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN")]
    """directories of runs, or directories that hold runs"""
    out: Path = Path("learning-curves.png")
    """picture to write: .png, .svg or .pdf"""
    key: str = "eval/return"
    """what to draw, a key of metrics.jsonl"""
    x: Literal["steps", "frames", "seconds"] = "steps"
    """over what: environment steps, simulator frames, wall-clock time"""
    statistic: Literal["median", "iqm"] = "median"
    """of the seeds: the median with the band from 25% to 75%, or the interquartile mean with its 95% interval"""
    smooth: int = 1
    """reports of a run that are averaged, the newest and those before it"""
    normalise: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """one curve over all environments, of scores scaled by the rows NAME,LOW,HIGH of this CSV file"""


@dataclass(frozen=True)
class CompareOptions:
    """Compare final scores: a table of groups of runs that differ only in their seed, and of their differences."""

    runs: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN")]
    """directories of runs, or directories that hold runs"""
    key: str = "eval/return"
    """the newest value of which is the score, a key of metrics.jsonl"""
    normalise: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """compare over all environments, by scores scaled by the rows NAME,LOW,HIGH of this CSV file"""
    json: bool = False
    """print one JSON object on one line"""


@dataclass(frozen=True)
class ExportOptions:
    """Write the policy of a run's newest checkpoint as ONNX, with all that it needs inside, checked against it."""

    run: Annotated[Positional[Path], tyro.conf.arg(metavar="RUN")]
    """directory of the run"""
    out: Path | None = None
    """file to write, .onnx; a description goes beside it, .json (none: RUN/exports/policy.onnx)"""
    sample: bool = False
    """draw actions by noise that is an input, instead of taking the most likely"""


@dataclass(frozen=True)
class DoctorOptions:
    """Check an environment before training on it."""

    env: Annotated[Positional[str], tyro.conf.arg(metavar="ENV")]
    """Gymnasium id, package.module:Class, or ./file.py:Class"""
    env_arg: Annotated[UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KEY=VALUE")] = ()
    """keyword argument of the environment, the value in JSON or as it stands"""
    imports: Annotated[UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="import", metavar="FILE")] = ()
    """module or file (./mine.py) that registers own envs or networks"""
    algorithm: str = "ppo"
    """the preset of which says with how many environments the layout is chosen"""
    seconds: float = 10.0
    """for which it is played"""
    env_timeout: float | None = None
    """seconds it may take in any phase (none: construct and reset 60, step 30)"""
    json: bool = False
    """print one JSON object on one line"""


@dataclass(frozen=True)
class ListOptions:
    """Show environments, algorithms and presets."""


def run(command: str, arguments: list[str]) -> int:
    """Runs one command; returns the exit code. Raises UserError for the user's mistakes."""
    if command not in COMMANDS:
        raise UserError(f"unknown command {command!r}; {nearest(command, COMMANDS)}")
    return COMMANDS[command](arguments)


def train(arguments: list[str]) -> int:
    """``train ENV``: a preset gives the defaults, the options change them."""
    run_config, quiet = train_config(arguments)
    from pronghorn import api

    return _finish(api.train(run_config, quiet))


def resume(arguments: list[str]) -> int:
    """``resume RUN``."""
    options = parse(ResumeOptions, "resume", arguments)
    from pronghorn import api

    return _finish(api.resume(options.run, options.steps, options.quiet))


def evaluate(arguments: list[str]) -> int:
    """``eval RUN``."""
    options = parse(EvalOptions, "eval", arguments)
    for name, value in (("--episodes", options.episodes), ("--video-episodes", options.video_episodes)):
        if value < 1:
            raise UserError(f"{name} must be positive, not {value}")
    if options.video is not None and len(options.video) > 1:
        raise UserError(f"--video takes one directory, not {' '.join(map(str, options.video))}; name RUN before it")
    from pronghorn import api

    result = api.evaluate(options.run, options.episodes, options.sample, options.seed)
    if not options.json:
        print(describe(result), flush=True)
    if options.video is not None:
        result = {**result, "videos": films(options)}
    if options.json:
        print(json.dumps(result))
    return 0


def films(options: EvalOptions) -> list[str]:
    """Films what ``eval --video`` asks for; the files. Whatever prevents it is a warning: the numbers are there."""
    from pronghorn.tools import video

    directory = next(iter(options.video or ()), options.run / "videos")
    try:
        paths = video.record(options.run, directory, options.video_episodes, options.sample, options.seed)
    except UserError as error:
        print(f"pronghorn: warning: no video: {' '.join(str(error).split())}", file=sys.stderr)
        return []
    if not options.json:
        print("\n".join(f"wrote {path}" for path in paths))
    return [str(path) for path in paths]


def plot(arguments: list[str]) -> int:
    """``plot RUN ...``."""
    options = parse(PlotOptions, "plot", arguments)
    if not options.runs:
        raise UserError("RUN is missing; see 'pronghorn plot --help'")
    if options.smooth < 1:
        raise UserError(f"--smooth must be positive, not {options.smooth}")
    from pronghorn.tools import plot as tool

    for remark in tool.plot(**_fields(options, PlotOptions)):
        print(f"pronghorn: {remark}", file=sys.stderr)
    print(f"wrote {options.out}")
    return 0


def compare(arguments: list[str]) -> int:
    """``compare RUN ...``."""
    options = parse(CompareOptions, "compare", arguments)
    if not options.runs:
        raise UserError("RUN is missing; see 'pronghorn compare --help'")
    from pronghorn.tools import compare as tool

    comparison = tool.compare(options.runs, options.key, options.normalise)
    print(json.dumps(comparison.as_json()) if options.json else comparison.table())
    return 0


def export(arguments: list[str]) -> int:
    """``export RUN``."""
    options = parse(ExportOptions, "export", arguments)
    from pronghorn.tools import export as tool

    print(tool.export(options.run, options.out, options.sample).summary)
    return 0


def doctor(arguments: list[str]) -> int:
    """``doctor ENV``: 1 where something would hurt training."""
    options = parse(DoctorOptions, "doctor", arguments)
    if options.seconds <= 0:
        raise UserError(f"--seconds must be positive, not {options.seconds:g}")
    own.read_parts(options.imports)
    _, chosen = resolve.resolve(options.env, options.algorithm)
    given = chosen.env_args | env_args(options.env_arg)
    chosen = config.override(chosen, env_timeout=options.env_timeout, env_args=given, imports=options.imports)
    config.validate(chosen)
    from pronghorn.tools import doctor as tool

    diagnosis = tool.diagnose(chosen, options.seconds)
    print(json.dumps(diagnosis.as_json()) if options.json else diagnosis.table())
    return 1 if diagnosis.verdict == "hurts" else 0


def bench(arguments: list[str]) -> int:
    """``bench ENV``: with the options of ``train``."""
    run_config, options = _configured(BenchOptions, "bench", arguments)
    if not options.seconds > 0:
        raise UserError(f"--seconds must be positive, not {options.seconds:g}")
    if options.rounds < 1:
        raise UserError(f"--rounds must be positive, not {options.rounds}")

    def say(line: str) -> None:
        if not options.quiet:
            print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    if options.peers is not None:
        from pronghorn.tools import rivals

        compared = rivals.compare(run_config, options.peers, options.seconds, options.rounds, say)
        print(json.dumps(compared.found) if options.json else compared.table)
        return 0
    from pronghorn.tools import bench as tool

    found = tool.measure(run_config, options.seconds, say)
    print(json.dumps(found) if options.json else tool.summary(found))
    return 0


def show(arguments: list[str]) -> int:
    """``list``: what there is, found without importing any of it."""
    parse(ListOptions, "list", arguments)
    print("environments")
    for name, module, command, examples in FAMILIES:
        state = "installed" if importlib.util.find_spec(module) else command
        print(f"  {name:<16} {examples} ({state})")
    print(f"  {'your own':<16} package.module:Class or ./file.py:Class, a gymnasium.Env")
    print("algorithms")
    print(f"  {', '.join(resolve.algorithms())}")
    print("presets")
    for algorithm in resolve.algorithms():
        names = sorted(name for name in resolve.presets() if name.startswith(f"{algorithm}-"))
        print(f"  {algorithm:<16} {', '.join(names)}")
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "resume": resume,
    "eval": evaluate,
    "plot": plot,
    "compare": compare,
    "export": export,
    "doctor": doctor,
    "bench": bench,
    "list": show,
}


def train_config(arguments: list[str]) -> tuple[RunConfig, bool]:
    """(validated configuration with its run directory, quiet)."""
    chosen, options = _configured(TrainOptions, "train", arguments)
    if not chosen.run:
        chosen = config.override(chosen, run=config.default_run(chosen))
    return chosen, options.quiet


def env_args(pairs: tuple[str, ...]) -> dict[str, Any]:
    """KEY=VALUE, … → a dict; values that are not JSON are strings."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (equals and key.isidentifier()):
            raise UserError(f"--env-arg must be KEY=VALUE, not {pair!r}")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    return values


def parse(kind: type[Options], command: str, arguments: list[str], default: Options | None = None) -> Options:
    """The options of a command. Raises UserError of one line; ``--help`` prints and exits with 0."""
    options, unknown = _parse(kind, command, arguments, default, final=True)
    if unknown:
        name, see = unknown[0].partition("=")[0], f"see 'pronghorn {command} --help'"
        if not name.startswith("-"):
            before = next((word for word, following in itertools.pairwise(arguments) if following == name), "")
            if _option(before) in _switches(options):
                raise UserError(f"{before}: unknown value {name!r}; {nearest(name, TRUTH)}")
            raise UserError(f"unexpected argument {name!r}; {see}")
        option = name.removeprefix("--").replace("-", "_")
        owners = [algorithm for algorithm, loss in config.LOSSES.items() if option in config.option_names(loss())]
        if command in ("train", "bench") and owners:
            raise UserError(f"{name} is an option of --algorithm {' or '.join(owners)}; {see}")
        names = [f"--{option.replace('_', '-')}" for option in config.option_names(options)]
        raise UserError(f"unknown option {name}; {nearest(name, names, see)}")
    return options


def describe(result: dict[str, Any]) -> str:
    """One readable line of what ``api.evaluate`` returns; without a finished episode there are no returns."""
    if not result["episodes"]:
        return f"no episode ended, {result['capped']:g} cut short"
    quartiles = " … ".join(f"{value:.2f}" for value in result["return_quartiles"])
    line = (
        f"return {result['return_mean']:.2f} ± {result['return_std']:.2f} over {result['episodes']:g} episodes "
        f"(quartiles {quartiles}), length {result['length_mean']:.1f}"
    )
    return f"{line}, {result['capped']:g} cut short" if result["capped"] else line


def _configured(kind: type[TrainKind], command: str, arguments: list[str]) -> tuple[RunConfig, TrainKind]:
    """(validated configuration, all options) of a command with the options of ``train``.

    Parsed for what is to be imported and for the algorithm, which decide what the options are, for ENV, which is told
    from their values by knowing them, and with the values of the preset for both as defaults. Help exits with 0.
    """
    choice, _ = _parse(Choice, command, arguments, Choice(), final=False)
    own.read_parts(choice.imports)
    algorithm = choice.preset.partition("-")[0] or choice.algorithm
    loss = config.LOSSES.get(algorithm, config.PPOConfig)()
    wanted, _ = _parse(kind, command, arguments, kind(loss=loss), final=False)
    helping = not {"-h", "--help"}.isdisjoint(arguments)
    if not wanted.env and not helping:
        raise UserError(f"{command} needs an environment: pronghorn {command} ENV; 'pronghorn list' shows some")
    preset, defaults = resolve.resolve(wanted.env, "" if wanted.preset else wanted.algorithm, wanted.preset)
    options = parse(kind, command, arguments, kind(**_fields(defaults, RunConfig)))
    if options.algorithm != defaults.algorithm:
        raise UserError(f"preset {preset} belongs to {defaults.algorithm}, not to --algorithm {options.algorithm}")
    given = defaults.env_args | env_args(options.env_arg)
    chosen = RunConfig(**_fields(options, RunConfig) | {"env_args": given})
    config.validate(chosen)
    return chosen, options


def _parse(
    kind: type[Options], command: str, arguments: list[str], default: Options | None, final: bool
) -> tuple[Options, list[str]]:
    """(options, what was not understood). ``--help`` is not understood unless ``final``."""
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            options, unknown = tyro.cli(
                kind,
                prog=f"pronghorn {command}",
                args=_spelt_out(arguments, _switches(kind if default is None else default)),
                default=tyro.MISSING_NONPROP if default is None else default,
                return_unknown_args=True,
                add_help=final,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff),
                registry=_registry(),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_first_message(messages.getvalue(), command)) from None
    return options, unknown


def _switches(options: Any) -> set[str]:
    """The names of those that are true or false, nested ones included; of a dataclass, or of an instance of one."""
    hints = typing.get_type_hints(options if isinstance(options, type) else type(options))
    names: set[str] = set()
    for item in dataclasses.fields(options):
        value = getattr(options, item.name, None)
        if dataclasses.is_dataclass(value):
            names |= _switches(value)
        elif bool in config.alternatives(hints[item.name]):
            names.add(item.name)
    return names


def _spelt_out(arguments: list[str], switches: set[str]) -> list[str]:
    """``--x`` as ``--x true`` where no value follows, and ``--no-x`` as ``--x false``."""
    words: list[str] = []
    for word, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        name = _option(word)
        if name in switches and following.lower() not in (*TRUTH, "none"):
            words += [word, "true"]
        elif name.removeprefix("no_") in switches and name not in switches:
            words += [f"--{name.removeprefix('no_')}", "false"]
        else:
            words.append(word)
    return words


def _option(word: str) -> str:
    """The name of the field that ``word`` is the option of; empty where it is none."""
    return word.removeprefix("--").replace("-", "_") if word.startswith("--") else ""


def _first_message(text: str, command: str) -> str:
    """The message in the box that tyro draws, in Unicode or ASCII: from the title to the next rule or empty line."""
    contents = [re.sub(r"^-+$", "", line.strip("│╭╮╰╯─ ")) for line in text.splitlines()[1:]]
    body = itertools.dropwhile(lambda content: not content, contents)
    message = " ".join(itertools.takewhile(bool, body)).removeprefix("Error parsing ").rstrip(".")
    missing = re.match(r"Missing from .*?: (\S+)", message)
    return f"{missing[1]} is missing; see 'pronghorn {command} --help'" if missing else message


def _registry() -> ConstructorRegistry:
    """How values are read: 500k and 5e5 are integers, names may be misspelt once, none and false in any case."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def value(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        hints = [hint for hint in config.alternatives(info.type) if hint is not type(None)]
        optional = len(hints) < len(config.alternatives(info.type))
        if len(hints) != 1:
            return None
        reader = _reader(hints[0])
        if reader is None:
            return None
        metavar, read = reader

        def from_text(words: list[str]) -> Any:
            return None if optional and words[0].lower() == "none" else read(words[0])

        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=_metavar(metavar, optional, hints[0] is bool),
            instance_from_str=from_text,
            is_instance=lambda instance: True,
            str_from_instance=lambda instance: [_shown(instance)],
        )

    return registry


def _metavar(kind: str, optional: bool, may_be_absent: bool) -> str:
    kinds = f"{kind}|none" if optional else kind
    return f"[{kinds}]" if may_be_absent else kinds


def _shown(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _reader(hint: Any) -> tuple[str, Callable[[str], Any]] | None:
    """(name of the kind of value, text → value); the latter raises ValueError. None for other kinds."""
    if hint is int:
        return "INT", _read_int
    if hint is float:
        return "FLOAT", _read_float
    if hint is bool:
        return "|".join(TRUTH), lambda text: _read_choice(text.lower(), TRUTH) == "true"
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        return "|".join(choices), lambda text: _read_choice(text, choices)
    return None


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        scale = {"k": 10**3, "M": 10**6}.get(text[-1:], 1)
        value = _read_float(text[:-1] if scale > 1 else text) * scale
        if not value.is_integer():
            raise ValueError(f"{text!r} is not a whole number") from None
        return int(value)


def _read_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def _read_choice(text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise ValueError(f"unknown value {text!r}; {nearest(text, choices)}")
    return text


def _fields(instance: Any, kind: type[Any]) -> dict[str, Any]:
    return {item.name: getattr(instance, item.name) for item in dataclasses.fields(kind)}


def _finish(result: Result) -> int:
    with contextlib.suppress(OSError):  # the terminal may have been closed, which is why the run has stopped
        print(result.summary, flush=True)
    code: int = result.exit_code
    return code
