"""All environment variables of neurontools: name, default, meaning. Imports only what `python -c pass` has.

Each of them, except those of a single program, is also a setting in the user's config.yaml: its name in
lower case without the prefix. The environment wins; an empty variable is not set.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from neurontools.config.settings import Configuration

PREFIX = "NEURONTOOLS_"
NUMERICAL_VERBOSITY = "NEURON_RT_NUMERICAL_ERRORS_VERBOSITY"
FAIL_ON_NAN = "NEURON_FAIL_ON_NAN"
RUNTIME_DIR = "NEURONTOOLS_RUNTIME_DIR"
MACHINE = "NEURONTOOLS_MACHINE"
AUTOSTART = "NEURONTOOLS_AUTOSTART"
INSTANCE = "NEURONTOOLS_INSTANCE"
EMULATE = "NEURONTOOLS_EMULATE"
PACE = "NEURONTOOLS_PACE"
NUMERICS = "NEURONTOOLS_NUMERICS"
HOST_MEMORY = "NEURONTOOLS_HOST_MEMORY"
CUSTOMOP_INPROCESS = "NEURONTOOLS_CUSTOMOP_INPROCESS"
CUSTOMOP_ANY_INSTANCE = "NEURONTOOLS_CUSTOMOP_ANY_INSTANCE"
NATIVE_ANY_INSTANCE = "NEURONTOOLS_NATIVE_ANY_INSTANCE"
DEVICE = "NEURONTOOLS_DEVICE"
RUN = "NEURONTOOLS_RUN"
HOST_FILES = "NEURONTOOLS_HOST_FILES"
HOST_PYTHON = "NEURONTOOLS_HOST_PYTHON"
JOB_SECRET = "NEURONTOOLS_JOB_SECRET"  # noqa: S105  a name
WORKERS_CORES = "NEURONTOOLS_WORKERS_CORES"
SYSFS_ROOT = "NEURONTOOLS_SYSFS_ROOT"
CACHE_LOCK_TIMEOUT = "NEURONTOOLS_CACHE_LOCK_TIMEOUT"
CACHE_MAX_SIZE = "NEURONTOOLS_CACHE_MAX_SIZE"
CACHE_OLDER_THAN = "NEURONTOOLS_CACHE_OLDER_THAN"
CACHE_KEEP_LAST = "NEURONTOOLS_CACHE_KEEP_LAST"
CACHE_REMOVE = "NEURONTOOLS_CACHE_REMOVE"
CACHE_AUTO_PRUNE = "NEURONTOOLS_CACHE_AUTO_PRUNE"
CACHE_RUN = "NEURONTOOLS_CACHE_RUN"
EXPLAIN = "NEURONTOOLS_EXPLAIN"
EXTRACTION_LOG = "NEURONTOOLS_EXTRACTION_LOG"
PROFILE_SESSION = "NEURONTOOLS_PROFILE_SESSION"
PROFILE_STEPS = "NEURONTOOLS_PROFILE_STEPS"
PROFILE_STACKS = "NEURONTOOLS_PROFILE_STACKS"

FOR_CHILDREN = frozenset(
    {
        *(
            DEVICE,
            RUN,
            HOST_FILES,
            HOST_PYTHON,
            WORKERS_CORES,
            JOB_SECRET,
            CACHE_RUN,
            EXPLAIN,
            EXTRACTION_LOG,
        ),
        *(PROFILE_SESSION, PROFILE_STACKS, PROFILE_STEPS),
    }
)
"""Variables of a single program; our programs set most of them for those they start. Not settings."""

DEFAULT_MACHINE = "default"
DEFAULT_INSTANCE = "trn1.2xlarge"
DEFAULT_EMULATE = "2.32"
DEFAULT_HOST_MEMORY = "25%"
DEFAULT_NUMERICS = "cpu"
_NUMERICS_CHOICES = ("cpu", "device")

DOCUMENTED = (
    (RUNTIME_DIR, "", "directory of sockets and telemetry pages; also holds the state of its machines"),
    (MACHINE, DEFAULT_MACHINE, "name of the machine that tools and programs use"),
    (AUTOSTART, "1", "0 forbids starting a machine automatically"),
    (INSTANCE, DEFAULT_INSTANCE, "instance type of the default machine when it is started automatically"),
    (EMULATE, DEFAULT_EMULATE, "release of the real tools whose output is reproduced: 2.32 or 2.28"),
    (
        HOST_MEMORY,
        DEFAULT_HOST_MEMORY,
        "limit of this computer's memory for device tensors: a share or a size such as 8GiB",
    ),
    (PACE, "0", "1 makes an execution last at least its modelled device time"),
    (
        NUMERICS,
        DEFAULT_NUMERICS,
        "cpu: results equal those of torch on the CPU; device: they are rounded as on a NeuronCore",
    ),
    (
        CUSTOMOP_INPROCESS,
        "0",
        "1 runs custom operators in this process instead of the worker (for debuggers)",
    ),
    (CUSTOMOP_ANY_INSTANCE, "0", "1 runs custom operators on machines without a NeuronCore-v2 too"),
    (NATIVE_ANY_INSTANCE, "0", "1 allows the device `neuron` on machines other than trn2 and trn3 too"),
    (
        SYSFS_ROOT,
        "",
        "directory whose sys, proc and dev the source `real` reads instead of the host's, such as a sysfs export",
    ),
    (
        CACHE_LOCK_TIMEOUT,
        "",
        "how long to wait for another process that compiles the same graph, such as 20m; no limit by default",
    ),
    (
        CACHE_MAX_SIZE,
        "",
        "policy of the compile cache: remove the least recently used entries until the rest fits, such as 20GB",
    ),
    (CACHE_OLDER_THAN, "", "policy of the compile cache: remove entries not used for this long, such as 30d"),
    (
        CACHE_KEEP_LAST,
        "",
        "policy of the compile cache: always keep this number of most recently used entries",
    ),
    (
        CACHE_REMOVE,
        "",
        "policy of the compile cache: also remove any of failed,interrupted,incomplete,old-compilers,locks",
    ),
    (
        CACHE_AUTO_PRUNE,
        "0",
        "1 applies the policy of the compile cache at the end of a run, at most once an hour",
    ),
    (RUN, "", "set by neuron-run in the programs it starts"),
    (HOST_FILES, "", "set by neuron-run: the directory of the machine whose host files programs see"),
    (HOST_PYTHON, "", "set by neuron-run: the Python that starts the machine when a program looks at them"),
    (
        JOB_SECRET,
        "",
        "the secret by which workers on several machines know each other, the same on each machine",
    ),
    (
        DEVICE,
        "",
        "the device that `import torch` prepares: neuron, also without neuron-run, or xla; else the code decides",
    ),
    (EXPLAIN, "", "set by neuron-run --explain in the programs it starts"),
    (
        PROFILE_SESSION,
        "",
        "set by neuron-run --profile: the run that the profiles of its processes belong to",
    ),
    (PROFILE_STEPS, "", "set by neuron-run --steps: the training steps to profile, such as 10-20"),
    (
        PROFILE_STACKS,
        "0",
        "1, or neuron-run --stacks: profiles hold the program's call stack of what the host did",
    ),
    (WORKERS_CORES, "", "set in workers, which have a core each: NEURON_RT_VISIBLE_CORES of all of them"),
    (CACHE_RUN, "", "set by neuron_parallel_compile: the run its compiles belong to"),
    (
        EXTRACTION_LOG,
        "",
        "set by neuron_parallel_compile: the file that lists the graphs a program extracted",
    ),
)


_configurations: "dict[str, Configuration | None]" = {}


def setting(name: str, environ: "Mapping[str, str] | None" = None) -> str:
    """Return the value of an environment variable, else of config.yaml, else "".

    Args:
        name: the variable.
        environ: replaces the process's environment.
    """
    return (os.environ if environ is None else environ).get(name) or configured(name)


def configured(name: str) -> str:
    """Return the value in config.yaml of the setting of an environment variable, "" if not set."""
    found = configuration()
    if found is None:
        return ""
    value = found.values.get(name[len(PREFIX) :].lower())
    return value[0] if value else ""


def source_of(name: str, environ: "Mapping[str, str] | None" = None) -> str:
    """Return where a setting's value comes from: the variable's name, or file, line and key of config.yaml."""
    found = configuration()
    key = name[len(PREFIX) :].lower()
    if (os.environ if environ is None else environ).get(name) or found is None or key not in found.values:
        return name
    return f"{found.path}:{found.values[key][1]}: {key}"


def configuration() -> "Configuration | None":
    """Return the content of config.yaml, None if it does not exist. A process reads it once."""
    path = config_file()
    if path not in _configurations:
        _configurations[path] = None
        # Without a home directory the path is relative, and the working directory may be another user's.
        if os.path.isabs(path) and os.path.lexists(path):
            from neurontools.config.settings import load

            _configurations[path] = load(path)
    return _configurations[path]


def config_problems() -> list[str]:
    """Return the mistakes of the settings file, a line for each, if this process has read it."""
    return [
        problem.located(found.path)
        for found in _configurations.values()
        if found is not None
        for problem in found.problems
    ]


def config_file() -> str:
    """Return the user's settings file, which need not exist."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".config")
    return base + "/neurontools/config.yaml"


