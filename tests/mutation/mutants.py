"""Mutants: places in the source where cosmic-ray's operators can put a fault, and a random sample of them."""

from __future__ import annotations

import ast
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Place = tuple[str, str, str, int]
"""File, operator, text of the line, and which of the mutants with these it is: other lines may come and go."""

_COMPARISONS = (
    "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt",
    "Is_IsNot", "IsNot_Is",
)  # fmt: skip
_ARITHMETIC = (
    "Add_Sub", "Sub_Add", "Mul_FloorDiv", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "BitAnd_BitOr", "BitOr_BitAnd",
    "LShift_RShift", "RShift_LShift",
)  # fmt: skip
_NUMBER = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
OPERATORS = (
    *(f"core/ReplaceComparisonOperator_{name}" for name in _COMPARISONS),
    *(f"core/ReplaceBinaryOperator_{name}" for name in _ARITHMETIC),
    "core/AddNot",
    "core/NumberReplacer",
    "core/ReplaceAndWithOr",
    "core/ReplaceBreakWithContinue",
    "core/ReplaceFalseWithTrue",
    "core/ReplaceOrWithAnd",
    "core/ReplaceTrueWithFalse",
    "core/ReplaceUnaryOperator_Delete_Not",
    "core/ReplaceUnaryOperator_Delete_USub",
    "core/ZeroIterationForLoop",
)
"""Operators whose results are rarely equivalent: no `is` for `==`, no removed decorators, no replaced exceptions."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: the occurrence of an operator in a file, given relative to the package, and its line."""

    file: str
    operator: str
    occurrence: int
    line: int

    def source(self, package: Path) -> str:
        """Return the source of the file with the fault in it.

        Raises:
            ValueError: the operator changes nothing there.
        """
        mutated = mutate_code(
            (package / self.file).read_text(encoding="utf-8"), get_operator(self.operator)(), self.occurrence
        )
        if mutated is None:
            raise ValueError(f"{self} changes nothing")
        return mutated


def sample(
    package: Path, folders: tuple[str, ...], count: int, seed: int, kept: Iterable[Place] = ()
) -> dict[Place, Mutant]:
    """Return mutants of some folders of a package, in each folder as many for a line of code as in the others.

    Args:
        package: the installed package.
        folders: its folders.
        count: the number of mutants.
        seed: of the random choice.
        kept: an earlier sample; what is left of it is taken first.
    """
    found: dict[Place, Mutant] = {}
    for folder in folders:
        for path in sorted((package / folder).rglob("*.py")):
            found |= _places(_mutants(path, package), path.read_text(encoding="utf-8").splitlines())
    chosen = {place: found[place] for place in kept if place in found}
    taken = {(mutant.file, mutant.line) for mutant in chosen.values()}
    by_line: dict[tuple[str, int], list[Place]] = {}
    for place, mutant in found.items():
        by_line.setdefault((mutant.file, mutant.line), []).append(place)
    chance = random.Random(seed)
    lines = sorted(by_line)
    chance.shuffle(lines)
    for line in lines:
        if line not in taken:
            place = chance.choice(by_line[line])
            chosen[place] = found[place]
    return dict(list(chosen.items())[:count])


def _places(mutants: list[Mutant], lines: list[str]) -> dict[Place, Mutant]:
    places: dict[Place, Mutant] = {}
    alike: Counter[tuple[str, str, str]] = Counter()
    for mutant in mutants:
        same = mutant.file, mutant.operator, lines[mutant.line - 1].strip()
        places[(*same, alike[same])] = mutant
        alike[same] += 1
    return places


def _mutants(path: Path, package: Path) -> list[Mutant]:
    source = path.read_text(encoding="utf-8")
    nodes = list(ast_nodes(get_ast(source)))
    ignored = _lines_without_behaviour(source)
    mutants = []
    for name in OPERATORS:
        operator = get_operator(name)()
        positions = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        mutants += [
            Mutant(str(path.relative_to(package)), name, occurrence, line)
            for occurrence, (line, _) in enumerate(positions)
            if line not in ignored
        ]
    return mutants


def _lines_without_behaviour(source: str) -> set[int]:
    """Return the lines where a fault changes nothing, or nothing that is right or wrong.

    These are annotations, imports for type checkers, decorators and keywords of classes (`frozen=True`), the star of
    keyword-only parameters, `strict=` of zip, and constants of a module that are only numbers: limits, periods and
    sizes for which one more or less is as good.
    """
    lines = source.splitlines()
    ignored = {number for number, line in enumerate(lines, 1) if line.strip() == "*,"}
    module = ast.parse(source)
    parts: list[ast.AST | None] = [
        node
        for node in module.body
        if isinstance(node, ast.Assign) and all(isinstance(part, _NUMBER) for part in ast.walk(node.value))
    ]
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                parts += [node.returns, *node.decorator_list]
            case ast.ClassDef():
                parts += [*node.decorator_list, *(keyword.value for keyword in node.keywords)]
            case ast.arg() | ast.AnnAssign():
                parts.append(node.annotation)
            case ast.keyword(arg="strict"):
                parts.append(node.value)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                parts.append(node)
    for part in parts:
        if isinstance(part, (ast.expr, ast.stmt)):
            ignored.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return ignored
