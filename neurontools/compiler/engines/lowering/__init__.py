"""Lowering: from operator calls to instructions of the engines, one module a family of operators."""
