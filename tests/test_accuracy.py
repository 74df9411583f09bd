"""The tolerance rule itself: what it lets pass and what it catches; and the memory that conftest.py poisons."""

import pytest
import torch
from accuracy import assert_as_accurate, assert_gradients_as_accurate

EXACT = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
EAGER = torch.tensor([1.0, 2.001, 3.0])


def shifted(by: float) -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0 + by])


def test_twice_the_error_of_eager_passes() -> None:
    assert_as_accurate(shifted(0.0019), EAGER, EXACT)


def test_more_fails_and_names_place_and_bound() -> None:
    message = r"gelu: worst error 0\.0021 at \(2,\) is over 0\.002\d+ = 2 x eager's 0\.001"
    with pytest.raises(AssertionError, match=message):
        assert_as_accurate(shifted(0.0021), EAGER, EXACT, "gelu")


def test_the_floor_allows_for_an_exact_eager() -> None:
    assert_as_accurate(shifted(8e-6), EXACT.float(), EXACT)
    with pytest.raises(AssertionError):
        assert_as_accurate(shifted(2e-4), EXACT.float(), EXACT)


def test_gradients_are_compared_by_their_norm_too() -> None:
    exact = {"weight": torch.full((10_000,), 0.01, dtype=torch.float64), "bias": torch.zeros(4, dtype=torch.float64)}
    exact["weight"][0] = 1.0
    eager = {name: grad.float() for name, grad in exact.items()}
    assert_gradients_as_accurate({"weight": eager["weight"] + 1e-7, "bias": eager["bias"] + 1e-9}, eager, exact)
    with pytest.raises(AssertionError, match=r"weight: the norm of the error, 0\.0009\d*, is over"):
        assert_gradients_as_accurate({**eager, "weight": eager["weight"] + 9e-6}, eager, exact)
    with pytest.raises(AssertionError, match="bias: the norm of the error, 2e-06, is over"):
        assert_gradients_as_accurate({**eager, "bias": eager["bias"] + 1e-6}, eager, exact)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_fails(poison: float) -> None:
    with pytest.raises(AssertionError, match="worst error inf"):
        assert_as_accurate(torch.tensor([1.0, poison, 3.0]), EAGER, EXACT)


def test_infinities_where_float64_has_them_pass() -> None:
    exact = torch.tensor([0.0, float("-inf")], dtype=torch.float64)
    assert_as_accurate(exact.float(), exact.float(), exact)
    with pytest.raises(AssertionError, match="worst error inf"):
        assert_as_accurate(-exact.float(), exact.float(), exact)


@pytest.mark.parametrize(
    ("actual", "message"),
    [
        pytest.param(torch.zeros(2), "shape", id="shape"),
        pytest.param(torch.zeros(3, dtype=torch.bfloat16), "dtype", id="dtype"),
    ],
)
def test_another_shape_or_dtype_fails(actual: torch.Tensor, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_as_accurate(actual, EAGER, EXACT)


def test_empty_tensors_pass() -> None:
    assert_as_accurate(torch.zeros(0, 4), torch.zeros(0, 4), torch.zeros(0, 4, dtype=torch.float64))


def test_a_scalar_passes_and_fails() -> None:
    exact = torch.tensor(2.0, dtype=torch.float64)
    assert_as_accurate(torch.tensor(2.0), torch.tensor(2.0), exact)
    with pytest.raises(AssertionError, match=r"at \(\)"):
        assert_as_accurate(torch.tensor(2.1), torch.tensor(2.0), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_memory_that_nothing_wrote_is_nan(dtype: torch.dtype) -> None:
    assert torch.empty(1000, dtype=dtype).isnan().all()
    assert torch.empty_like(torch.zeros(3, 5, dtype=dtype)).isnan().all()


def test_the_floor_grows_with_values_above_one() -> None:
    exact = torch.tensor([1.0, 100.0], dtype=torch.float64)
    assert_as_accurate((exact + 9e-4).float(), exact.float(), exact)
    with pytest.raises(AssertionError):
        assert_as_accurate((exact + 2e-3).float(), exact.float(), exact)
    with pytest.raises(AssertionError):
        assert_as_accurate((exact / 100 + 2e-4).float(), (exact / 100).float(), exact / 100)
