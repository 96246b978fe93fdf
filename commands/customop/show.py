"""neuron-customop inspect, load and doctor: the contents of a library, a trial load, the installed parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurontools.base.text import printable
from neurontools.commands import console

if TYPE_CHECKING:
    import argparse

    from neurontools.customop.inspection import Inspection, Opened
    from neurontools.customop.package import Manifest, OperatorEntry


def run_inspect(arguments: argparse.Namespace) -> int:
    """Print the manifest of a library file."""
    from neurontools.customop.inspection import inspect_library

    found = inspect_library(arguments.library)
    console.out(_inspection_json(found) if arguments.json else _inspection_text(found))
    return 0


def run_load(arguments: argparse.Namespace) -> int:
    """Load a library into a worker and list its operators."""
    from neurontools.customop.inspection import open_library

    opened = open_library(arguments.library)
    console.out(_opened_json(opened) if arguments.json else _opened_text(opened))
    return 0


def run_doctor(arguments: argparse.Namespace) -> int:
    """Print the installed parts; 1 when a required one is missing."""
    from neurontools.customop.inspection import check_components

    statuses = check_components(console.notice)
    if arguments.json:
        from dataclasses import asdict

        console.print_json([asdict(status) for status in statuses])
    else:
        for status in statuses:
            state = "ok" if status.ok else "MISSING" if status.needed else "absent"
            console.out(f"{state:<9}{status.name:<12}{status.detail}")
            if not status.ok:
                console.out(f"{'':<21}for {status.purpose}: {status.remedy}")
    return 0 if all(status.ok or not status.needed for status in statuses) else 1


def _mode(manifest: Manifest) -> str:
    cores = "all 8 GPSIMD cores" if manifest.multicore else "one GPSIMD core"
    checks = "release: element bounds unchecked" if manifest.release else "element bounds checked"
    return f"{cores}, {checks}" + (", sanitizers" if manifest.sanitize else "")


def _operator(entry: OperatorEntry) -> str:
    return printable(f"  {entry.library}::{entry.schema}  kernel {entry.kernel}, {entry.access} access")


def _inspection_text(found: Inspection) -> str:
    manifest = found.package.manifest
    changed = set(found.changed)
    rows = (
        ("compiler", manifest.compiler),
        ("machine", manifest.machine),
        ("flags", " ".join(manifest.cflags) or "none"),
        ("stack", f"{manifest.stack_bytes} bytes" if manifest.stack_bytes else "not declared"),
        ("digest", found.package.sha256),
        *((part.name, f"{part.sha256}  {part.nbytes} bytes") for part in found.parts),
        *(
            ("source", entry.path + ("  CHANGED since" if entry.path in changed else ""))
            for entry in manifest.sources
        ),
    )
    return "\n".join(
        (
            printable(f"{found.package.path}  {_mode(manifest)}"),
            *map(_operator, manifest.operators),
            *(printable(f"  {label:<9} {value}") for label, value in rows),
        )
    )


def _inspection_json(found: Inspection) -> str:
    import json
    from dataclasses import asdict

    package = found.package
    manifest = json.loads(package.manifest.to_bytes())
    for entry, plain in zip(package.manifest.operators, manifest["operators"], strict=True):
        plain["schema"] = f"{entry.library}::{entry.schema}"
    plain = {
        "path": package.path,
        "sha256": package.sha256,
        "parts": [asdict(part) for part in found.parts],
        "changed_sources": list(found.changed),
        "manifest": manifest,
    }
    return json.dumps(plain, indent=2)


def _opened_text(opened: Opened) -> str:
    took = f"loaded in {opened.elapsed_ns / 1e6:.1f} ms"
    mode = _mode(opened.package.manifest)
    return "\n".join((printable(f"{opened.package.path}  {took}: {mode}"), *map(_operator, opened.operators)))


def _opened_json(opened: Opened) -> str:
    import json

    plain = {
        "path": opened.package.path,
        "sha256": opened.package.sha256,
        "load_ns": opened.elapsed_ns,
        "operators": [f"{entry.library}::{entry.schema}" for entry in opened.operators],
    }
    return json.dumps(plain, indent=2)
