"""Every kernel computes the same product, and the measured choice is the one that was fastest."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specresearch.models import linear_kernels, packed
from specresearch.models.linear_kernels import (
    FLOAT32,
    KERNELS,
    ONEDNN,
    PLAIN,
    LinearKernel,
    Stopwatch,
    choose_kernel,
    fastest,
    serves,
)
from specresearch.models.packed import PackedLinear, pack_linear_layers

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")

SHAPES = [(33, 17), (1, 64), (257, 129), (64, 1)]  # of weights
DTYPES = [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)]
OFFERED = [
    pytest.param(kernel, *case, id=f"{kernel.name}-{case[0]}")
    for kernel in KERNELS
    for case in DTYPES
    if serves(kernel, case[0])
]


IN_TWO_THREADS = """
import torch
from specresearch.models.linear_kernels import KERNELS, serves

for kernel in KERNELS:
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        if serves(kernel, dtype):
            weight, input = torch.randn(96, 64).to(dtype) / 8, torch.randn(3, 64).to(dtype)
            copy, products = kernel.reorder(weight), []
            for num_threads in (1, 2):
                torch.set_num_threads(num_threads)
                products.append(kernel.multiply(input, weight, copy, None))
            print(torch.allclose(*products, rtol=tolerance, atol=tolerance))
