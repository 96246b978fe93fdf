"""Device numerics: each operator against float32 arithmetic that the reference of tests/numerics rounds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from neurontools.errors import UsageError
from neurontools.machine.instances.catalogue import instance_type
from neurontools.numerics import BF16, FORMATS, FP8_E4M3, FP16, Format
from neurontools.xla import api
from neurontools.xla.numerics_settings import CastMode, read_numerics
from tests.numerics.reference import nearest, nearest_of
from tests.xla.features import networks, tensors  # noqa: F401  # each registers its features
from tests.xla.features.feature import FEATURES, torch_warns
from tests.xla.test_matrix import TOLERANCES, assert_same, flat

TRN1 = instance_type("trn1.2xlarge").device
TRN3 = instance_type("trn3.48xlarge").device
ROUNDING, SEED = "NEURON_RT_STOCHASTIC_ROUNDING_EN", "NEURON_RT_STOCHASTIC_ROUNDING_SEED"
PASSES = ("learned", "replayed")


def compute_as_device(machine: Any, *flags: str, **environ: str) -> None:
    machine.numerics = read_numerics({"NEURONTOOLS_NUMERICS": "device", **environ}, flags, TRN1)


def restart_rounding(seed: int = 0) -> None:
    generator = api.engine().recorder(0).numerics.generator
    assert generator is not None
    generator.manual_seed(seed)


def data(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def test_numbers_are_those_of_the_cpu_without_the_switch(machine: Any) -> None:
    assert read_numerics({}, ("--auto-cast=all",), TRN1) is None
    assert machine.numerics is None
    assert api.engine().recorder(0).numerics is None


@torch_warns
@pytest.mark.parametrize("name", FEATURES)
def test_float32_stays_exact_where_nothing_is_cast(name: str, machine: Any) -> None:
    compute_as_device(machine)
    function = FEATURES[name]
    torch.manual_seed(0)
    wanted = flat(function("cpu"))
    for _ in PASSES:
        torch.manual_seed(0)
        got = flat(function("xla"))
        api.mark_step()
        tolerance = TOLERANCES.get(name, 0.0)
        for a, b in zip(got, wanted, strict=True):
            if isinstance(b, torch.Tensor) and b.dtype in {torch.float64, torch.bfloat16, torch.float16}:
                assert a.shape == b.shape
                torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2, equal_nan=True)
            else:
                assert_same(a, b, tolerance)


class DeviceRule(TorchDispatchMode):
    """Runs CPU operators as documented: arithmetic in float32, one rounding of the result, numbers as the tensors."""

    def __init__(self, form: Format) -> None:
        super().__init__()
        self._form = form

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        native = func(*args, **(kwargs or {}))
        is_view = any(value.alias_info is not None for value in func._schema.returns)
        if not isinstance(native, torch.Tensor) or is_view:
            return native
        if args and isinstance(args[0], torch.Tensor) and not args[0].dtype.is_floating_point:
            result = func(*args, **(kwargs or {})).float() if native.is_floating_point() else native
        else:
            wide = {name: self._widen(value) for name, value in (kwargs or {}).items()}
            result = func(*map(self._widen, args), **wide)
        if native.dtype in {torch.float32, torch.bool}:
            return result
        return native.copy_(nearest_of(result.contiguous(), self._form))

    def _widen(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.float()
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return torch.float32
        return nearest(value, self._form) if value.__class__ is float else value


FORMULAS: dict[str, Any] = {
    "mm": lambda x, y: x @ y,
    "mul, add": lambda x, y: x * y + y,
    "numbers": lambda x, y: x * 0.999 + y.div(3.7) - 257.0,
    "softmax": lambda x, y: torch.softmax(x - y, -1),
    "sum": lambda x, y: F.gelu(x).sum(0),
    "where, cumsum": lambda x, y: torch.where(x > 0.1, x, y).cumsum(1),
    "exp": lambda x, y: x.sigmoid() / y.exp(),
    "transposed": lambda x, y: x.t().contiguous() @ y.t(),
    "mixed": lambda x, y: x.float().mul(y).to(x.dtype),
    "expanded": lambda x, y: (x[:1].expand(8, 8) - y).norm(),
    "integers": lambda x, y: x + torch.arange(250, 258, device=x.device).to(x.dtype),
}


@pytest.mark.parametrize(("dtype", "form"), [(torch.bfloat16, BF16), (torch.float16, FP16)])
@pytest.mark.parametrize("name", FORMULAS)
def test_an_operator_computes_in_float32_and_rounds_once(
    machine: Any, name: str, dtype: torch.dtype, form: Format
) -> None:
    compute_as_device(machine)
    function = FORMULAS[name]
    x, y = data(8, 8).to(dtype), data(8, 8, seed=1).to(dtype)
    with DeviceRule(form):
        wanted = function(x, y)
    for _ in PASSES:
        got = function(x.to("xla"), y.to("xla"))
        api.mark_step()
        assert got.dtype == wanted.dtype
        assert torch.equal(got.cpu(), wanted)


def test_what_changes_in_place_is_rounded_too(machine: Any) -> None:
    compute_as_device(machine)
    start, grad = data(8).bfloat16(), data(8, seed=1).bfloat16()

    def steps(x: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        view = x[2:6]
        view.add_(g[2:6], alpha=-0.125)
        torch._foreach_mul_([x], [g])
        x.addcdiv_(g, g.abs() + 1, value=0.5)
        x[0] = 300.7
        return [x.clone(), view.clone()]

    with DeviceRule(BF16):
        wanted = start.clone()
        wanted[2:6] = wanted[2:6].add(grad[2:6], alpha=-0.125)
        wanted = wanted * grad
        wanted = wanted.addcdiv(grad, grad.abs() + 1, value=0.5)
        wanted[0] = 300.7
    for _ in PASSES:
        x, view = steps(start.to("xla"), grad.to("xla"))
        api.mark_step()
        assert torch.equal(x.cpu(), wanted)
        assert torch.equal(view.cpu(), wanted[2:6])


@pytest.mark.parametrize("cast_type", ["bf16", "fp16", "tf32", "fp8_e4m3"])
def test_matmult_casts_what_enters_matrix_products_and_nothing_else(machine: Any, cast_type: str) -> None:
    compute_as_device(machine, "--auto-cast=matmult", f"--auto-cast-type={cast_type}")
    form = FORMATS[cast_type]
    x, weight, bias = data(4, 8), data(6, 8, seed=1), data(6, seed=2)
    product = nearest_of(x, form) @ nearest_of(weight, form).t()
    image, filters = data(1, 3, 8, 8), data(2, 3, 3, 3, seed=3)
    for _ in PASSES:
        on_device = x.to("xla")
        got = on_device @ weight.to("xla").t()
        with_bias = F.linear(on_device, weight.to("xla"), bias.to("xla"))
        elsewhere = on_device * 1.001 + bias.to("xla")[0]
        convolved = F.conv2d(image.to("xla"), filters.to("xla"))
        api.mark_step()
        assert torch.equal(got.cpu(), product)
        assert torch.equal(
            with_bias.cpu(), torch.addmm(bias, nearest_of(x, form), nearest_of(weight, form).t())
        )
        assert torch.equal(elsewhere.cpu(), x * 1.001 + bias[0])
        assert torch.equal(convolved.cpu(), F.conv2d(nearest_of(image, form), nearest_of(filters, form)))
        assert torch.equal(on_device.cpu(), x)


@pytest.mark.parametrize("cast_type", ["bf16", "tf32"])
def test_all_casts_every_operator_but_not_the_inputs_of_the_graph(machine: Any, cast_type: str) -> None:
    compute_as_device(machine, "--auto-cast", "all", "--auto-cast-type", cast_type)
    form = FORMATS[cast_type]
    x = data(16)
    for _ in PASSES:
        on_device = x.to("xla")
        got = (on_device * 3.0).exp()
        api.mark_step()
        scaled = nearest_of(nearest_of(x, form) * 3.0, form)
        assert torch.equal(got.cpu(), nearest_of(scaled.exp(), form))
        assert torch.equal(on_device.cpu(), x)


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_casts_each_of_its_products(machine: Any, causal: bool) -> None:
    shape = (2, 3, 8, 16)
    parts = [data(*shape, seed=seed) for seed in range(3)]

    def run(device: str) -> list[torch.Tensor]:
        q, k, v = (part.to(device, copy=True).requires_grad_() for part in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out.sin().sum().backward()
        grads = [part.grad.cpu() for part in (q, k, v) if part.grad is not None]
        return [out.detach().cpu(), *grads]

    exact = run("cpu")
    strides = run("xla")[0].stride()
    errors = {}
    for cast_type in ("tf32", "bf16", "fp8_e4m3"):
        api.shutdown()
        compute_as_device(machine, "--auto-cast=matmult", f"--auto-cast-type={cast_type}")
        for _ in PASSES:
            got = run("xla")
            assert len(got) == 4
            assert got[0].stride() == strides
            errors[cast_type] = max((a - b).abs().max().item() for a, b in zip(got, exact, strict=True))
    assert 0 < errors["tf32"] < 0.01 < 0.5 * errors["bf16"] + 0.01
    assert errors["tf32"] < errors["bf16"] < errors["fp8_e4m3"] < 2


def test_small_increments_survive_stochastic_rounding_alone(machine: Any) -> None:
    # The program of the documentation's page on rounding modes.
    def add_halves() -> float:
        total = torch.tensor(1024.0).half().to("xla")
        for _ in range(2048):
            total = total + 0.5
            if api.engine().pending(0) > 100:
                api.mark_step()
        return total.item()

    compute_as_device(machine)
    assert add_halves() == 1024
    api.shutdown()
    compute_as_device(machine, **{ROUNDING: "1"})
    first = add_halves()
    assert abs(first - 2048) < 100
    restart_rounding()
    assert add_halves() == first, "replayed as it was learned"
    restart_rounding(seed=1)
    assert add_halves() != first
    api.shutdown()
    compute_as_device(machine, **{ROUNDING: "1", SEED: "1"})
    assert add_halves() != first


def test_stochastic_rounding_leaves_the_programs_random_numbers_alone(machine: Any) -> None:
    def program() -> list[torch.Tensor]:
        torch.manual_seed(5)
        x = torch.rand(8, device="xla")
        lost = (x.bfloat16() * 1.1).sum()
        return [F.dropout(x, 0.5).cpu(), torch.rand(4, device="xla").cpu(), lost.cpu() * 0]

    plain = program()
    api.shutdown()
    compute_as_device(machine, **{ROUNDING: "1"})
    assert_same(program(), plain)


def train(machine: Any, dtype: torch.dtype, **environ: str) -> list[float]:
    """Train a model with a learning rate at which most updates of bfloat16 are smaller than half a step."""
    api.shutdown()
    compute_as_device(machine, **environ)
    torch.manual_seed(0)
    x, weight = data(64, 16), data(16, 4, seed=1)
    y = (x @ weight).argmax(1).to("xla")
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model = model.to(dtype).to("xla")
    inputs = x.to(dtype).to("xla")
    losses = []
    for _ in range(150):
        loss = F.cross_entropy(model(inputs).float(), y)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.005 * parameter.grad)
                parameter.grad = None
        api.mark_step()
        losses.append(loss.item())
    return losses


def test_bfloat16_learns_as_float32_with_stochastic_rounding_and_less_without(machine: Any) -> None:
    exact = train(machine, torch.float32)
    nearest_even = train(machine, torch.bfloat16)
    stochastic = train(machine, torch.bfloat16, **{ROUNDING: "1"})
    learned = [losses[0] - losses[-1] for losses in (exact, stochastic, nearest_even)]
    assert abs(learned[1] - learned[0]) < 0.15 * learned[0]
    assert 0 < learned[2] < 0.6 * learned[0]
    assert train(machine, torch.bfloat16, **{ROUNDING: "1", SEED: "0"}) == stochastic
    assert train(machine, torch.bfloat16, **{ROUNDING: "1", SEED: "9"}) != stochastic


def test_casts_are_stochastic_too(machine: Any) -> None:
    compute_as_device(machine, "--auto-cast=matmult", **{ROUNDING: "1"})
    third = torch.full((2000, 1), 1 / 3)
    products = third.to("xla") @ torch.ones(1, 1, device="xla")
    values = products.cpu().unique()
    assert len(values) == 2
    assert abs(products.cpu().double().mean().item() - 1 / 3) < 5e-5
    converted = third.to("xla").bfloat16().float().cpu()
    assert torch.equal(converted.unique(), values)


@pytest.mark.parametrize(
    ("variable", "double_form"), [("XLA_USE_BF16", BF16), ("XLA_DOWNCAST_BF16", FORMATS["fp32"])]
)
def test_float_is_bfloat16_under_torch_xlas_variables(
    machine: Any, variable: str, double_form: Format
) -> None:
    compute_as_device(machine, **{variable: "1", ROUNDING: "0"})
    x = data(8)
    stored = nearest_of(x, BF16)
    for _ in PASSES:
        on_device = x.to("xla")
        product = on_device * 0.999
        api.mark_step()
        assert product.dtype == torch.float32
        assert torch.equal(on_device.cpu(), stored)
        assert torch.equal(product.cpu(), stored), "0.999 is 1 in bfloat16"
        assert torch.equal(
            torch.full((2,), 0.1, device="xla").cpu(), nearest_of(torch.tensor([0.1, 0.1]), BF16)
        )
        drawn = torch.rand(16, device="xla").cpu()
        assert torch.equal(drawn, nearest_of(drawn, BF16))
        double = x.double().to("xla")
        assert double.dtype == torch.float64
        assert torch.equal(
            double.cpu(), nearest_of(x, double_form).double() if double_form == BF16 else x.double()
        )
        in_place = torch.empty(8, device="xla")
        in_place.copy_(x)
        assert torch.equal(in_place.cpu(), stored)


def test_double_is_float_on_the_device(machine: Any) -> None:
    compute_as_device(machine)
    third = torch.tensor([1 / 3], dtype=torch.float64)
    got = third.to("xla")
    assert got.cpu().item() == third.float().item()
    assert (got * 7).cpu().item() == (third.float() * 7).item()


def test_float8_e4m3_ends_at_240_before_trn3(machine: Any) -> None:
    compute_as_device(machine)
    x = torch.tensor([1.0, 0.07, 239.0, 244.0, 250.0, -300.0, 1e-4, math.nan])
    for _ in PASSES:
        patterns = x.to("xla").to(torch.float8_e4m3fn)
        values = patterns.float()
        api.mark_step()
        assert_same(values.cpu(), nearest_of(x, FP8_E4M3))
        infinite = patterns.cpu().view(torch.uint8)[4].item()
        assert infinite == 0x78, "e4m3fn reads the pattern of infinity as 256"


def test_stored_float8_patterns_beyond_240_are_no_numbers(machine: Any) -> None:
    compute_as_device(machine)
    stored = torch.tensor([240.0, 256.0, 288.0, 448.0, -448.0]).to(torch.float8_e4m3fn)
    assert_same(stored.to("xla").float().cpu(), torch.tensor([240.0, math.inf, math.nan, math.nan, math.nan]))
    assert torch.equal(stored.to("xla").cpu().view(torch.uint8), stored.view(torch.uint8))
    api.shutdown()
    machine.numerics = read_numerics({"NEURONTOOLS_NUMERICS": "device"}, (), TRN3)
    assert_same(stored.to("xla").float().cpu(), stored.float())


SETTINGS: list[tuple[dict[str, str], tuple[str, ...], dict[str, Any]]] = [
    ({}, (), {"cast_mode": CastMode.NONE, "cast_form": None, "is_stochastic": False, "seed": 0}),
    ({}, ("--auto-cast-type=tf32",), {"cast_mode": CastMode.NONE, "cast_form": None}),
    ({}, ("--auto-cast=matmult",), {"cast_mode": CastMode.MATMULT, "cast_form": BF16}),
    (
        {},
        ("--auto-cast", "all", "--auto-cast-type", "fp8_e4m3"),
        {"cast_mode": CastMode.ALL, "cast_form": FP8_E4M3},
    ),
    ({ROUNDING: "true", SEED: "7"}, (), {"is_stochastic": True, "seed": 7}),
    ({"XLA_USE_BF16": "1"}, (), {"is_stochastic": True}),
    ({"XLA_DOWNCAST_BF16": "1", ROUNDING: "0"}, (), {"is_stochastic": False}),
    ({"XLA_DOWNCAST_BF16": "0"}, (), {"is_stochastic": False}),
]


@pytest.mark.parametrize(("environ", "flags", "expected"), SETTINGS)
def test_settings(environ: dict[str, str], flags: tuple[str, ...], expected: dict[str, Any]) -> None:
    settings = read_numerics({"NEURONTOOLS_NUMERICS": "device", **environ}, flags, TRN1)
    assert {name: getattr(settings, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"NEURONTOOLS_NUMERICS": "gpu"}, "invalid NEURONTOOLS_NUMERICS 'gpu': expected cpu or device"),
        ({ROUNDING: "yes"}, f"invalid {ROUNDING} 'yes': expected 0 or 1"),
        ({SEED: "-1"}, f"invalid {SEED} '-1': expected a number from 0 to 4294967295"),
        ({SEED: "4294967296"}, f"invalid {SEED}"),
        ({SEED: "\u0663"}, f"invalid {SEED}"),
    ],
)
def test_bad_settings_are_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_numerics({"NEURONTOOLS_NUMERICS": "device", **environ}, (), TRN1)
    assert caught.value.message.startswith(message)
    assert caught.value.remedy.startswith("correct ")


def test_downcast_variables_say_that_they_need_the_switch(caplog: pytest.LogCaptureFixture) -> None:
    assert read_numerics({"XLA_USE_BF16": "1"}, (), TRN1) is None
    assert "XLA_USE_BF16 has no effect" in caplog.text
    assert "NEURONTOOLS_NUMERICS=device" in caplog.text
