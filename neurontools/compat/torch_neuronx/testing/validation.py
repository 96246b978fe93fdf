"""torch_neuronx.testing.validation: whether results of the device are close to those of the CPU.

A relative tolerance is one of the largest expected value, as in the compiler's own comparisons, not of each value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from neurontools.compat.structures import to_cpu
from neurontools.compat.unsupported import missing_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
}
_LOGIT_TOLERANCES = {"5": (1e-5, 0.01), "50": (1e-5, 0.02), "1000": (1e-5, 0.03), "all": (1e-5, 0.05)}


__getattr__ = missing_names(__name__)


class AllCloseSummary(NamedTuple):
    """What `neuron_allclose` returns. Errors are the largest ones, an index is the position of a value in the tensor."""

    allclose: bool
    num_mismatches: int
    max_rel_error: float
    max_abs_error: float
    max_rel_error_index: tuple[int, ...]
    max_abs_error_index: tuple[int, ...]


def neuron_allclose(
    actual: torch.Tensor, expected: torch.Tensor, rtol: float | None = None, atol: float | None = None
) -> AllCloseSummary:
    """Compare two tensors of one shape; the default tolerances are torch's for the data type.

    Raises:
        ValueError: the shapes differ.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"shapes {list(actual.shape)} and {list(expected.shape)} differ")
    default_rtol, default_atol = _TOLERANCES.get(actual.dtype, (0.0, 0.0))
    wanted = expected.detach().cpu().double()
    errors = (actual.detach().cpu().double() - wanted).abs().nan_to_num(torch.inf)
    largest = wanted.abs().max().item() if wanted.numel() else 0.0
    limit = (default_atol if atol is None else atol) + (default_rtol if rtol is None else rtol) * largest
    mismatches = int((errors > limit).sum())
    relative = errors / max(largest, torch.finfo(torch.float64).tiny)
    return AllCloseSummary(
        mismatches == 0, mismatches, _maximum(relative), _maximum(errors), _place(relative), _place(errors)
    )


def custom_allclose(
    expected: torch.Tensor, actual: torch.Tensor, atol: float = 0.0, rtol: float = 1e-5
) -> tuple[bool, float]:
    """Return whether two tensors are close, and their largest error relative to the largest expected value."""
    summary = neuron_allclose(actual, expected, rtol, atol)
    return summary.allclose, summary.max_rel_error


def logit_validation(
    input_ids: Any,
    generate_fn: Callable[[torch.Tensor], Any],
    expected_logits: torch.Tensor,
    tol_map: Mapping[Any, tuple[float, float]] | None = None,
    divergence_difference_tol: float = 0.001,
    generate_fn_divergence: Callable[[torch.Tensor], Any] | None = None,
    **_: Any,
) -> tuple[bool, list[dict[str, Any]], str]:
    """Compare the logits of a greedy generation with expected ones, token by token.

    Where the most likely token is another one, the expected logits of both may differ by little, and the generation goes on
    behind the expected token.

    Args:
        input_ids: the prompts, of one length.
        generate_fn: returns the logits of the tokens behind prompts: [tokens, batch, vocabulary]; or a tuple of them
            and more.
        expected_logits: the expected ones.
        tol_map: (atol, rtol) for the `k` most likely tokens, by `k`; None as `k` for all of them.
        divergence_difference_tol: the largest difference at a divergence, relative to the larger logit.
        generate_fn_divergence: generates behind a divergence; `generate_fn` by default.

    Returns:
        Whether all are close, the largest relative error of each token, and a sentence.
    """
    prompts = torch.as_tensor(input_ids)
    tokens = expected_logits.argmax(-1)
    results: list[dict[str, Any]] = []
    generate, start, total = generate_fn, 0, expected_logits.shape[0]
    while start < total:
        given = torch.cat([prompts, tokens[:start].transpose(0, 1).to(prompts.dtype)], dim=1)
        generated = generate(given)
        actual = (generated[0] if isinstance(generated, tuple) else generated)[: total - start]
        if not len(actual):
            break
        wanted = expected_logits[start : start + len(actual)]
        differs = (actual.argmax(-1) != wanted.argmax(-1)).any(-1)
        count = int(differs.nonzero()[0]) + 1 if bool(differs.any()) else len(actual)
        results += [
            _compare_token(actual[place], wanted[place], tol_map, divergence_difference_tol)
            for place in range(count)
        ]
        start += count
        generate = generate_fn_divergence or generate_fn
    failed = [place for place, result in enumerate(results) if not result["passed"]]
    if start < total:
        return False, results, f"the generation ends after {start} of {total} tokens"
    text = f"logits of tokens {failed} differ" if failed else f"logits of all {total} tokens are close"
    return not failed, results, text


def _compare_token(
    actual: torch.Tensor,
    expected: torch.Tensor,
    tol_map: Mapping[Any, tuple[float, float]] | None,
    divergence_tol: float,
) -> dict[str, Any]:
    """Compare the logits of one token: [batch, vocabulary]."""
    errors: dict[str, Any] = {"passed": True}
    chosen = expected.gather(-1, actual.argmax(-1, keepdim=True))
    largest = expected.max(-1, keepdim=True).values
    difference = ((largest - chosen) / largest.abs().clamp_min(1e-9)).max().item()
    errors["passed"] = difference <= divergence_tol
    for kind, (atol, rtol) in (tol_map or _LOGIT_TOLERANCES).items():
        size = expected.shape[-1]
        k = min(int(kind), size) if str(kind).isdecimal() else size
        values, indices = expected.topk(k, dim=-1)
        summary = neuron_allclose(actual.gather(-1, indices), values, rtol, atol)
        errors[str(kind)] = summary.max_rel_error
        errors["passed"] = errors["passed"] and summary.allclose
    return errors


def assert_close(actual: Any, expected: Any, **options: Any) -> None:
    """Compare as `torch.testing.assert_close` does; tensors may be on the device or on the CPU.

    Raises:
        AssertionError: they are not close.
    """
    torch.testing.assert_close(to_cpu(actual), to_cpu(expected), **options)


def _maximum(errors: torch.Tensor) -> float:
    return errors.max().item() if errors.numel() else 0.0


def _place(errors: torch.Tensor) -> tuple[int, ...]:
    if not errors.numel():
        return ()
    return tuple(map(int, torch.unravel_index(errors.argmax(), errors.shape)))
