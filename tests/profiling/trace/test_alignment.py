"""Alignment of names: layers that are all alike, one of which differs."""

import pytest

from profiling.trace.attribution import aligned

LAYER = tuple("abcdea")


def pairs(names, known):
    return {(place, other) for place, other in enumerate(aligned(tuple(names), tuple(known))) if other is not None}


def test_equal_sequences():
    assert aligned(LAYER, LAYER) == tuple(range(6))


def test_what_stands_around_has_no_counterpart():
    assert aligned(("copy", *LAYER, "clone"), LAYER) == (None, *range(6), None)


@pytest.mark.parametrize("layer", range(4))
def test_a_layer_that_chose_another_kernel_does_not_shift_the_others(layer):
    known = list(LAYER * 4)
    names = ["copy", *known, "clone"]
    names[1 + 6 * layer + 2] = "other"
    expected = {(place + 1, place) for place in range(24)} - {(1 + 6 * layer + 2, 6 * layer + 2)}
    assert pairs(names, known) == expected


def test_a_kernel_more_in_every_layer():
    split = (*LAYER[:3], "reduce", *LAYER[3:])
    found = pairs(split * 4, LAYER * 4)
    assert found == {(7 * n + place + (place > 2), 6 * n + place) for n in range(4) for place in range(6)}


def test_places_rise():
    places = [place for place in aligned((*LAYER * 3, "x", *LAYER), LAYER * 5) if place is not None]
    assert len(places) == 24
    assert places == sorted(set(places))


def test_nothing_in_common():
    assert aligned(tuple("xyz"), LAYER) == (None, None, None)
    assert aligned((), LAYER) == ()
    assert aligned(LAYER, ()) == (None,) * 6


def test_too_much_to_align_is_left_alone():
    names = tuple(f"k{number % 7}" for number in range(8000))
    assert set(aligned(names, (*names[:-1], "x"))) == {None}