"""


def exact(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    wide_bias = None if bias is None else bias.double()
    return F.linear(input.double(), weight.double(), wide_bias)


class TestProducts:
    @pytest.mark.parametrize("with_bias", [True, False])
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize(("kernel", "dtype", "tolerance"), OFFERED)
    def test_all_numbers_of_rows(
        self,
        kernel: LinearKernel,
        dtype: torch.dtype,
        tolerance: float,
        shape: tuple[int, int],
        with_bias: bool,
    ) -> None:
        weight = (torch.randn(shape) / shape[1] ** 0.5).to(dtype)
        bias = torch.randn(shape[0]).to(dtype) if with_bias else None
        copy = kernel.reorder(weight)
        for num_rows in range(1, 41):
            input = torch.randn(num_rows, shape[1]).to(dtype)
            with torch.no_grad():
                product = kernel.multiply(input, weight, copy, bias)
            expected = exact(input, weight, bias)
            torch.testing.assert_close(product.double(), expected, rtol=tolerance, atol=tolerance)
            assert product.dtype == dtype

    @pytest.mark.parametrize(("kernel", "dtype", "tolerance"), OFFERED)
    def test_inputs_of_any_layout(
        self, kernel: LinearKernel, dtype: torch.dtype, tolerance: float
    ) -> None:
        weight, bias = torch.randn(48, 32).to(dtype) / 6, torch.randn(48).to(dtype)
        copy = kernel.reorder(weight)
        inputs = [
            torch.randn(5, 3, 32).transpose(0, 1),
            torch.randn(32, 7).t(),
            torch.randn(2, 4, 64)[..., ::2],
            torch.randn(1, 1, 64)[..., ::2],
            torch.randn(32),
            torch.randn(2, 0, 32),
        ]
        for rows in inputs:
            input = rows.to(dtype)
            product = kernel.multiply(input, weight, copy, bias)
            expected = exact(input, weight, bias)
            torch.testing.assert_close(product.double(), expected, rtol=tolerance, atol=tolerance)

    def test_any_number_of_threads(self) -> None:
        """It runs in its own process: other tests fork theirs, which a pool of threads forbids."""
        done = subprocess.run(
            [sys.executable, "-c", IN_TWO_THREADS], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.split() == ["True"] * len(OFFERED)


class TestServes:
    def test_a_plain_product_always_works(self) -> None:
        for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float16):
            assert serves(PLAIN, dtype)
        assert not serves(ONEDNN, torch.float64)
        assert not serves(FLOAT32, torch.float32)

    def test_an_inaccurate_kernel_is_refused(self) -> None:
        def forgets_bias(input: Tensor, weight: Tensor, _: Tensor, __: Tensor | None) -> Tensor:
            return F.linear(input, weight)

        def only_one_row(input: Tensor, weight: Tensor, _: Tensor, bias: Tensor | None) -> Tensor:
            product = F.linear(input, weight, bias)
            return product if len(product) == 1 else product * 1.1

        for number, multiply in enumerate((forgets_bias, only_one_row)):
            kernel = LinearKernel(f"broken {number}", Tensor.detach, multiply, copies=0)
            assert not serves(kernel, torch.float32)

    @pytest.mark.parametrize("error", [RuntimeError, AttributeError, NotImplementedError])
    def test_a_kernel_that_is_missing_is_refused(self, error: type[Exception]) -> None:
        def reorder(weight: Tensor) -> Tensor:
            raise error("not on this processor, or not in this version")

        kernel = LinearKernel(f"missing {error.__name__}", reorder, PLAIN.multiply, copies=1)
        assert not serves(kernel, torch.bfloat16)


def timed(speeds: dict[LinearKernel, Callable[[int], float]]) -> LinearKernel:
    """Choose among kernels whose speed for a number of rows is given."""
    return fastest(tuple(speeds), lambda kernel, rows: 1 / speeds[kernel](rows))


class TestChoice:
    def test_the_usual_kernel_stays_unless_another_is_clearly_faster(self) -> None:
        for speed, expected in ((0.5, ONEDNN), (1.0, ONEDNN), (1.09, ONEDNN), (1.11, FLOAT32)):
            chosen = timed({ONEDNN: lambda _: 1.0, FLOAT32: lambda _, speed=speed: speed})
            assert chosen == expected

    def test_all_numbers_of_rows_count_the_same(self) -> None:
        few, many = (lambda rows: 2.0 if rows == 1 else 0.8), (lambda rows: 0.8 + (rows > 1))
        assert timed({ONEDNN: lambda _: 1.0, PLAIN: few}) == ONEDNN
        assert timed({ONEDNN: lambda _: 1.0, PLAIN: few, FLOAT32: many}) == FLOAT32

    @pytest.mark.parametrize("quiet_round", range(linear_kernels.ROUNDS))
    def test_being_faster_in_all_rounds_but_one_is_not_enough(self, quiet_round: int) -> None:
        """A busy machine slows some measurements of the usual kernel down by any factor."""
        calls: list[LinearKernel] = []

        def seconds(kernel: LinearKernel, _: int) -> float:
            calls.append(kernel)
            round_ = (calls.count(ONEDNN) - 1) // len(linear_kernels.MEASURED_ROWS)
            disturbed = kernel == ONEDNN and round_ != quiet_round
            return 50.0 if disturbed else 1.0

        assert fastest((ONEDNN, FLOAT32), seconds) == ONEDNN

    def test_a_slow_kernel_is_tried_once(self) -> None:
        calls: list[LinearKernel] = []

        def seconds(kernel: LinearKernel, _: int) -> float:
            calls.append(kernel)
            return 1.0 if kernel == ONEDNN else 2.0

        fastest((ONEDNN, PLAIN), seconds)
        assert calls.count(PLAIN) == len(linear_kernels.MEASURED_ROWS)

    def test_equal_shapes_are_measured_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        measured: list[torch.Size] = []

        def stopwatch(weights: list[Tensor]) -> Callable[[LinearKernel, int], float]:
            measured.append(weights[0].shape)
            return lambda kernel, _: 1.0 if kernel == PLAIN else 2.0

        monkeypatch.setattr(linear_kernels, "Stopwatch", stopwatch)
        monkeypatch.setattr(linear_kernels, "_CHOICES", {})
        for _ in range(2):
            for shape in ((8, 4), (4, 8)):
                weights = [torch.ones(shape)]
                assert choose_kernel(weights, measure=True, most_copies=2) == PLAIN
        assert measured == [(8, 4), (4, 8)]
        assert choose_kernel([torch.ones(8, 4)], measure=False, most_copies=2) == ONEDNN

    def test_a_stopwatch_takes_what_exceeds_caches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(linear_kernels, "MEASURED_BYTES", 64 * 4 * 10)
        for num_outputs, shapes in ((20, [(10, 64)]), (3, [(3, 64)] * 4), (10, [(10, 64)])):
            watch = Stopwatch([torch.ones(num_outputs, 64)] * 6)
            assert [weight.shape for weight in watch.weights] == shapes
            assert watch(PLAIN, 3) > 0


class TestLayers:
    @pytest.fixture
    def chosen(self, monkeypatch: pytest.MonkeyPatch) -> dict[torch.Size, LinearKernel]:
        """The kernels that measurements of models of any size will choose."""
        choices: dict[torch.Size, LinearKernel] = {}
        monkeypatch.setattr(packed, "SMALLEST_MEASURED", 0)

        def choose(weights: list[Tensor], *, measure: bool, most_copies: int) -> LinearKernel:
            assert measure
            kernel = choices[weights[0].shape]
            return kernel if kernel.copies <= most_copies else ONEDNN

        monkeypatch.setattr(packed, "choose_kernel", choose)
        return choices

    @staticmethod
    def layers() -> list[nn.Linear]:
        shapes = [(512, 256), (256, 512), (256, 512)]
        return [nn.Linear(*shape, dtype=torch.bfloat16) for shape in shapes]

    def test_layers_get_what_was_chosen(self, chosen: dict[torch.Size, LinearKernel]) -> None:
        chosen |= {torch.Size((256, 512)): PLAIN, torch.Size((512, 256)): FLOAT32}
        layers = self.layers()
        model = nn.ModuleList(layers)
        num_bytes = layers[0].weight.nbytes
        assert pack_linear_layers(model, True) == 2 * 2 * num_bytes
        assert model[0] is layers[0]
        assert packed.linear_kernels(model) == "2 x oneDNN-packed in float32, 1 x plain"
        rows = torch.randn(3, 256).bfloat16()
        with torch.inference_mode():
            torch.testing.assert_close(model[1](rows), layers[1](rows), rtol=2e-2, atol=2e-2)
        assert isinstance(model[1], PackedLinear)
        assert model[1].packed_bytes == 2 * num_bytes

    def test_no_larger_copies_than_memory_allows(
        self, chosen: dict[torch.Size, LinearKernel], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        chosen |= {torch.Size((256, 512)): FLOAT32, torch.Size((512, 256)): FLOAT32}
        layers = self.layers()
        model, num_bytes = nn.ModuleList(layers), sum(layer.weight.nbytes for layer in layers)
        monkeypatch.setattr(packed, "available_bytes", lambda _: 4 * num_bytes - 1)
        assert pack_linear_layers(model) == num_bytes
        assert packed.linear_kernels(model) == ONEDNN.name

    def test_a_layer_converted_to_another_precision_still_works(self) -> None:
        layer = PackedLinear(nn.Linear(256, 256), ONEDNN)
        rows = torch.randn(3, 256)
        with torch.inference_mode():
            before = layer(rows)
            torch.testing.assert_close(layer.double()(rows.double()).float(), before)
            assert layer.packed_bytes == 0
            torch.testing.assert_close(layer.float()(rows), before)
            assert layer.packed_bytes == layer.weight.nbytes

    def test_small_models_are_not_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def stopwatch(_: list[Tensor]) -> None:
            raise AssertionError("measured")

        monkeypatch.setattr(linear_kernels, "Stopwatch", stopwatch)
        pack_linear_layers(nn.ModuleList(self.layers()), True)
        monkeypatch.setattr(linear_kernels, "_CHOICES", {})
        monkeypatch.setattr(packed, "SMALLEST_MEASURED", 0)
        with pytest.raises(AssertionError, match="measured"):
            pack_linear_layers(nn.ModuleList(self.layers()), True)