def runtime_dir() -> str:
    """Return the configured runtime directory, "" if none is."""
    return setting(RUNTIME_DIR)


def machine() -> str:
    """Return the default machine name."""
    return setting(MACHINE) or DEFAULT_MACHINE


def autostart() -> bool:
    """Return whether a machine may be started automatically."""
    return (setting(AUTOSTART) or "1") not in {"0", "false", "no"}


def instance() -> str:
    """Return the instance type of a machine that is started automatically."""
    return setting(INSTANCE) or DEFAULT_INSTANCE


def emulate() -> str:
    """Return the release of the real tools whose output is reproduced."""
    return setting(EMULATE) or DEFAULT_EMULATE


def host_memory() -> str:
    """Return the limit of this computer's memory for device tensors: a share such as 25% or a size."""
    return setting(HOST_MEMORY) or DEFAULT_HOST_MEMORY


def numerics_are_device(environ: "Mapping[str, str] | None" = None) -> bool:
    """Return whether results are rounded as on a NeuronCore.

    Raises:
        UsageError: the setting has another value than cpu and device.
    """
    value = setting(NUMERICS, environ) or DEFAULT_NUMERICS
    if value not in _NUMERICS_CHOICES:
        from neurontools.errors import UsageError

        where = source_of(NUMERICS, environ)
        raise UsageError(f"invalid {where} {value!r}: expected cpu or device", f"correct {where}")
    return value == "device"


