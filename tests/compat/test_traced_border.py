"""What goes into a traced model and comes out: inputs of any memory layout, state, unused inputs, results."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

NUMBERS = torch.arange(64.0)
LAYOUTS = {
    "contiguous": lambda: torch.rand(4, 4),
    "rows of a larger tensor": lambda: NUMBERS.view(16, 4)[5:9],
    "columns of a larger tensor": lambda: NUMBERS.view(4, 16)[:, 3:7],
    "last rows": lambda: NUMBERS.view(16, 4)[-4:],
    "every other row": lambda: NUMBERS.view(16, 4)[1:9:2],
    "transposed": lambda: NUMBERS[8:24].view(4, 4).t(),
    "expanded": lambda: NUMBERS[3:7].expand(4, 4),
    "overlapping": lambda: NUMBERS.as_strided((4, 4), (1, 1), 9),
    "a single number repeated": lambda: NUMBERS[5].expand(4, 4),
    "flipped": lambda: NUMBERS[16:32].view(4, 4).flip(0),
    "negated lazily": lambda: torch._neg_view(NUMBERS[16:32].view(4, 4)),
    "an element of an unbound tensor": lambda: NUMBERS.view(4, 4, 4).unbind(1)[2],
    "a parameter": lambda: torch.nn.Parameter(NUMBERS.view(4, 16)[:, 2:6]),
    "of numpy": lambda: torch.from_numpy(NUMBERS.numpy().reshape(8, 8)[2:6, 4:]),
}


def write(x):
    return x.add_(1).t().sum(0)


FUNCTIONS = {
    "elementwise": lambda x: x * 2,
    "expanded": lambda x: x[:1].expand(3, 4) * 1.0,
    "transposed": lambda x: x.t() + x,
    "sliced": lambda x: x[1:, 2:] * 3,
    "reversed": lambda x: x.flip(1)[::2],
    "multiplied": lambda x: x.t() @ x,
    "of other bits": lambda x: x.view(torch.int32)[1:] + 1,
    "written in place": write,
    "a view of the input": lambda x: x.t()[1:],
    "the input and a view of it": lambda x: (x + 1, x, x[2:].t(), x.diagonal()),
}


def leaves(value):
    return [value] if isinstance(value, torch.Tensor) else list(value)


def assert_same(got, wanted):
    for actual, expected in zip(leaves(got), leaves(wanted), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=0)


def saved(module, home):
    torch.jit.save(module, str(home / "model.pt"))
    return torch.jit.load(str(home / "model.pt"))


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_inputs_of_any_layout_give_their_own_numbers(neuronx, home, function):
    made = neuronx.trace(function, torch.rand(4, 4))
    for model in (made, saved(made, home)):
        for name, make in LAYOUTS.items():
            x = make().detach()
            assert_same(model(x), function(x.clone())), name


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_an_example_of_any_layout_traces_the_same_model(neuronx, layout):
    made = neuronx.trace(FUNCTIONS["sliced"], layout().detach())
    for make in LAYOUTS.values():
        x = make().detach()
        assert_same(made(x), FUNCTIONS["sliced"](x))


@pytest.mark.parametrize(
    "function", [lambda x: x * 2, lambda x: x[:, 1:].flip(1), lambda x: x.unsqueeze(1).expand(-1, 3, -1) + 1]
)
@pytest.mark.parametrize("batch", [0, 1, 2, 3, 7])
def test_batches_of_any_size_and_layout_are_split(neuronx, function, batch):
    made = neuronx.dynamic_batch(neuronx.trace(function, torch.rand(2, 4)))
    for x in (NUMBERS[4:].as_strided((batch, 4), (4, 1)), NUMBERS.view(4, 16)[:, 3 : 3 + batch].t()):
        assert_same(made(x), function(x))


def test_data_parallel_reads_each_part_of_a_batch(neuronx):
    parallel = neuronx.DataParallel(neuronx.trace(lambda x: x[:, :1].expand(2, 4) * 1.0, torch.rand(2, 4)))
    x = NUMBERS.view(4, 16)[:, :12].t()[4:]
    assert_same(parallel(x), x[:, :1].expand(8, 4))


def test_inputs_that_share_memory_are_separate(neuronx):
    def function(x, y):
        return x.add_(1) * 2, y + x

    made = neuronx.trace(function, (torch.rand(3), torch.rand(3)))
    whole = torch.arange(5.0)
    assert_same(made(whole[:3], whole[2:]), function(whole[:3].clone(), whole[2:].clone()))
    assert whole.tolist() == [0, 1, 2, 3, 4]


class Memory(torch.nn.Module):
    """State that is read through views, state that is only written, and a weight."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.sums = torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False)
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x):
        total = self.linear(x) + self.sums[1:].expand(2, 3)
        return total, x * 2, self.sums + x.t().contiguous().t()


