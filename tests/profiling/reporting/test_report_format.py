import math

import pytest

from profiling.reporting.format import (
    ABSENT,
    escaped,
    frames_per_second,
    mean_std,
    mebibytes,
    one_line,
    significant,
    struck,
    times_faster,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.5, "2.500"),
        (0.019, "0.01900"),
        (28.714, "28.71"),
        (123.456, "123.5"),
        (12345.6, "12346"),
        (9.9996, "10.00"),
        (0.0, "0.000"),
        (0.0000123, "1.230e-05"),
    ],
)
def test_four_significant_digits_and_no_integer_digit_lost(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_absent_is_a_dash_and_never_nan_or_zero(value: float | None) -> None:
    assert significant(value) == ABSENT


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (2.5, 0.019, "2.500 ± 0.019"),
        (28.7, 0.19, "28.70 ± 0.19"),
        (1234.5, 0.4, "1234 ± 0.4"),
        (2.5, 0.00002, "2.500 ± 2e-05"),
        (2.5, 0.0, "2.500 ± 0.000"),
        (2.5, None, "2.500"),
        (None, None, ABSENT),
    ],
)
def test_spread_has_the_decimals_of_the_mean_unless_it_would_read_as_zero(
    mean: float | None, std: float | None, text: str
) -> None:
    assert mean_std(mean, std) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (2291 * 2**20, "2291"),
        (10.4 * 2**20, "10"),
        (9.96 * 2**20, "10"),
        (2.5 * 2**20, "2.5"),
        (0, "0"),
        (None, ABSENT),
    ],
)
def test_mebibytes_have_decimals_below_ten_only(count: float | None, text: str) -> None:
    assert mebibytes(count) == text


def test_rates_and_ratios_show_their_range() -> None:
    assert frames_per_second(400.0, 370.4, 406.6) == "400 (370–407)"
    assert frames_per_second(None, None, None) == ABSENT
    assert times_faster(11.5, (11.4, 11.6)) == "11.5× [11.4, 11.6]"
    assert times_faster(0.98, None) == "0.980×"
    assert times_faster(None, (1.0, 2.0)) == ABSENT


def test_struck_out_times_are_markdown_and_the_dash_is_left_alone() -> None:
    assert struck("12.3") == "~~12.3~~"
    assert struck(ABSENT) == ABSENT


def test_nothing_in_a_text_can_break_a_table_or_a_line() -> None:
    assert one_line("a\nb\r\n\tc\x1b[31m d") == "a b c [31m d"
    assert escaped("a|b\nc") == "a\\|b c"
    assert escaped("<lambda> *x* `y` ~~z~~") == "\\<lambda\\> \\*x\\* \\`y\\` \\~\\~z\\~\\~"
    assert escaped("world_model") == "world_model"
    assert escaped("__init__") == "\\_\\_init\\_\\_"