def numerical_errors_are_on(environ: "Mapping[str, str] | None" = None) -> bool:
    """Return whether the user asks for numerical errors, which the runtime leaves out by default.

    Source: AWS Neuron documentation, "Runtime Release Notes" of release 2.25.
    """
    chosen = os.environ if environ is None else environ
    verbosity = chosen.get(NUMERICAL_VERBOSITY, "").strip().lower()
    return verbosity == "critical" or chosen.get(FAIL_ON_NAN, "").strip() == "1"


def sysfs_root() -> str:
    """Return the directory whose sys, proc and dev are read instead of the host's, "" for the host's own."""
    return setting(SYSFS_ROOT).rstrip("/")


def is_set(variable: bytes) -> bool:
    """Return whether an environment variable is set, for questions of every step: `os.environ.get` takes 30 times as long."""
    return variable in os.environ._data  # type: ignore[attr-defined]  # noqa: SLF001


def is_one(variable: bytes) -> bool:
    """Return whether an environment variable is 1. `os.environ.get` would drop a KeyError that a signal handler raises in it."""
    return os.environ._data.get(variable) == b"1"  # type: ignore[attr-defined,no-any-return]  # noqa: SLF001


def flag(name: str, environ: "Mapping[str, str] | None" = None) -> bool:
    """Return whether a boolean variable is on; see `setting`."""
    return setting(name, environ) not in {"", "0", "false", "no"}
