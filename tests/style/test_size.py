"""The size of the code: no package is larger than its budget, which only a commit of its own raises."""

from __future__ import annotations

import ast

import yaml

from tests.style.size import BUDGET, count_package_sizes, count_statements


def test_every_package_keeps_its_budget():
    budgets = yaml.safe_load(BUDGET.read_text())
    sizes = {name: size.statements for name, size in count_package_sizes().items()}
    assert set(sizes) == set(budgets)
    assert {name: size for name, size in sizes.items() if size > budgets[name]} == {}


def test_imports_and_docstrings_do_not_count():
    text = '"""Doc."""\nimport os\nfrom a import b\n\nclass A:\n    """Doc."""\n\n    def f(self):\n        x = (1,\n             2)\n        return x\n'
    assert count_statements(ast.parse(text)) == 4
    assert count_statements(ast.parse(text), everything=True) == 8