@pytest.mark.parametrize("order", [("sums", "last"), ("last", "sums")])
def test_state_is_the_parameters_in_the_order_of_the_aliases(neuronx, home, order):
    torch.manual_seed(0)
    module = Memory()
    results = {"last": 1, "sums": 2}
    made = neuronx.trace(
        module, torch.ones(2, 3), input_output_aliases={getattr(module, n): results[n] for n in order}
    )
    for model in (made, saved(made, home)):
        state = dict(zip(order, model.parameters(), strict=True))
        sums = torch.zeros(2, 3)
        for number in range(3):
            if number == 2:  # the program writes the state
                sums = torch.full((2, 3), 7.0)
                state["sums"].copy_(sums)
            x = torch.rand(3, 4)[:, 1:3].t()
            with torch.no_grad():
                total, *new = model(x)
            assert_same(total, module.linear(x) + sums[1:].expand(2, 3))
            sums = sums + x
            assert_same(tuple(new), (x * 2, sums))
            assert_same((state["sums"], state["last"]), (sums, x * 2))
    assert not module.sums.any()


def test_state_of_batches_of_any_size(neuronx):
    class Count(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x):
            return x + self.seen, self.seen + x.sum(0)

    module = Count()
    made = neuronx.trace(module, torch.ones(2, 3), input_output_aliases={module.seen: 1})
    neuronx.dynamic_batch(made)
    total, seen = made(torch.ones(3, 3))
    assert (total.tolist(), seen.tolist()) == ([[1] * 3, [1] * 3, [3] * 3], [3] * 3)
    assert [state.tolist() for state in made.parameters()] == [[3, 3, 3]]


@pytest.mark.parametrize("position", [0, 2, 9, -1])
def test_state_that_is_not_the_result_is_refused(neuronx, position):
    module = torch.nn.Linear(3, 3)

    def function(x):
        return x, module(x), x.sum()

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = module

        def forward(self, x):
            return function(x)

    with pytest.raises(RuntimeError, match=r"'linear.weight', float32\[3, 3\], the position"):
        neuronx.trace(Wrapped(), torch.rand(2, 3), input_output_aliases={module.weight: position})


