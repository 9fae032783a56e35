import pytest

from profiling.errors import InputError
from profiling.launch_overhead.options import CalibrationOptions


def test_lists_become_tuples_and_defaults_hold():
    options = CalibrationOptions(elements=[1, 10], widths=[1, 2], counts=[1, 2, 3])
    assert (options.elements, options.widths, options.counts) == ((1, 10), (1, 2), (1, 2, 3))
    assert CalibrationOptions().elements is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"elements": [1]},
        {"elements": [4, 2]},
        {"elements": [0, 2]},
        {"elements": "12"},
        {"elements": [1, 2**40]},
        {"widths": [2, 2]},
        {"widths": [1.5, 3]},
        {"widths": [True, 3]},
        {"widths": 64},
        {"counts": [1, 2]},
        {"counts": [1, 2, 5000]},
        {"counts": None},
        {"rows": 0},
        {"rounds": 2},
        {"rounds": "many"},
        {"seed": -1},
        {"dtype": "int8"},
        {"dtype": None},
    ],
)
def test_nonsense_is_refused_on_one_line_that_names_it(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))) as caught:
        CalibrationOptions(**wrong)
    assert "\n" not in str(caught.value)


def test_a_misspelt_dtype_is_recognised():
    with pytest.raises(InputError, match="Did you mean 'bfloat16'"):
        CalibrationOptions(dtype="bfloat")