class Shared(torch.nn.Module):
    """Submodules and parameters with two names, and what forward fills lazily."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = self.first
        self.third = torch.nn.Linear(3, 3)
        self.third.weight = self.first.weight
        self.alias = self.first.bias
        self.layers = torch.nn.ModuleList([self.third, self.first])
        self.register_buffer("frequencies", None)
        self.cached = None
        self.counted = 0

    def forward(self, x):
        if self.frequencies is None:
            self.frequencies = torch.arange(3.0, device=x.device)
        if self.cached is None:
            self.cached = torch.ones_like(x)
        self.counted += 1
        for layer in self.layers:
            x = layer(self.second(x))
        return x + self.frequencies + self.cached + self.alias


class Reading(Shared):
    """The same, and a value that it reads: recorded in a second pass, after one on the CPU."""

    def forward(self, x):
        self.alias.add_(1)
        return super().forward(x) * (2 if self.first.bias.sum().item() > 0 else 3)


@pytest.mark.parametrize("kind", [Shared, Reading])
def test_a_module_with_several_names_for_a_part_stays_as_it_is(neuronx, home, kind):
    module, x = kind(), torch.rand(2, 3)

    def contents():
        named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers())
        return [(name, id(tensor), tensor.device.type, tensor.sum().item()) for name, tensor in named]

    before = contents()
    models = [neuronx.trace(module, x) for _ in range(2)]
    assert contents() == before
    assert (module.frequencies, module.cached, module.counted) == (None, None, 0)
    with torch.no_grad():
        wanted = module(x)
    for model in (*models, saved(models[0], home)):
        assert_same(model(x), wanted)


def test_a_weight_with_two_names_is_replaced_by_either(neuronx):
    module, x = Shared(), torch.rand(2, 3)
    made = neuronx.trace(module, x, inline_weights_to_neff=False)
    other = Shared()
    neuronx.replace_weights(made, dict(other.named_parameters()))
    with torch.no_grad():
        assert_same(made(x), other(x))


def test_inputs_that_the_graph_does_not_use_may_be_anything(neuronx, home):
    made = neuronx.trace(lambda x, y, z: (x * 2, z), (torch.rand(2, 3), torch.rand(4), torch.rand(2)))
    for model in (made, saved(made, home)):
        for unused in (torch.zeros(7, 3), torch.zeros(4).long(), torch.zeros(1, device="meta")):
            assert_same(
                model(torch.ones(2, 3), unused, torch.ones(2)), (torch.full((2, 3), 2.0), torch.ones(2))
            )
        with pytest.raises(RuntimeError, match="input 2 is float32"):
            model(torch.ones(2, 3), torch.zeros(4), torch.ones(3))
    batched = neuronx.dynamic_batch(neuronx.trace(lambda x, y: x * 2, (torch.rand(2, 3), torch.rand(9))))
    assert batched(torch.ones(5, 3), torch.zeros(1)).shape == (5, 3)


@dataclasses.dataclass
class Parts:
    low: object
    none: object = None
    high: object = None


@dataclasses.dataclass
class Output(OrderedDict):
    """As the outputs of transformers' models: a dataclass, and a dict of its fields that are not None."""

    low: object = None
    none: object = None
    high: object = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


@pytest.mark.parametrize("kind", [Parts, Output])
@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda kind, x: kind(x, None, x + 1), {"low": 0, "high": 1}),
        (lambda kind, x: kind(x, None, kind(x + 1)), (0, (1,))),
        (lambda kind, x: kind(x, None, (x + 1, x + 2)), (0, (1, 2))),
        (lambda kind, x: kind(x, {"plain": x}, [x + 1]), (0, {"plain": 0}, [1])),
        (lambda kind, x: {"a": kind(x), "b": x + 1}, {"a": {"low": 0}, "b": 1}),
        (lambda kind, x: {"a": kind(x, kind(x + 1)), "b": x + 2}, {"a": (0, (1,)), "b": 2}),
        (lambda kind, x: (x, kind(x + 1, None, x + 2)), (0, (1, 2))),
        (lambda kind, x: (x, kind(x + 1, None, kind(x, None, x + 2))), (0, (1, (0, 2)))),
        (lambda kind, x: [kind(x), x], [{"low": 0}, 0]),
        (lambda kind, x: (x, {"plain": x + 1}), (0, {"plain": 1})),
    ],
)
def test_flat_outputs_are_dicts_and_others_tuples(neuronx, home, kind, make, wanted):
    def numbers(value):
        if isinstance(value, torch.Tensor):
            return int(value[0])
        if isinstance(value, dict):
            return {key: numbers(item) for key, item in value.items()}
        return type(value)(map(numbers, value))

    made = neuronx.trace(lambda x: make(kind, x), torch.zeros(2))
    assert numbers(made(torch.zeros(2))) == wanted
    assert numbers(saved(made, home)(torch.zeros(2))) == wanted
